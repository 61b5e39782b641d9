"""The table of tasks. A new task is one module that fits base.Task, and one line here."""

from finetune.tasks import chat, pets, text_to_sql
from finetune.tasks.base import Task

TASKS: dict[str, Task] = {task.NAME: task for task in (text_to_sql, pets, chat)}
