"""What is told of the rows before training: lengths, doubles, leaks, empty answers."""

import re
from typing import Any

from finetune.data_report import BARS, BUCKETS, bars, lines, look_at
from finetune.encode import Encoded, Turn
from finetune.pictures import HeldPicture
from finetune.selection import SplitCounts
from finetune.tasks.base import Example, Message


def row(number: int, question: str, answer: str = "yes", length: int = 10, image: bytes = b"") -> Encoded:
    images = (HeldPicture(image, "image 1"),) if image else ()
    example = Example(number, (Message("user", question),), answer, images)
    return Encoded(example, (Turn([1] * (length - 2), [2] * 2),))


def counts(**dropped: int) -> dict[str, SplitCounts]:
    found = SplitCounts(10)
    for reason, times in dropped.items():
        for number in range(times):
            found.drop(reason.replace("_", " "), number)
    return {"train": found}


def test_doubles_leaks_and_empty_answers_are_counted_and_named() -> None:
    train = [row(1, "a"), row(2, "b"), row(3, "a"), row(4, "a", "no"), row(5, "c"), row(6, "b")]
    report = look_at(train, [row(7, "b", "other"), row(8, "d")], counts(answer_is_empty=3, sql_is_missing=2))
    assert report["duplicates"] == {"rows": 2, "first": [3, 6]}
    assert report["leaked"] == {"rows": 1, "first": [7], "of": 2}
    assert report["empty"] == 3
    told = lines(report)
    assert told[1:] == [
        "2 rows are in the data more than once: rows 3, 6",
        "1 of the 2 rows to measure on have a prompt that is trained on, so that the result is too good: row 7",
        "3 rows were left out because something in them is empty",
    ]


def test_rows_with_one_prompt_and_different_images_are_different() -> None:
    train = [row(1, "which?", image=b"one"), row(2, "which?", image=b"two"), row(3, "which?", image=b"one")]
    report = look_at(train, [row(4, "which?", image=b"three"), row(5, "which?", image=b"two")], counts())
    assert report["duplicates"] == {"rows": 1, "first": [3]}
    assert report["leaked"]["first"] == [5]


def test_good_data_is_said_to_be_good() -> None:
    report = look_at([row(1, "a", length=5), row(2, "b", length=500)], [row(3, "c")], counts())
    first, last = lines(report)
    assert first.startswith("tokens a row: 5 to 500, half of them up to 252  ")
    assert last == "no row twice, no leak, no empty answer"


def test_the_histogram_has_every_row_once() -> None:
    lengths = [3, 3, 4, 90, 1000, 17, 512]
    report: Any = look_at([row(n, str(n), length=length) for n, length in enumerate(lengths)], [], counts())
    histogram = report["lengths"]["histogram"]
    assert len(histogram) == BUCKETS and sum(histogram) == len(lengths)
    assert histogram[0] == 4 and histogram[-1] == 1
    shown = bars(histogram)
    assert len(shown) == BUCKETS and shown[0] == BARS[-1] and re.fullmatch(f"[{BARS} ]+", shown)
    one: Any = look_at([row(1, "a")], [], counts())
    assert sum(one["lengths"]["histogram"]) == 1
