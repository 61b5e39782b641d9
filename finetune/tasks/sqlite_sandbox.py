"""A fresh in-memory SQLite database that runs one SQL statement which nobody has checked.

    with Sandbox() as sandbox:
        result = sandbox.execute("SELECT ...")     # Result, or SqlFailure

The statement cannot reach a file, an extension or a setting: what it may do is decided by an authorizer.
It cannot run or grow for ever either. Its work is counted in steps of SQLite's virtual machine, so that
a query meets the same limit on every machine; a clock stands behind for the few functions whose single
step is long. Chance is refused (random()): a statement must give the same result each time.
"""

import contextlib
import re
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Literal

Cell = None | int | float | str | bytes
Row = tuple[Cell, ...]

ROW_LIMIT = 10_000
STEP_LIMIT = 10_000_000
STEPS_BETWEEN_CHECKS = 100
TIME_LIMIT_S = 10.0
RESULT_LIMIT_BYTES = 20_000_000
HEAP_LIMIT_BYTES = 256 * 1024 * 1024

LIMITS = {
    # replace() and instr() are quadratic and cannot be interrupted: at this length one call takes under a second.
    sqlite3.SQLITE_LIMIT_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 500,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 20,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}

READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
WRITES = {
    sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE, sqlite3.SQLITE_ALTER_TABLE,
    sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_CREATE_VIEW,
    sqlite3.SQLITE_CREATE_TRIGGER, sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_DROP_INDEX,
    sqlite3.SQLITE_DROP_VIEW, sqlite3.SQLITE_DROP_TRIGGER,
}  # fmt: skip
HARMLESS = {
    sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT, sqlite3.SQLITE_ANALYZE, sqlite3.SQLITE_REINDEX,
    sqlite3.SQLITE_CREATE_TEMP_TABLE, sqlite3.SQLITE_CREATE_TEMP_INDEX, sqlite3.SQLITE_CREATE_TEMP_VIEW,
    sqlite3.SQLITE_CREATE_TEMP_TRIGGER, sqlite3.SQLITE_DROP_TEMP_TABLE, sqlite3.SQLITE_DROP_TEMP_INDEX,
    sqlite3.SQLITE_DROP_TEMP_VIEW, sqlite3.SQLITE_DROP_TEMP_TRIGGER,
}  # fmt: skip
ACTION_NAMES = {
    sqlite3.SQLITE_ATTACH: "ATTACH",
    sqlite3.SQLITE_DETACH: "DETACH",
    sqlite3.SQLITE_PRAGMA: "PRAGMA",
    sqlite3.SQLITE_CREATE_VTABLE: "a virtual table",
    sqlite3.SQLITE_DROP_VTABLE: "a virtual table",
}
FORBIDDEN_FUNCTIONS = {
    # files and extensions (some exist only in some builds of SQLite)
    "load_extension", "readfile", "writefile", "edit", "lsdir", "fsdir", "zipfile", "fts3_tokenizer", "sqlite_log",
    # chance
    "random", "randomblob",
}  # fmt: skip

SYNTAX_ERROR = re.compile(r"syntax error|^incomplete input|^unrecognized token")


class SqlFailure(Exception):
    """A statement that gave no result. `kind` says whether SQLite could read it ("error"), could not
    ("syntax"), or was told not to run it or to stop ("refused")."""

    def __init__(self, message: str, kind: Literal["syntax", "error", "refused"]) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Result:
    """What one statement gave.

    `rows` is None for a statement that has no result set; one row more than ROW_LIMIT means that there were
    more. `wrote`: it may have changed tables other than temporary ones. `reads`: the tables, views and
    table functions it looked at, in lower case.
    """

    rows: list[Row] | None = None
    columns: tuple[str, ...] = ()
    wrote: bool = False
    reads: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Table:
    """The content of one table or view, columns in order of their names."""

    kind: str
    columns: tuple[str, ...]
    rows: list[Row]


