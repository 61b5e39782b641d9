"""The pets task: what is asked, what is answered, and how an answer is judged."""

from typing import Any

import pytest

from finetune.tasks import pets
from finetune.tasks.base import Example, Unusable

CLASSES = ("Abyssinian", "american bulldog", "Bombay")
PICTURE: Any = object()


def example(label: Any) -> Example | Unusable:
    return pets.to_example({"image": PICTURE, "label": label}, 3, CLASSES)


def test_one_user_turn_names_the_classes_and_the_answer_is_one_of_them() -> None:
    made = example("american_bulldog")
    assert isinstance(made, Example)
    assert [message.role for message in made.prompt] == ["user"]
    assert made.prompt[0].content == (
        "Which of these does the picture show?\nAbyssinian\namerican bulldog\nBombay\nAnswer with the name alone."
    )
    assert (made.answer, made.images, made.row) == ("american bulldog", (PICTURE,), 3)


def test_the_prompt_is_one_object_for_all_rows() -> None:
    one, other = example("Bombay"), example("Abyssinian")
    assert isinstance(one, Example) and isinstance(other, Example) and one.prompt is other.prompt


def test_classes_are_those_of_the_rows() -> None:
    rows = [{"label": label} for label in ("b_c", "A", None, "", "a", 7, ["x"])]
    assert pets.survey(rows) == ("7", "A", "b c")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"image": None, "label": "Bombay"}, "image is missing"),
        ({"label": "Bombay"}, "image is missing"),
        ({"image": PICTURE, "label": None}, "label is missing"),
        ({"image": PICTURE, "label": " _ "}, "label is empty"),
        ({"image": PICTURE, "label": 2.5}, "label is not text"),
        ({"image": PICTURE, "label": "Birman"}, "label is none of the classes in the prompt"),
    ],
)
def test_rows_that_cannot_be_used(row: dict[str, Any], reason: str) -> None:
    assert pets.to_example(row, 1, CLASSES) == Unusable(reason)


def test_a_label_may_be_a_number() -> None:
    made = pets.to_example({"image": PICTURE, "label": 1}, 1, ("0", "1"))
    assert isinstance(made, Example) and made.answer == "1"


def test_answers_are_judged() -> None:
    made = [example(label) for label in ("Bombay", "Bombay", "Bombay", "Bombay", "Abyssinian")]
    examples = [item for item in made if isinstance(item, Example)]
    answers = ["A bombay cat", "Abyssinian", "Bombay or Abyssinian", "SELECT 1", "Abyssinian"]
    score = pets.score(examples, answers)
    assert [(verdict.label, verdict.detail) for verdict in score.verdicts] == [
        ("correct", ""),
        ("wrong class", "read as Abyssinian"),
        ("ambiguous", "names Bombay, Abyssinian"),
        ("unknown", ""),
        ("correct", ""),
    ]
    assert [(metric.name, metric.total) for metric in score.metrics] == [
        ("accuracy", 5), ("macro-F1", 5), ("unknown rate", 5),
    ]  # fmt: skip
    assert score.metrics[0].value == pytest.approx(2 / 5)
    assert score.confusion is not None and score.confusion.classes == CLASSES


def test_nothing_to_judge_is_zero_of_zero() -> None:
    assert [(metric.value, metric.total) for metric in pets.score([], []).metrics] == [(0.0, 0)] * 3
