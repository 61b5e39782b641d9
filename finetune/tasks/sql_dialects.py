"""SQL of other dialects as SQLite says it, and one way of writing for SQL that differs only in formatting.

SQLite is always asked first: most statements need nothing of this. What it refuses is read by sqlglot in
each of DIALECTS and written out for SQLite (sql_rewrites.py helps).

sqlglot is lenient: a bare word, `SELECT {name}` or `UPDATE the table` all parse. parse() is stricter, so
that only a statement counts as SQL. A query that begins with FROM (DuckDB's, or pipe syntax) does not:
none of the dialects here has it.
"""

import logging
import re
from collections.abc import Iterator

import sqlglot
from sqlglot import exp
from sqlglot.errors import ErrorLevel

from finetune.tasks.sql_rewrites import SQLGLOT_FAILURES, to_sqlite
from finetune.tasks.sqlite_sandbox import without_comments

# sqlglot logs a warning for each statement that it gives up on: here that is an ordinary answer.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

DIALECTS = ("postgres", "mysql", "tsql", "oracle")

FIRST_WORD = re.compile(
    r"[\s(]*(?:select|with|insert|replace|update|delete|merge|create|alter|drop|truncate|grant|revoke|use|set)\b",
    re.IGNORECASE,
)

OTHER_STATEMENTS = (
    exp.SetOperation, exp.Create, exp.Alter, exp.Drop, exp.Merge, exp.TruncateTable, exp.Grant, exp.Revoke,
)  # fmt: skip
"""Statements of which sqlglot asks enough by itself."""

MISREAD = re.compile(
    r"\bas\s+(?:date|datetime|timestamp)\b|^\s*create\b.*\b(?:(?:big|small)?serial|identity|auto_increment)\b",
    re.I | re.S,
)
"""SQL that SQLite runs, but not as meant: CAST(x AS DATE) is a number there, SERIAL does not count up."""


def forms(statement: str) -> Iterator[str]:
    """The SQLite texts to try for one statement, most faithful first. "" means that there is nothing to do."""
    seen = set()
    if not MISREAD.search(statement):
        seen.add(statement)
        yield statement
    for dialect in DIALECTS:
        tree = parse(statement, dialect)
        text = None if tree is None else to_sqlite(tree, explicit_nulls="nulls" in statement.lower())
        if text is not None and text not in seen:
            seen.add(text)
            yield text
    if statement not in seen:
        yield statement


def is_sql(statement: str) -> bool:
    """True if the statement is one in any of the dialects."""
    return any(parse(statement, dialect) for dialect in ("sqlite", *DIALECTS))


def parse(statement: str, dialect: str) -> exp.Expr | None:
    """The tree of one statement, or None if it is not one in this dialect."""
    if not FIRST_WORD.match(without_comments(statement)):
        return None
    try:
        trees = sqlglot.parse(statement, read=dialect, error_level=ErrorLevel.IMMEDIATE)
    except SQLGLOT_FAILURES:
        return None
    tree = trees[0].unnest() if len(trees) == 1 and trees[0] else None
    return tree if tree is not None and _is_statement(tree) else None


def normalise(sql: str, columns: frozenset[str]) -> str:
    """The statement in one way of writing: case, spacing, quoting, comments, optional words.

    `columns` are the lower-case names of the columns there are: a double-quoted word that is neither one of
    them nor an alias is a string, as SQLite reads it. Text that sqlglot cannot read is only freed of
    differences in case and spacing.
    """
    statement = sql.strip().rstrip("; \n")
    plain = " ".join(statement.lower().split())
    for dialect in ("sqlite", *DIALECTS):
        tree = parse(statement, dialect)
        if tree is not None:
            break
    else:
        return plain
    nodes = list(tree.walk())
    known = columns | {node.alias.lower() for node in nodes if isinstance(node, exp.Alias | exp.TableAlias)}
    for node in nodes:
        if isinstance(node, exp.Column):
            if node.this.args.get("quoted") and not node.table and node.name.lower() not in known:
                node.replace(exp.Literal.string(node.name))
        elif isinstance(node, exp.Identifier):
            node.set("this", node.name.lower())
            node.set("quoted", False)
        elif isinstance(node, exp.Join) and node.kind.upper() == "INNER":
            node.set("kind", None)
        elif isinstance(node, exp.Ordered) and not node.args.get("desc"):
            node.set("desc", None)
    return _write(tree) or plain


def with_order_keys(query: str, width: int) -> tuple[str, list[int]] | None:
    """A SQLite query of `width` columns with its ORDER BY keys among them, and where they stand.

    None if it is not ordered, or if its keys cannot be shown without changing its rows.
    """
    tree = parse(query, "sqlite")
    order = tree.args.get("order") if tree is not None else None
    if not isinstance(tree, exp.Query) or order is None:
        return None
    names = [] if tree.is_star else [name.lower() for name in tree.named_selects]
    places = []
    added = 0
    for ordered in order.expressions:
        key = ordered.this
        if isinstance(key, exp.Literal) and key.is_int:
            places.append(int(key.name) - 1)
        elif isinstance(key, exp.Column) and not key.table and key.name.lower() in names:
            places.append(names.index(key.name.lower()))
        elif isinstance(tree, exp.Select) and not tree.args.get("distinct"):
            tree.select(key.copy(), copy=False)
            places.append(width + added)
            added += 1
        else:
            return None
    text = _write(tree)
    return (text, places) if text else None


def _write(tree: exp.Expr) -> str | None:
    try:
        return str(tree.sql("sqlite", comments=False, copy=False))
    except SQLGLOT_FAILURES:
        return None


def _is_statement(tree: exp.Expr) -> bool:
    if any(tree.find_all(exp.Struct, exp.Command)):
        return False
    if isinstance(tree, exp.Select | exp.Update | exp.Set):
        return bool(tree.expressions)
    if isinstance(tree, exp.Use):
        return isinstance(tree.this, exp.Table)
    if isinstance(tree, exp.Delete):
        return not any(table.alias for table in tree.args.get("tables") or ())
    if isinstance(tree, exp.Insert):
        return tree.expression is not None
    return isinstance(tree, OTHER_STATEMENTS)
