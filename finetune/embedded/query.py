"""One query, written in two dialects: the SQL that is taught, and the pipeline dialect the base model knows.

The pipeline dialect is ours. It borrows its looks from PRQL (`from cities | filter area > 20 | select {name}`)
and is made so that neither SQLite nor sqlglot accepts a line of it: what the base model has learned cannot
score by accident.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

Op = Literal["=", "!=", ">", "<", ">=", "<=", "between"]
Function = Literal["count", "count distinct", "max", "min", "avg", "sum"]

_PIPELINE_FUNCTIONS: dict[Function, str] = {
    "count": "count",
    "count distinct": "count_distinct",
    "max": "max",
    "min": "min",
    "avg": "average",
    "sum": "sum",
}
_MISTAKEN_OPS: dict[Op, tuple[Op, ...]] = {
    "=": ("!=",),
    "!=": ("=",),
    ">": (">=", "<"),
    "<": ("<=", ">"),
    ">=": (">", "<="),
    "<=": ("<", ">="),
    "between": (">=", "<="),
}
_MISTAKEN_FUNCTIONS: dict[Function, tuple[Function, ...]] = {
    "count": (),
    "count distinct": ("count",),
    "max": ("min", "avg"),
    "min": ("max", "avg"),
    "avg": ("sum", "max"),
    "sum": ("avg", "max"),
}


@dataclass(frozen=True)
class Filter:
    """`column op value`; for op "between", value to high, both included."""

    column: str
    op: Op
    value: str | int
    high: int | None = None

    def to_sql(self) -> str:
        if self.op == "between":
            return f"{self.column} BETWEEN {self.value} AND {self.high}"
        return f"{self.column} {self.op} {_literal(self.value)}"

    def to_lisp(self) -> str:
        if self.op == "between":
            return f"(BETWEEN {self.column} {self.value} {self.high})"
        return f"({self.op} {self.column} {_literal(self.value)})"

    def to_pipeline(self) -> str:
        if self.op == "between":
            return f"{self.column} in {self.value}..{self.high}"
        return f"{self.column} {'==' if self.op == '=' else self.op} {_literal(self.value)}"


@dataclass(frozen=True)
class Aggregate:
    """`function(column)`. A plain count has no column."""

    function: Function
    column: str = ""

    def to_sql(self) -> str:
        if self.function == "count distinct":
            return f"COUNT(DISTINCT {self.column})"
        return f"{self.function.upper()}({self.column or '*'})"

    def to_lisp(self) -> str:
        return f"({self.function.upper()} {self.column or '*'})"

    def to_pipeline(self) -> str:
        return f"{_PIPELINE_FUNCTIONS[self.function]} {self.column or 'this'}"


@dataclass(frozen=True)
class Order:
    """The first `limit` rows by `column`."""

    column: str
    descending: bool
    limit: int


@dataclass(frozen=True)
class Join:
    """Join `table` where `left` (a column of the query's own table) equals `right`, both qualified."""

    table: str
    left: str
    right: str


@dataclass(frozen=True)
class Query:
    """What a question asks for. With `group`, the output is the group column and the aggregate."""

    table: str
    select: tuple[str, ...] = ()
    aggregate: Aggregate | None = None
    filters: tuple[Filter, ...] = ()
    group: str = ""
    distinct: bool = False
    order: Order | None = None
    join: Join | None = None

    def to_sql(self) -> str:
        outputs = [*self.select, *([self.group] if self.group else [])]
        if self.aggregate:
            outputs.append(self.aggregate.to_sql())
        parts = [f"SELECT {'DISTINCT ' if self.distinct else ''}{', '.join(outputs)} FROM {self.table}"]
        if self.join:
            parts.append(f"JOIN {self.join.table} ON {self.join.left} = {self.join.right}")
        if self.filters:
            parts.append("WHERE " + " AND ".join(condition.to_sql() for condition in self.filters))
        if self.group:
            parts.append(f"GROUP BY {self.group}")
        if self.order:
            direction = "DESC" if self.order.descending else "ASC"
            parts.append(f"ORDER BY {self.order.column} {direction} LIMIT {self.order.limit}")
        return " ".join(parts)

    def to_pipeline(self) -> str:
        """The same query in the base model's dialect: one line, steps in the order they are carried out."""
        steps = [f"from {self.table}"]
        if self.join:
            steps.append(f"join {self.join.table} ({self.join.left} == {self.join.right})")
        if self.filters:
            steps.append("filter " + " && ".join(condition.to_pipeline() for condition in self.filters))
        if self.group and self.aggregate:
            steps.append(f"group {{{self.group}}} (aggregate {{{self.aggregate.to_pipeline()}}})")
        elif self.aggregate:
            steps.append(f"aggregate {{{self.aggregate.to_pipeline()}}}")
        if self.order:
            steps.append(f"sort {{{'-' if self.order.descending else '+'}{self.order.column}}}")
            steps.append(f"take {self.order.limit}")
        if self.select:
            steps.append(f"select {{{', '.join(self.select)}}}")
        if self.distinct:
            steps.append("unique")
        return " | ".join(steps)

    def to_lisp(self) -> str:
        """The same query as one list of lists, operators first."""
        outputs = [*self.select, *([self.group] if self.group else [])]
        if self.aggregate:
            outputs.append(self.aggregate.to_lisp())
        parts = [f"SELECT {'DISTINCT ' if self.distinct else ''}({' '.join(outputs)})", f"(FROM {self.table})"]
        if self.join:
            parts.append(f"(JOIN {self.join.table} (= {self.join.left} {self.join.right}))")
        if self.filters:
            parts.append(f"(WHERE {' '.join(condition.to_lisp() for condition in self.filters)})")
        if self.group:
            parts.append(f"(GROUP {self.group})")
        if self.order:
            direction = "DESC" if self.order.descending else "ASC"
            parts.append(f"(ORDER {self.order.column} {direction}) (LIMIT {self.order.limit})")
        return f"({' '.join(parts)})"

    def near_misses(self, columns: tuple[str, ...]) -> Iterator["Query"]:
        """Queries a careless reader would write instead: a filter dropped or turned around, another column.

        A row of the data set is only kept if each of these gives a different result, so that a wrong
        answer cannot pass by coincidence. `columns` are the names that could be mistaken for one another.
        """
        for index, condition in enumerate(self.filters):
            others = self.filters[:index], self.filters[index + 1 :]
            yield replace(self, filters=others[0] + others[1])
            for op in _MISTAKEN_OPS[condition.op]:
                yield replace(self, filters=(*others[0], replace(condition, op=op), *others[1]))
            if isinstance(condition.value, int):
                for column in columns:
                    if column != condition.column:
                        yield replace(self, filters=(*others[0], replace(condition, column=column), *others[1]))
        if self.aggregate:
            for function in _MISTAKEN_FUNCTIONS[self.aggregate.function]:
                yield replace(self, aggregate=replace(self.aggregate, function=function))
            if self.aggregate.column:
                for column in columns:
                    if column != self.aggregate.column:
                        yield replace(self, aggregate=replace(self.aggregate, column=column))
        if self.order:
            yield replace(self, order=replace(self.order, descending=not self.order.descending))
            for column in columns:
                if column != self.order.column:
                    yield replace(self, order=replace(self.order, column=column))
        if self.distinct:
            yield replace(self, distinct=False)


def _literal(value: str | int) -> str:
    return str(value) if isinstance(value, int) else f"'{value}'"
