"""Text-to-SQL rows from a seed: `rows("train", 2000, seed=0)`. No network, no files, the standard library alone.

The columns are those of the gretel data set (sql_prompt, sql_context, sql). sql_context creates and fills the
tables in SQLite, sql runs on them. Rows are only kept if their result is not empty and differs from that of
every near miss, so that a wrong answer is found out.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from random import Random
from zlib import crc32

from finetune.embedded.query import Query
from finetune.embedded.questions import ask, joined
from finetune.embedded.schemas import Table, one_table, two_tables
from finetune.tasks.base import Split
from finetune.tasks.text_to_sql import SYSTEM, user_prompt

COLUMNS = ("sql_prompt", "sql_context", "sql")
_JOINED_SHARE = 0.08
_TRIES = 30  # to find one question about given tables: only one in five is for testing


@dataclass(frozen=True)
class Asked:
    """A question about `tables`, the first of which it is mainly about, and the query that answers it."""

    tables: tuple[Table, ...]
    question: str
    query: Query

    @property
    def context(self) -> str:
        return " ".join(table.to_sql() for table in self.tables)


def rows(split: Split, count: int, seed: int) -> list[dict[str, str]]:
    """`count` different rows of `split`. The same arguments give the same rows.

    A question and its SQL belong to one split for good, whatever the seed: no question of "test" is in "train".
    """
    asked = chain.from_iterable(questions(split, seed, per_schema=1))
    return [
        {"sql_prompt": one.question, "sql_context": one.context, "sql": one.query.to_sql()}
        for one in islice(asked, count)
    ]


def conversations(split: Split, count: int, seed: int) -> list[dict[str, list[dict[str, str]]]]:
    """`count` conversations of `split`: two questions each about the same tables, the second without them."""
    found = []
    for first, second in islice(questions(split, seed, per_schema=2), count):
        turns = (
            ("system", SYSTEM),
            ("user", user_prompt(first.context, first.question)),
            ("assistant", first.query.to_sql()),
            ("user", second.question),
            ("assistant", second.query.to_sql()),
        )
        found.append({"messages": [{"role": role, "content": content} for role, content in turns]})
    return found


def questions(split: Split, seed: int, per_schema: int) -> Iterator[list[Asked]]:
    """Questions without end, none twice, in lists of `per_schema` about the same tables."""
    random = Random(f"{split} {seed}")
    seen: set[tuple[str, str]] = set()
    while True:
        single = random.random() >= _JOINED_SHARE
        tables = (one_table(random),) if single else two_tables(random)
        found: dict[str, Asked] = {}
        for _ in range(_TRIES * per_schema):
            asked = Asked(tables, *(ask(random, tables[0]) if single else joined(random, *tables)))
            if split_of(asked.question) == split and _discriminates(asked):
                found.setdefault(asked.question, asked)
            if len(found) == per_schema:
                break
        keys = {(asked.question, asked.context) for asked in found.values()}
        if len(found) == per_schema and not keys & seen:
            seen |= keys
            yield list(found.values())


def split_of(question: str) -> Split:
    """One question in five is for testing, by its own text. Case and punctuation do not count."""
    words = "".join(letter for letter in question.lower() if letter.isalnum() or letter == " ")
    return "test" if crc32(words.encode()) % 5 == 0 else "train"


def _discriminates(asked: Asked) -> bool:
    """Whether the query has a result, and none of its near misses has the same one."""
    table = asked.tables[0]
    numbers = tuple(column.name for column in table.of_kind("number"))
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(asked.context)
        expected = _result(database, asked.query)
        if not expected or any(None in record for record in expected) or expected == [(0,)]:
            return False
        return all(_result(database, mistaken) != expected for mistaken in asked.query.near_misses(numbers))


def _result(database: sqlite3.Connection, query: Query) -> list[tuple[object, ...]]:
    """The result without its order, since most judges of SQL ignore it too."""
    return sorted(database.execute(query.to_sql()).fetchall(), key=repr)
