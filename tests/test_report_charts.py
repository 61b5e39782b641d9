"""The geometry of the report's charts."""

import re
from collections.abc import Iterator

import pytest

from finetune import report_charts


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 250, [0, 50, 100, 150, 200, 250]), (0.12, 2.3, [0, 0.5, 1, 1.5, 2, 2.5]), (3, 3, [3, 4]), (0, 0, [0, 0.2])],
)
def test_axis_has_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert report_charts.axis(low, high, 5)[: len(expected)] == pytest.approx(expected)


def charts() -> Iterator[report_charts.LineChart]:
    for values in ([5.0], [0.0, 0.0], [1e-5] * 3, [2.3, 0.1, 90.0], [-1.0, 1.0], [7.0, 7.1, 7.05]):
        points = [(float(step), value) for step, value in enumerate(values, start=1)]
        for from_zero in (True, False):
            chart = report_charts.line_chart(points, from_zero=from_zero)
            assert chart
            yield chart


def test_charts_stay_in_their_frame() -> None:
    for chart in charts():
        places = [float(number) for number in re.findall(r"[-\d.]+", chart.path)]
        assert all(0 <= place <= report_charts.VIEW for place in places)
        assert all(-1e-6 <= tick.at <= 100 + 1e-6 for tick in chart.x_ticks + chart.y_ticks)
        assert len(chart.y_ticks) >= 2
        assert sum(mark.width for mark in chart.marks) == pytest.approx(100)


def test_thinning_keeps_the_spike() -> None:
    points = [(float(step), 1.0) for step in range(10_000)]
    points[777] = (777.0, 50.0)
    kept = report_charts.thin(points, 400)
    assert len(kept) <= 400 and (777.0, 50.0) in kept
    assert kept == sorted(kept)


def test_bars_add_up_and_leave_nothing_out() -> None:
    parts = report_charts.stack(
        {"right": 3, "wrong": 0, "void": 1}, {"right": "green", "wrong": "orange", "void": "grey"}
    )
    assert [(part.label, part.left, part.width) for part in parts] == [("right", 0, 75), ("void", 75, 25)]
