"""When two results are the same."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finetune.tasks.sql_compare import difference, difference_of_tables
from finetune.tasks.sqlite_sandbox import Row, Table

CELLS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
RESULTS = st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[CELLS] * width), max_size=8))


@pytest.mark.parametrize(
    ("gold", "predicted"),
    [
        ([], []),
        ([(1,)], [(1.0,)]),
        ([(0.1 + 0.2,)], [(0.3,)]),
        ([(0.0,)], [(-0.0,)]),
        ([(0.1 + 0.2 - 0.3,)], [(0,)]),
        ([(1 / 3,)], [(0.3333333,)]),
        ([(float("inf"),)], [(float("inf"),)]),
        ([(1, "a"), (2, "b")], [(2, "b"), (1, "a")]),
        ([(0.1 + 0.2, 1), (0.3, 2)], [(0.3, 1), (0.1 + 0.2, 2)]),
        ([(0.1 + 0.2, 2), (0.3, 1)], [(0.3, 2), (0.1 + 0.2, 1)]),
        ([(None, b"x")], [(None, b"x")]),
    ],
)
def test_the_same(gold: list[Row], predicted: list[Row]) -> None:
    assert difference(gold, predicted, ordered=False) == ""


@pytest.mark.parametrize(
    ("gold", "predicted", "told"),
    [
        ([], [(1,)], "1 row instead of 0"),
        ([(1,), (1,), (2,)], [(1,), (2,)], "2 rows instead of 3"),
        ([(1,), (1,), (2,)], [(1,), (2,), (2,)], "row (2) instead of (1)"),
        ([(1, 2)], [(1,)], "1 column instead of 2"),
        ([(1, 2)], [(2, 1)], "row (2, 1) instead of (1, 2)"),
        ([(3,)], [("3",)], "row ('3') instead of (3)"),
        ([("a",)], [("A",)], "row ('A') instead of ('a')"),
        ([("a",)], [("a ",)], "row ('a ') instead of ('a')"),
        ([("a",)], [(b"a",)], "row (b'a') instead of ('a')"),
        ([(None,)], [(0,)], "row (0) instead of (NULL)"),
        ([(None,)], [("",)], "row ('') instead of (NULL)"),
        ([(1_000_000,)], [(1_000_001,)], "row (1000001) instead of (1000000)"),
        ([(1_000_000.0,)], [(1_000_001,)], "row (1000001) instead of (1000000.0)"),
        ([(2**53,)], [(2**53 + 1,)], f"row ({2**53 + 1}) instead of ({2**53})"),
        ([(1.5,)], [(1.51,)], "row (1.51) instead of (1.5)"),
    ],
)
def test_not_the_same(gold: list[Row], predicted: list[Row], told: str) -> None:
    assert difference(gold, predicted, ordered=False) == told


def test_order_counts_only_where_asked_for() -> None:
    gold: list[Row] = [(1,), (2,)]
    assert difference(gold, [(2,), (1,)], ordered=False) == ""
    assert difference(gold, [(2,), (1,)], ordered=True) == "row 1 is (2) instead of (1)"
    assert difference(gold, [(1.0,), (2.0,)], ordered=True) == ""


def test_a_long_row_is_told_in_short() -> None:
    assert len(difference([("a" * 10_000,)], [("b" * 10_000,)], ordered=False)) < 300


@given(RESULTS, st.randoms(use_true_random=False))
def test_a_result_equals_itself_in_any_order(rows: list[Row], chance: random.Random) -> None:
    shuffled = list(rows)
    chance.shuffle(shuffled)
    assert difference(rows, rows, ordered=True) == ""
    assert difference(rows, shuffled, ordered=False) == ""


@given(RESULTS, RESULTS)
def test_neither_side_is_favoured(one: list[Row], other: list[Row]) -> None:
    assert bool(difference(one, other, ordered=False)) == bool(difference(other, one, ordered=False))


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.integers(0, 3), st.sampled_from("ab")), min_size=1), st.data())
def test_noise_of_the_last_digits_does_not_count(rows: list[Row], data: st.DataObject) -> None:
    noisy = [(number * (1 + data.draw(st.floats(-1e-12, 1e-12))), *rest) for number, *rest in rows]
    assert difference(rows, data.draw(st.permutations(noisy)), ordered=False) == ""


@given(RESULTS.filter(bool), st.data())
def test_a_row_too_many_or_too_few_counts(rows: list[Row], data: st.DataObject) -> None:
    gone = data.draw(st.integers(0, len(rows) - 1))
    fewer = rows[:gone] + rows[gone + 1 :]
    assert difference(rows, fewer, ordered=False)
    assert difference(fewer, rows, ordered=False)


def test_many_rows_of_numbers_that_almost_agree_are_compared_soon() -> None:
    rows: list[Row] = [(i / 7, i / 3) for i in range(10_000)]
    assert difference(rows, [(a + 1e-13, b) for a, b in rows[::-1]], ordered=False) == ""  # type: ignore[operator]


def test_tables() -> None:
    one = Table("table", ("a",), [(1,)])
    assert difference_of_tables({"t": one}, {"t": Table("table", ("a",), [(1.0,)])}) == ""
    assert difference_of_tables({"t": one}, {}) == "no table t"
    assert difference_of_tables({}, {"t": one}) == "a needless table t"
    assert (
        difference_of_tables({"t": one}, {"t": Table("table", ("b",), [(1,)])}) == "table t has columns b instead of a"
    )
    assert difference_of_tables({"t": one}, {"t": Table("view", ("a",), [(1,)])}) == "a view t instead of a table"
    assert difference_of_tables({"t": one}, {"t": Table("table", ("a",), [])}) == "table t: 0 rows instead of 1"
