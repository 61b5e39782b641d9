"""What judging SQL costs: `python -m tests.bench.scoring [ROWS.jsonl]`. Prints ratios to plain sqlite3.

The golds are judged as if a model had answered them, and, for comparison, only run.
"""

import contextlib
import sqlite3
import sys
import time
from pathlib import Path

from finetune.rows import read
from finetune.tasks import text_to_sql
from finetune.tasks.base import Example, Unusable


def examples_of(dataset: str) -> list[Example]:
    numbered = read(dataset, text_to_sql.SOURCE, seed=0, train_size=1000).train
    made = [text_to_sql.to_example(item.row, item.number) for item in numbered if not isinstance(item.row, Unusable)]
    return [example for example in made if isinstance(example, Example)]


def main() -> None:
    examples = examples_of(str(Path(sys.argv[1])) if len(sys.argv) > 1 else "embedded")
    text_to_sql.score(examples[:1], [examples[0].answer])  # imports
    since = time.process_time()
    text_to_sql.score(examples, [example.answer for example in examples])
    judged = time.process_time() - since
    since = time.process_time()
    for example in examples:
        with contextlib.closing(sqlite3.connect(":memory:")) as database:
            database.executescript(example.context["schema"])
            database.execute(example.answer).fetchall()
    plain = time.process_time() - since
    print(
        f"{len(examples)} rows: {1000 * judged / len(examples):.1f} ms each, {judged / plain:.1f} x only running them"
    )


if __name__ == "__main__":
    main()
