"""A sqlglot tree of another dialect, changed into what SQLite can run: schema names, dates, types.

sqlglot writes most of a statement for SQLite by itself. What it leaves as it is stands in REWRITES.
"""

from collections.abc import Callable
from typing import cast

from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

SQLGLOT_FAILURES = (
    SqlglotError, ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip
"""What sqlglot raises on text that is no SQL: not only its own errors, it also stumbles over what is missing."""


def to_sqlite(tree: exp.Expr, explicit_nulls: bool) -> str | None:
    """The SQLite text of a statement read in another dialect (the tree is used up).

    "" if SQLite needs nothing for it, None if sqlglot would have to leave something out. Unless
    `explicit_nulls`, NULLs are ordered as SQLite orders them: each dialect has a default of its own.
    """
    if isinstance(tree, exp.Use | exp.Set) or (
        isinstance(tree, exp.Create | exp.Drop) and tree.kind in ("SCHEMA", "DATABASE")
    ):
        return ""
    try:
        for node in reversed(list(tree.walk())):  # what is inside first
            changed = _rewrite(node)
            if node is tree:
                tree = changed
            elif changed is not node:
                node.replace(changed)
        if not explicit_nulls:
            for ordered in tree.find_all(exp.Ordered):
                ordered.set("nulls_first", not ordered.args.get("desc"))
        return str(tree.sql("sqlite", unsupported_level=ErrorLevel.RAISE, comments=False, copy=False))
    except SQLGLOT_FAILURES:
        return None


def _rewrite(node: exp.Expr) -> exp.Expr:
    for kinds, rewrite in REWRITES:
        if isinstance(node, kinds):
            return rewrite(node)
    return node


def _unqualified(node: exp.Expr) -> exp.Expr:
    """`s.t` -> `t`: SQLite has no schemas, and data sets name the same table with and without one."""
    node.set("db", None)
    node.set("catalog", None)
    return node


def _unparenthesised(node: exp.Expr) -> exp.Expr:
    """`(SELECT ..) UNION (SELECT ..)` without the parentheses, which SQLite does not take."""
    for side in ("this", "expression"):
        operand = node.args.get(side)
        if isinstance(operand, exp.Subquery):
            query = operand.unnest()
            plain = isinstance(query, exp.Select) and not (query.args.get("order") or query.args.get("limit"))
            node.set(side, query if plain else exp.select("*").from_(operand))
    return node


def _column_type(node: exp.Expr) -> exp.Expr:
    if node.this in (exp.DType.SERIAL, exp.DType.BIGSERIAL, exp.DType.SMALLSERIAL):
        return exp.DataType.build("INT")
    if any(not parameter.name.isdigit() for parameter in node.expressions):  # ENUM('a', 'b'), NVARCHAR(MAX)
        return exp.DataType.build("TEXT")
    return node


def _without(*names: str) -> Callable[[exp.Expr], exp.Expr]:
    def rewrite(node: exp.Expr) -> exp.Expr:
        for name in names:
            node.set(name, None)
        return node

    return rewrite


UNITS = {
    "YEAR": (1, "YEAR"), "QUARTER": (3, "MONTH"), "MONTH": (1, "MONTH"), "WEEK": (7, "DAY"), "DAY": (1, "DAY"),
    "HOUR": (1, "HOUR"), "MINUTE": (1, "MINUTE"), "SECOND": (1, "SECOND"),
}  # fmt: skip
PARTS = {
    "YEAR": "%Y", "MONTH": "%m", "DAY": "%d", "HOUR": "%H", "MINUTE": "%M", "SECOND": "%S",
    "DOW": "%w", "DOY": "%j", "WEEK": "%W", "EPOCH": "%s",
}  # fmt: skip
STARTS = {"YEAR": "%Y-01-01", "MONTH": "%Y-%m-01", "DAY": "%Y-%m-%d", "HOUR": "%Y-%m-%d %H:00:00"}
NOW = {"NOW": exp.CurrentTimestamp, "GETDATE": exp.CurrentTimestamp, "CURDATE": exp.CurrentDate}
PART_FUNCTIONS = {
    exp.Year: "YEAR", exp.Month: "MONTH", exp.Day: "DAY", exp.Hour: "HOUR", exp.Minute: "MINUTE",
    exp.Second: "SECOND", exp.Quarter: "QUARTER", exp.DayOfMonth: "DAY", exp.DayOfYear: "DOY",
}  # fmt: skip

ADDITIONS = (exp.Add, exp.DateAdd, exp.DatetimeAdd, exp.TimestampAdd)
SUBTRACTIONS = (exp.Sub, exp.DateSub, exp.DatetimeSub, exp.TimestampSub)


def _unit(node: exp.Expr | None) -> str:
    return node.name.upper().removesuffix("S") if node is not None else "DAY"


def _shifted(node: exp.Expr) -> exp.Expr:
    """Date plus or minus an interval -> DATE(date, '-1 MONTH')."""
    amount, unit = node.expression, node.args.get("unit")
    if isinstance(amount, exp.Interval):
        amount, unit = amount.this, amount.args.get("unit")
    elif isinstance(node, exp.Add | exp.Sub):
        return node
    factor, name = UNITS.get(_unit(unit), (0, ""))
    if not factor or amount is None:
        return node
    if isinstance(node, SUBTRACTIONS):
        factor = -factor
    negated = isinstance(amount, exp.Neg)
    number = amount.this if negated else amount
    if isinstance(number, exp.Literal) and number.name.lstrip("-").isdigit():
        modifier: exp.Expr = exp.Literal.string(f"{int(number.name) * (-factor if negated else factor):+d} {name}")
    else:
        modifier = exp.DPipe(this=exp.paren(amount * factor), expression=exp.Literal.string(f" {name}"))
    has_time = name in ("HOUR", "MINUTE", "SECOND") or isinstance(node.this, exp.CurrentTimestamp)
    return exp.func("DATETIME" if has_time else "DATE", node.this, modifier)


def _part(node: exp.Expr) -> exp.Expr:
    """EXTRACT(YEAR FROM x), YEAR(x) -> the number in that place of the date."""
    if isinstance(node, exp.Extract):
        part, value = _unit(node.this), node.expression
    else:
        part, value = PART_FUNCTIONS[cast("type[exp.Func]", type(node))], node.this
    if isinstance(value, exp.TsOrDsToDate):
        value = value.this
    if part == "QUARTER":
        return exp.cast(exp.paren(_number("%m", value) + 2) / 3, "INT")
    return _number(PARTS[part], value) if part in PARTS else node


def _number(code: str, value: exp.Expr) -> exp.Expr:
    return exp.cast(exp.func("STRFTIME", exp.Literal.string(code), value), "INT")


def _start_of(node: exp.Expr) -> exp.Expr:
    code = STARTS.get(_unit(node.args.get("unit")))
    return exp.func("STRFTIME", exp.Literal.string(code), node.this) if code else node


def _known_function(node: exp.Expr) -> exp.Expr:
    if node.name.upper() == "ISNULL" and len(node.expressions) == 2:
        return exp.func("COALESCE", *node.expressions)
    kind = NOW.get(node.name.upper())
    return kind() if kind else node


REWRITES: tuple[tuple[type[exp.Expr] | tuple[type[exp.Expr], ...], Callable[[exp.Expr], exp.Expr]], ...] = (
    ((exp.Table, exp.Column), _unqualified),
    (exp.SetOperation, _unparenthesised),
    (exp.DataType, _column_type),
    (exp.TruncateTable, lambda node: exp.Delete(this=node.expressions[0])),
    (exp.Drop, _without("cascade")),
    (exp.Create, _without("replace", "properties")),
    (exp.Anonymous, _known_function),
    ((*ADDITIONS, *SUBTRACTIONS), _shifted),
    ((exp.Extract, *PART_FUNCTIONS), _part),
    ((exp.DateTrunc, exp.TimestampTrunc), _start_of),
    (
        exp.TimestampDiff,
        lambda node: exp.DateDiff(this=node.this, expression=node.expression, unit=node.args.get("unit")),
    ),
    (exp.Left, lambda node: exp.func("SUBSTR", node.this, exp.Literal.number(1), node.expression)),
    (exp.Right, lambda node: exp.func("SUBSTR", node.this, -node.expression)),
)
