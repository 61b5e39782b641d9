"""The geometry of report.html's charts: numbers in, places in percent and path data out. Pure.

The plots stretch to the width of the page while their text keeps its size, so nothing here is in pixels:
ticks are in percent of the plot, and paths are on a square of VIEW x VIEW units that SVG stretches.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

VIEW = 1000
MAX_POINTS = 400
"""More points than this cannot be told apart on a screen, and would make the file large."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Tick:
    """`at` is in percent, from the left or from the top."""

    at: float
    text: str


@dataclass(frozen=True)
class Mark:
    """A point to hover over: its place, the strip it answers for (`left`, `width`), all in percent, and its text."""

    x: float
    y: float
    left: float
    width: float
    text: str


@dataclass(frozen=True)
class LineChart:
    """One series over the steps. `path` is SVG path data on the VIEW square."""

    first: str
    last: str
    path: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    marks: list[Mark]
    steps: int


@dataclass(frozen=True)
class Segment:
    """A part of a stacked bar. `left` and `width` are in percent; `colour` is a CSS class."""

    label: str
    count: int
    left: float
    width: float
    colour: str

    @property
    def roomy(self) -> bool:
        """Does its count fit into it, on a narrow screen too?"""
        return self.width > 2 + 2.2 * len(f"{self.count:,}")


def line_chart(points: Sequence[Point], *, from_zero: bool, x_ticks: int = 6, y_ticks: int = 4) -> LineChart | None:
    """A series of (step, value). None if there is nothing to draw.

    With `from_zero` False the axis may start higher, where the values are far from zero but near each other.
    """
    points = [point for point in points if math.isfinite(point[1])]
    if not points:
        return None
    values = [y for _, y in points]
    top, bottom = max(values), min(values)
    low = 0.0 if bottom >= 0 and (from_zero or bottom < 0.6 * top) else bottom
    y_axis = axis(low, top, y_ticks)
    low, high = min(low, y_axis[0]), max(top, y_axis[-1])
    end = points[-1][0]
    span = high - low or 1.0
    drawn = [(VIEW * x / end if end else 0.0, VIEW * (high - y) / span, x, y) for x, y in thin(points, MAX_POINTS)]
    return LineChart(
        first=number(values[0]),
        last=number(values[-1]),
        path="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y, _, _ in drawn),
        x_ticks=[Tick(100 * x / end, number(x)) for x in axis(0, end, x_ticks) if x <= end] if end else [],
        y_ticks=[Tick(100 * (high - y) / span, number(y)) for y in y_axis],
        marks=_marks(drawn),
        steps=len(points),
    )


def _marks(drawn: Sequence[tuple[float, float, float, float]]) -> list[Mark]:
    """One mark a point, each with the strip of the plot that is nearest to it."""
    xs = [x for x, *_ in drawn]
    edges = [0.0, *((a + b) / 2 for a, b in pairwise(xs)), float(VIEW)]
    scale = 100 / VIEW
    return [
        Mark(x * scale, y * scale, left * scale, (right - left) * scale, f"step {step:,.0f}: {number(value)}")
        for (x, y, step, value), (left, right) in zip(drawn, pairwise(edges), strict=True)
    ]


def axis(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) from `low` or below to `high` or above."""
    span = high - low or abs(high) or 1.0
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, max(last, first + 1) + 1)]


def thin(points: Sequence[Point], limit: int) -> list[Point]:
    """At most about `limit` points: the lowest and highest of each stretch, so that no spike is lost."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil(2 * len(points) / limit)
    kept = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        kept += sorted({min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])})
    return kept


def stack(counts: Mapping[str, int], colours: Mapping[str, str]) -> list[Segment]:
    """Counts -> the parts of one bar, in order, those of zero left out."""
    total = sum(counts.values())
    segments, left = [], 0.0
    for label, count in counts.items():
        if count:
            width = 100 * count / total
            segments.append(Segment(label, count, left, width, colours[label]))
            left += width
    return segments


def number(value: float) -> str:
    """Three significant digits: 0.102, 7,120, 1e-5."""
    if value and abs(value) < 0.01:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{float(f'{value:.3g}'):g}"
