"""Whether two SQL results are the same, and the first thing in which they differ.

Rows are compared by place: the names of columns do not matter, how often a row occurs does, and the order
of rows only where it is asked for. A whole number and the same number as REAL are equal; numbers with a
fraction are equal within RELATIVE_TOLERANCE; whole numbers that differ are never equal, however large. Text
equals only the same text: '3' is not 3.
"""

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from finetune.tasks.sqlite_sandbox import Cell, Row, Table

RELATIVE_TOLERANCE = 1e-6
ABSOLUTE_TOLERANCE = 1e-9
"""For differences of almost equal numbers, which should be 0."""

SHOWN_CHARACTERS = 120


def difference(gold: Sequence[Row], predicted: Sequence[Row], ordered: bool) -> str:
    """The first difference of two results in words, "" if there is none."""
    if len(gold) != len(predicted):
        return f"{_count(len(predicted), 'row')} instead of {len(gold)}"
    if gold and len(gold[0]) != len(predicted[0]):
        return f"{_count(len(predicted[0]), 'column')} instead of {len(gold[0])}"
    if ordered:
        for number, (expected, got) in enumerate(zip(gold, predicted, strict=True), start=1):
            if not _same_row(expected, got):
                return f"row {number} is {_show(got)} instead of {_show(expected)}"
        return ""
    unmatched = _unmatched(gold, predicted)
    return f"row {_show(unmatched[1])} instead of {_show(unmatched[0])}" if unmatched else ""


def difference_of_tables(gold: Mapping[str, Table], predicted: Mapping[str, Table]) -> str:
    """The first difference of what two databases hold in words, "" if there is none."""
    for name in sorted(gold.keys() - predicted.keys()):
        return f"no {_called(name, gold[name])}"
    for name in sorted(predicted.keys() - gold.keys()):
        return f"a needless {_called(name, predicted[name])}"
    for name, table in gold.items():
        other = predicted[name]
        if table.kind != other.kind:
            return f"a {other.kind} {name} instead of a {table.kind}"
        if table.columns != other.columns:
            return (
                f"{_called(name, other)} has columns {', '.join(other.columns)} instead of {', '.join(table.columns)}"
            )
        unlike = difference(table.rows, other.rows, ordered=False)
        if unlike:
            return f"{_called(name, other)}: {unlike}"
    return ""


def _unmatched(gold: Sequence[Row], predicted: Sequence[Row]) -> tuple[Row, Row] | None:
    """Of as many rows on both sides, a gold row and a predicted row without partner."""
    surplus = Counter(gold)
    surplus.subtract(predicted)
    # What is not the same to the last digit may still be within the tolerance. Only rows that agree in all
    # other cells can be partners; both sides are in order, so that a partner stands near the front.
    candidates: dict[Row, list[Row]] = {}
    for row in sorted((-surplus).elements(), key=_numbers):
        candidates.setdefault(_without_numbers(row), []).append(row)
    for row in sorted(surplus.elements(), key=_numbers):
        group = candidates.get(_without_numbers(row), [])
        partner = next((place for place, other in enumerate(group) if _same_row(row, other)), None)
        if partner is None:
            return row, next(itertools.chain(group, *candidates.values()))
        del group[partner]
    return None


def _same_row(one: Row, other: Row) -> bool:
    return all(_same_cell(a, b) for a, b in zip(one, other, strict=True))


def _same_cell(one: Cell, other: Cell) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        if one == other:
            return True
        if _is_whole(one) and _is_whole(other):
            return False
        return math.isclose(one, other, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)
    return type(one) is type(other) and one == other


def _is_whole(number: int | float) -> bool:
    return isinstance(number, int) or number.is_integer()


def _numbers(row: Row) -> tuple[int | float, ...]:
    return tuple(cell for cell in row if isinstance(cell, int | float))


def _without_numbers(row: Row) -> Row:
    # 0 stands for any number: it is equal to no text, blob or NULL.
    return tuple(0 if isinstance(cell, int | float) else cell for cell in row)


def _called(name: str, table: Table) -> str:
    return f"{table.kind} {name}" if table.kind in ("table", "view") else name


def _show(row: Row) -> str:
    text = "(" + ", ".join("NULL" if cell is None else repr(cell) for cell in row) + ")"
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
