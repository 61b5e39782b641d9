"""Accuracy, macro-F1 and unknown rate: worked by hand, offline, as metrics of the `evaluate` library."""

from pathlib import Path

import pytest

from finetune.tasks.class_metrics import METRICS, Accuracy, MacroF1, UnknownRate
from finetune.tasks.class_tally import Tally, confuse, tally

CLASSES = ("cat", "dog", "hen")
RIGHT = ["cat", "cat", "cat", "cat", "dog", "dog"]
ANSWERS = ["cat", "It is a cat.", "dog", "no idea", "DOG", "a cat or a dog"]


def test_numbers_worked_by_hand() -> None:
    """cat: 2 of 4 found, 2 answered: F1 2/3. dog: 1 of 2 found, 2 answered: F1 1/2. hen: not there, does not count."""
    computed = [kind(CLASSES).compute(predictions=ANSWERS, references=RIGHT) for kind in METRICS]
    assert [metric.title for metric in METRICS] == ["accuracy", "macro-F1", "unknown rate"]
    values = [next(value for name, value in result.items() if name != "total") for result in computed]
    assert values == [pytest.approx(3 / 6), pytest.approx((2 / 3 + 1 / 2) / 2), pytest.approx(1 / 6)]
    assert {result["total"] for result in computed} == {6}


def test_a_class_that_is_answered_but_never_right_counts_as_zero() -> None:
    result = MacroF1(CLASSES).compute(predictions=["hen", "cat"], references=["dog", "cat"])
    assert result["macro_f1"] == pytest.approx(1 / 3)


def test_nothing_is_zero_of_zero() -> None:
    for kind in (Accuracy, MacroF1, UnknownRate):
        assert list(kind(CLASSES).compute(predictions=[], references=[]).values()) == [0.0, 0]


def test_the_tally_of_a_confusion() -> None:
    confusion = confuse(CLASSES, RIGHT, [("cat",), ("cat",), ("dog",), (), ("dog",), ("cat", "dog")])
    assert confusion.counts == {
        ("cat", "cat"): 2, ("cat", "dog"): 1, ("cat", "unknown"): 1, ("dog", "dog"): 1, ("dog", "ambiguous"): 1,
    }  # fmt: skip
    assert tally(confusion) == {"cat": Tally(4, 2, 2), "dog": Tally(2, 2, 1), "hen": Tally(0, 0, 0)}
    assert tally(confusion)["hen"].f1 is None


def test_classes_called_like_the_other_answers_are_kept_apart() -> None:
    confusion = confuse(("unknown", "ambiguous"), ["unknown", "unknown"], [("unknown",), ()])
    assert confusion.others == ("(ambiguous)", "(unknown)")
    assert confusion.counts == {("unknown", "unknown"): 1, ("unknown", "(unknown)"): 1}


def test_no_folder_is_made_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    Accuracy(CLASSES).compute(predictions=["cat"], references=["cat"])
    assert not list(tmp_path.iterdir())
