"""The classes in report.html: which was taken for which, as a picture, and how each fared, as a table. Pure.

The picture is in pixels, one unit each: it does not stretch with the page, but can be scrolled.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from finetune.report import SIDES

MANY = 60
"""With more classes than that, only the MOST_CONFUSED are drawn."""
MOST_CONFUSED = 40
THE_REST = "other classes"
"""The column of answers that name a class which is not drawn."""
WIDTH, LARGEST, SMALLEST = 940, 44, 13
"""Cells get as large as fits WIDTH, the page's, within limits."""
CHARACTER = 6
"""Width of an average character of the names."""
LONGEST_NAME = 28
GAP = 6
"""In front of the columns that are no class."""
SIDE_BY_SIDE = 9
"""With more columns the pictures are too wide to stand side by side."""
FAINTEST = 0.14
DARK = 0.55
"""A cell darker than that has light text."""
PAIRS_NAMED = 5
OPEN = 15
"""Rows of the table that stand open."""
LAST = 2.0
"""Where a class without F1 is sorted: behind the best."""

Counts = dict[tuple[str, str], int]


@dataclass(frozen=True)
class Label:
    """A name on an axis, in the middle of its row or column. `full` is not cut."""

    at: float
    text: str
    full: str


@dataclass(frozen=True)
class Cell:
    """So many rows of one class that got one answer: `share` of the class, `right` or wrong. `count` where it fits."""

    x: float
    y: float
    right: bool
    opacity: float
    count: str
    text: str

    @property
    def dark(self) -> bool:
        return self.opacity > DARK


@dataclass(frozen=True)
class Matrix:
    """One confusion, drawn: right classes downwards, answers across."""

    side: str
    left: int
    top: int
    size: int
    width: int
    height: int
    rows: list[Label]
    columns: list[Label]
    grid: str
    cells: list[Cell]


@dataclass(frozen=True)
class ClassRow:
    """A class in the table, by side: its recall and F1 (0 to 1, None without examples). `points` is F1's change."""

    name: str
    rows: int
    recall: dict[str, float | None]
    f1: dict[str, float | None]
    points: float | None


def view_classes(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """All that the page shows of the classes; None for a task without, or if nothing was measured."""
    if not metrics.get("classes"):
        return None
    counts = {side: _counts(metrics["confusion"][side]) for side in SIDES if metrics["confusion"][side] is not None}
    last = list(counts)[-1]
    everything, others = tuple(metrics["classes"]), tuple(metrics["others"])
    drawn = most_confused(everything, counts[last]) if len(everything) > MANY else everything
    used = {answer for pairs in counts.values() for (_, answer) in pairs}
    columns = (
        *drawn,
        *([THE_REST] if len(drawn) < len(everything) else []),
        *(name for name in others if name in used),
    )
    table = class_rows(metrics["per_class"])
    return {
        "total": len(everything),
        "drawn": len(drawn),
        "the_rest": THE_REST,
        "last": last,
        "matrices": [draw(side, drawn, columns, pairs) for side, pairs in counts.items()],
        "together": len(columns) <= SIDE_BY_SIDE,
        "pairs": [
            (expected, answer, number, sum(count for (right, _), count in counts[last].items() if right == expected))
            for (expected, answer), number in wrong_pairs(counts[last], everything)[:PAIRS_NAMED]
        ],
        "sides": list(counts),
        "open": table if len(table) <= OPEN + 3 else table[:OPEN],
        "folded": [] if len(table) <= OPEN + 3 else table[OPEN:],
    }


def most_confused(classes: Sequence[str], counts: Counts) -> tuple[str, ...]:
    """The MOST_CONFUSED classes that were most often taken for another, or another for them, in the order of all."""
    wrong = Counter(chain.from_iterable([*pair] * number for pair, number in counts.items() if pair[0] != pair[1]))
    chosen = set(sorted(classes, key=lambda name: -wrong[name])[:MOST_CONFUSED])
    return tuple(name for name in classes if name in chosen)


def wrong_pairs(counts: Counts, classes: Sequence[str]) -> list[tuple[tuple[str, str], int]]:
    """Which class was taken for which other, most often first."""
    known = set(classes)
    found = [(pair, number) for pair, number in counts.items() if pair[0] != pair[1] and pair[1] in known]
    return sorted(found, key=lambda item: -item[1])


def class_rows(per_class: Mapping[str, Any]) -> list[ClassRow]:
    """The table, the class told worst at the last measurement first."""
    sides = {side: entries for side, entries in per_class.items() if entries is not None}
    table = []
    for entries in zip(*sides.values(), strict=True):
        found = dict(zip(sides, entries, strict=True))
        recall, f1 = ({side: entry[name] for side, entry in found.items()} for name in ("recall", "f1"))
        before, after = f1.get("before"), f1.get("after")
        points = (after - before) * 100 if before is not None and after is not None else None
        table.append(ClassRow(entries[0]["class"], entries[0]["rows"], recall, f1, points))
    last = list(sides)[-1]
    return sorted(table, key=lambda row: (LAST if row.f1[last] is None else row.f1[last], -row.rows))


def draw(side: str, classes: Sequence[str], columns: Sequence[str], counts: Counts) -> Matrix:
    """Lay out the rows of `classes`. An answer that has no column of its own counts as THE_REST."""
    left, top = (CHARACTER * max(map(len, map(_short, names))) + 12 for names in (classes, columns))
    size = max(SMALLEST, min(LARGEST, (WIDTH - left - GAP) // len(columns)))
    known = set(classes)
    first_other = next((place for place, name in enumerate(columns) if name not in known), len(columns))
    xs = {name: place * size + (GAP if place >= first_other else 0) for place, name in enumerate(columns)}
    width, height = max(xs.values()) + size, len(classes) * size
    cells = []
    for row, expected in enumerate(classes):
        answers: Counter[str] = Counter()
        for (right, answer), number in counts.items():
            if right == expected:
                answers[answer if answer in xs else THE_REST] += number
        total = answers.total()
        for answer, number in answers.items():
            cells.append(_cell(xs[answer], row * size, size, expected, answer, number, total))
    return Matrix(
        side, left, top, size, left + width + 1, top + height + 1,
        rows=[Label((place + 0.5) * size, _short(name), name) for place, name in enumerate(classes)],
        columns=[Label(x + size / 2, _short(name), name) for name, x in xs.items()],
        grid="".join(f"M{x} 0h{size}v{height}h-{size}z" for x in xs.values())
        + "".join(f"M0 {place * size}H{width}" for place in range(1, len(classes))),
        cells=cells,
    )  # fmt: skip


def _cell(x: int, y: int, size: int, expected: str, answer: str, number: int, total: int) -> Cell:
    roomy = size >= 4 + CHARACTER * len(str(number))
    text = f"{expected}, answered {answer}: {number:,} of {total:,} ({number / total:.0%})"
    opacity = FAINTEST + (1 - FAINTEST) * number / total
    return Cell(x, y, expected == answer, round(opacity, 3), str(number) if roomy else "", text)


def _counts(pairs: Sequence[Mapping[str, Any]]) -> Counts:
    return {(pair["expected"], pair["answered"]): pair["rows"] for pair in pairs}


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
