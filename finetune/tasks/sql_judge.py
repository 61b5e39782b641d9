"""Judge one predicted SQL statement against the gold, by running both.

Each runs in a database of its own that holds only the row's schema. The rules:

* The answer is read as it stands, out of one markdown fence if there is one (see clean). Then all of it has
  to be SQL, and all of it has to run. Of several statements the last result counts.
* A gold that only reads is compared by its rows: as a list if it has an ORDER BY at its top level (rows
  with equal keys may stand in any order), else as a multiset. The prediction must not change the tables.
* A gold that changes tables is compared by what the tables and views hold afterwards, and also by its rows
  if it ends in a query.
* Nothing can be said about the model, and the row counts for nothing, if schema or gold do not execute, if
  the gold finds nothing (no row, or NULL alone) or gives its zero only because a table is empty, or if it is
  meant to change something and changes nothing: any number of wrong queries would do the same. What is
  scorable depends on the gold alone, so before and after are measured on the same rows.
"""

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from finetune.tasks.sql_compare import difference, difference_of_tables
from finetune.tasks.sql_dialects import forms, is_sql, normalise, with_order_keys
from finetune.tasks.sql_verdicts import CORRECT, DOES_NOT_EXECUTE, NOT_SQL, UNSCORABLE, WRONG_RESULT, Judgement
from finetune.tasks.sqlite_sandbox import ROW_LIMIT, Result, Row, Sandbox, SqlFailure, Table, split, without_comments


@dataclass(frozen=True)
class Outcome:
    """What a script did. `rows` are those of its last query, `query` is that query in SQLite's words."""

    rows: list[Row] | None = None
    query: str = ""
    wrote: bool = False
    reads: frozenset[str] = frozenset()


class NotSqlError(Exception):
    """Text that is no SQL statement in any dialect."""


class UselessGoldError(Exception):
    """A gold that cannot tell a right prediction from a wrong one."""


def judge(completion: str, gold: str, schema: str) -> Judgement:
    """What is to be said of `completion`, if `gold` is right and both run on `schema`."""
    now = datetime.now(UTC)
    with Sandbox(now) as gold_database, Sandbox(now) as database:
        try:
            expected, tables = _run_gold(gold_database, gold, schema)
        except UselessGoldError as reason:
            return Judgement(UNSCORABLE, _one_line(reason))
        prediction = clean(completion)
        try:
            run(database, schema)
            got = run(database, prediction)
            unlike = _unlike_tables(tables, database, got) or _unlike_rows(gold_database, expected, got)
        except NotSqlError as reason:
            return Judgement(NOT_SQL, _one_line(reason))
        except SqlFailure as failure:
            return Judgement(DOES_NOT_EXECUTE, _one_line(failure))
        if unlike:
            return Judgement(WRONG_RESULT, unlike)
        columns = gold_database.columns()
        return Judgement(CORRECT, exact=normalise(prediction, columns) == normalise(gold, columns))


def clean(completion: str) -> str:
    """The SQL in a model's answer.

    Taken off: one markdown fence, closed or cut off, with what is said around it; a leading "SQL:". Two
    fences, or prose without a fence, stay: which part is the answer would be a guess.
    """
    text = completion.strip()
    if text.count("```") in (1, 2):
        before, inside = re.split(r"```(?:[a-z]+[ \t]*(?=\n)|sql\b)?", text, maxsplit=1, flags=re.IGNORECASE)
        text = inside.split("```")[0].strip() or before.strip()
    return re.sub(r"^sql(?: query)?\s*:\s*", "", text, flags=re.IGNORECASE)


def run(database: Sandbox, script: str) -> Outcome:
    """Run all statements of a script. Raises NotSqlError or SqlFailure at the first that cannot be run."""
    statements = list(split(script))
    if not statements:
        raise NotSqlError("no statement")
    outcome = Outcome()
    for statement in statements:
        query, result = _run_one(database, statement)
        is_query = result.rows is not None and not result.wrote
        outcome = Outcome(
            rows=result.rows if is_query else outcome.rows,
            query=query if is_query else outcome.query,
            wrote=outcome.wrote or result.wrote,
            reads=outcome.reads | result.reads,
        )
    return outcome


