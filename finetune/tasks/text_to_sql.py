"""Text-to-SQL: a question and a schema in, one SQL statement out, judged by running it in SQLite."""

from collections.abc import Mapping, Sequence
from typing import Any

from finetune.tasks.base import DataSource, Example, Message, Row, Score, Unusable

NAME = "text-to-sql"
DESCRIPTION = "question + schema -> one SQL statement, judged by running it"
SOURCE = DataSource("philschmid/gretel-synthetic-text-to-sql", rows=12_500, train_size=10_000, eval_size=2_500)
COLUMNS = ("sql_prompt", "sql_context", "sql")
DEFAULTS: Mapping[str, Any] = {}
VERDICTS = ("correct", "wrong result", "does not execute", "not SQL", "unscorable")
UNSCORABLE = "unscorable"

SYSTEM = (
    "You translate questions into SQL. The user gives a database schema and a question about it. "
    "Write the one SQL statement that answers the question, using only the tables and columns of the "
    "schema. Reply with the SQL statement and nothing else."
)


def user_prompt(schema: str, question: str) -> str:
    """The user turn: the schema and the question in tagged blocks."""
    return f"<SCHEMA>\n{schema}\n</SCHEMA>\n<QUESTION>\n{question}\n</QUESTION>"


def to_example(row: Row, number: int) -> Example | Unusable:
    """One row of the gretel layout -> Example. Rows with a missing, non-text or empty column are unusable."""
    values = []
    for column in COLUMNS:
        value = row.get(column)
        if value is None:
            return Unusable(f"{column} is missing")
        if not isinstance(value, str):
            return Unusable(f"{column} is not text")
        if not value.strip():
            return Unusable(f"{column} is empty")
        values.append(value.strip())
    question, schema, sql = values
    prompt = (Message("system", SYSTEM), Message("user", user_prompt(schema, question)))
    return Example(number, prompt, sql, context={"schema": schema, "question": question})


def score(examples: Sequence[Example], completions: Sequence[str]) -> Score:
    """Judge each completion by running it and the gold on the example's schema."""
    raise NotImplementedError