class Sandbox:
    """One database, from empty to closed. Not for use by two threads.

    CURRENT_TIMESTAMP, CURRENT_DATE and CURRENT_TIME are `now` (UTC) there, so that two databases can share
    one instant.
    """

    def __init__(self, now: datetime | None = None) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=0)
        # Sorting must not spill to disk. The heap limit is the whole process's: SQLite knows no other.
        self._connection.execute("PRAGMA temp_store = MEMORY")
        self._connection.execute(f"PRAGMA hard_heap_limit = {HEAP_LIMIT_BYTES}")
        for limit, value in LIMITS.items():
            self._connection.setlimit(limit, value)
        # Text that is not UTF-8 can be made with CAST; it must be comparable, not an error.
        self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self._connection.create_function("printf", -1, _printf, deterministic=True)
        self._connection.create_function("format", -1, _printf, deterministic=True)
        text = f"{now or datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
        for name, shown in (("timestamp", text), ("date", text[:10]), ("time", text[11:])):
            self._connection.create_function(f"current_{name}", 0, partial(str, shown), deterministic=True)
        self._connection.set_authorizer(self._authorize)
        self._connection.set_progress_handler(self._check_limits, STEPS_BETWEEN_CHECKS)
        self._start()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def execute(self, statement: str) -> Result:
        """Run one statement. Raises SqlFailure; the tables are then as they were before."""
        self._start()
        try:
            cursor = self._connection.execute(statement)
            rows = _fetch(cursor) if cursor.description else None
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise self._failure(str(error)) from error
        except MemoryError as error:
            raise SqlFailure(f"stopped: needs more than {HEAP_LIMIT_BYTES >> 20} MB", "refused") from error
        columns = tuple(column[0] for column in cursor.description or ())
        return Result(rows, columns, self._wrote, frozenset(self._reads))

    def tables(self) -> dict[str, Table]:
        """Every table and view by lower-case name, and indexes and triggers by what they are.

        Names, columns and rows only: types and constraints show in what they do to rows.
        """
        found: dict[str, Table] = {}
        # What is SQLite's own is left out: its tables by name, the indexes behind PRIMARY KEY by their missing text.
        schema = (
            "SELECT type, name, tbl_name, sql FROM sqlite_master "
            "WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
        )
        for kind, name, table, sql in self.execute(schema).rows or []:
            if kind in ("table", "view"):
                found[str(name).lower()] = self._content(str(kind), str(name))
            else:
                found[_definition(str(kind), str(table), str(sql))] = Table(str(kind), (), [])
        return found

    def count_empty(self, names: frozenset[str]) -> tuple[int, int]:
        """How many of the named tables have no row, and how many are tables at all."""
        tables = [
            str(name) for (name,) in self.execute("SELECT name FROM sqlite_master WHERE type = 'table'").rows or []
        ]
        named = [table for table in tables if table.lower() in names]
        return sum(not self.execute(f"SELECT 1 FROM {_quote(table)} LIMIT 1").rows for table in named), len(named)

    def columns(self) -> frozenset[str]:
        """The lower-case names of the columns of all tables."""
        names: set[str] = set()
        for (table,) in self.execute("SELECT name FROM sqlite_master WHERE type = 'table'").rows or []:
            names.update(self.execute(f"SELECT * FROM {_quote(str(table))} LIMIT 0").columns)
        return frozenset(name.lower() for name in names)

    def _content(self, kind: str, name: str) -> Table:
        try:
            result = self.execute(f"SELECT * FROM {_quote(name)}")
        except SqlFailure as failure:
            if failure.kind == "refused":
                raise
            return Table(kind, (str(failure),), [])  # a view whose table is gone
        if result.rows is None or len(result.rows) > ROW_LIMIT:
            raise SqlFailure(f"{name} holds more than {ROW_LIMIT:,} rows", "refused")
        columns = [column.lower() for column in result.columns]
        order = sorted(range(len(columns)), key=columns.__getitem__)
        rows = [tuple(row[place] for place in order) for row in result.rows]
        return Table(kind, tuple(columns[place] for place in order), rows)

    def _start(self) -> None:
        self._checks_left = STEP_LIMIT // STEPS_BETWEEN_CHECKS
        self._deadline = time.monotonic() + TIME_LIMIT_S
        self._refusal = ""
        self._wrote = False
        self._reads: set[str] = set()

    def _authorize(
        self, action: int, first: str | None, second: str | None, database: str | None, via: str | None
    ) -> int:
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in FORBIDDEN_FUNCTIONS:
            self._refusal = f"refused: {second}()"
        elif action in WRITES:
            # SQLite's own tables change with those they describe, and even when a query uses json_each().
            own = (first or "").startswith("sqlite_")
            self._wrote = self._wrote or not (own or database == "temp")
        elif action == sqlite3.SQLITE_READ:
            self._reads.add((first or "").lower())
        elif action not in READS and action not in HARMLESS:
            self._refusal = f"refused: {ACTION_NAMES.get(action, f'action {action}')}"
        return sqlite3.SQLITE_DENY if self._refusal else sqlite3.SQLITE_OK

    def _check_limits(self) -> bool:
        self._checks_left -= 1
        if self._checks_left < 0:
            self._refusal = f"stopped: needs more than {STEP_LIMIT:,} steps"
        elif time.monotonic() > self._deadline:
            self._refusal = f"stopped: takes more than {TIME_LIMIT_S:g} s"
        return bool(self._refusal)

    def _failure(self, message: str) -> SqlFailure:
        if self._refusal:
            return SqlFailure(self._refusal, "refused")
        if "too big" in message:
            return SqlFailure(f"stopped: {message}", "refused")
        return SqlFailure(message, "syntax" if SYNTAX_ERROR.search(message) else "error")