def _run_one(database: Sandbox, statement: str) -> tuple[str, Result]:
    """The first form of a statement that SQLite runs, and what it gives."""
    failure = SqlFailure("", "syntax")
    for form in forms(statement):
        if not form:
            return "", Result()
        try:
            return form, database.execute(form)
        except SqlFailure as error:
            if error.kind == "refused":
                raise
            if form == statement:
                failure = error
    if failure.kind == "syntax" and not is_sql(statement):
        raise NotSqlError(str(failure))
    raise failure


def _run_gold(database: Sandbox, gold: str, schema: str) -> tuple[Outcome, Mapping[str, Table] | None]:
    """What the gold gives, and the tables it leaves behind if it changes any. Raises if that is no use."""
    with _blaming("the schema does not run"):
        run(database, schema)
        before = database.tables()
    with _blaming("the gold does not run"):
        expected = run(database, gold)
        after = database.tables() if expected.wrote else {}
    if expected.wrote:
        changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
        if not changed:
            raise UselessGoldError("the gold changes nothing")
        if all(name in after and after[name].kind == "view" and not after[name].rows for name in changed):
            raise UselessGoldError("the view that the gold makes is empty")
        return expected, after
    if expected.rows is None:
        raise UselessGoldError("the gold gives no result")
    if len(expected.rows) > ROW_LIMIT:
        raise UselessGoldError(f"the gold gives more than {ROW_LIMIT:,} rows")
    if all(value is None for row in expected.rows for value in row):
        raise UselessGoldError("the gold finds nothing")
    # SQLite does not report the tables of a JOIN .. USING, but those are named in the query.
    named = re.findall(r"\w+", expected.query.lower())
    empty, tables = database.count_empty(expected.reads.union(named))
    if empty and (empty == tables or _is_blank(expected.rows)):
        raise UselessGoldError("the gold reads empty tables")
    return expected, None


@contextlib.contextmanager
def _blaming(what: str) -> Iterator[None]:
    try:
        yield
    except (NotSqlError, SqlFailure) as error:
        raise UselessGoldError(f"{what}: {error}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _is_blank(rows: list[Row]) -> bool:
    """True for one row of NULLs and zeros, which SUM and COUNT give of no rows."""
    return len(rows) == 1 and not any(rows[0])


def _unlike_tables(tables: Mapping[str, Table] | None, database: Sandbox, got: Outcome) -> str:
    if tables is None:
        return "changes the tables" if got.wrote else ""
    return difference_of_tables(tables, database.tables())


def _unlike_rows(gold_database: Sandbox, expected: Outcome, got: Outcome) -> str:
    if expected.rows is None:
        return ""
    if got.rows is None:
        return "gives no result"
    if not is_ordered(expected.query):
        return difference(expected.rows, got.rows, ordered=False)
    unlike = difference(expected.rows, got.rows, ordered=True)
    if unlike and not difference(expected.rows, got.rows, ordered=False):
        return "" if _differ_in_ties(gold_database, expected, got.rows) else f"order: {unlike}"
    return unlike


def is_ordered(query: str) -> bool:
    """True if a query has an ORDER BY outside all parentheses."""
    depth = 0
    pieces = r"'[^']*'|\"[^\"]*\"|`[^`]*`|\[[^\]]*\]|[()]|\border\s+by\b"
    for piece in re.finditer(pieces, without_comments(query), re.IGNORECASE):
        depth += {"(": 1, ")": -1}.get(piece[0], 0)
        if depth == 0 and piece[0][0] in "oO":
            return True
    return False


def _differ_in_ties(gold_database: Sandbox, expected: Outcome, got: list[Row]) -> bool:
    """True if rows stand in another order only where the keys of the gold's ORDER BY are equal."""
    rows = expected.rows or []
    keyed = with_order_keys(expected.query, len(rows[0]))
    if keyed is None or expected.wrote:
        return False
    query, places = keyed
    try:
        with_keys = gold_database.execute(query).rows or []
    except SqlFailure:  # a key that cannot stand among the columns
        return False
    if [row[: len(rows[0])] for row in with_keys] != rows:
        return False
    start = 0
    for _, tie in itertools.groupby(with_keys, key=lambda row: [row[place] for place in places]):
        end = start + sum(1 for _ in tie)
        if difference(rows[start:end], got[start:end], ordered=False):
            return False
        start = end
    return True