def split(script: str) -> Iterator[str]:
    """The statements of a script, without empty ones. Semicolons in strings and in triggers do not count."""
    script = readable(script)
    start = 0
    for semicolon in re.finditer(";", script):
        piece = script[start : semicolon.end()]
        if sqlite3.complete_statement(piece):
            start = semicolon.end()
            if without_comments(piece).strip(" \t\r\n;"):
                yield piece.strip()
    if without_comments(script[start:]).strip():
        yield script[start:].strip()


def readable(text: str) -> str:
    """The text without what neither SQLite nor Arrow takes: NULs and halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")


def without_comments(sql: str) -> str:
    """The text with each comment replaced by a space; what looks like one in a string or a name stays."""
    return re.sub(
        r"('[^']*'|\"[^\"]*\"|`[^`]*`)|--[^\n]*|/\*.*?(?:\*/|$)", lambda match: match[1] or " ", sql, flags=re.S
    )


def _fetch(cursor: sqlite3.Cursor) -> list[Row]:
    rows: list[Row] = []
    size = 0
    for row in cursor:
        rows.append(row)
        size += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
        if len(rows) > ROW_LIMIT:
            break
        if size > RESULT_LIMIT_BYTES:
            raise SqlFailure(f"stopped: the result is larger than {RESULT_LIMIT_BYTES // 1_000_000} MB", "refused")
    cursor.close()
    return rows


def _printf(template: str | None = None, *values: Cell) -> Cell:
    """SQLite's own printf(), without widths that it would write out for seconds in one step."""
    if re.search(r"%[-+ #,!.\d]*(?:\*|\d{6})", str(template)):
        raise ValueError("width too large")
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        marks = ", ".join("?" * (1 + len(values)))
        return connection.execute(f"SELECT printf({marks})", (template, *values)).fetchone()[0]  # type: ignore[no-any-return]


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _definition(kind: str, table: str, sql: str) -> str:
    """An index by table, columns and uniqueness, whatever its name; a trigger by its whole text."""
    text = re.sub(r"[\s\"`\[\]]+", " ", sql).lower().strip()
    if kind == "index":
        unique = "unique " if text.startswith("create unique") else ""
        text = unique + text.split(" on ", 1)[1].replace(" ", "")
    return f"{kind} of {table.lower()}: {text}"
