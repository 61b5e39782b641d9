"""Which images are trained on and which are held out: by class, by seed, without overlap, and what is said of it."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from finetune.data import prepare
from finetune.errors import DataError
from finetune.reader import Reader
from finetune.rows import arranged
from finetune.selection import Selected, select
from finetune.settings import Settings
from finetune.tasks import TASKS
from finetune.tasks.base import Example

PETS = TASKS["pets"]


def folder_of(place: Path, counts: dict[str, int]) -> Path:
    """A folder with so many photos of each class, all alike."""
    for name, count in counts.items():
        (place / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (48, 48), (10, 100, 10)).save(place / name / f"{number}.png")
    return place


def chosen(place: Path, **changes: Any) -> Selected:
    return select(PETS, replace(Settings(dataset=str(place)), **changes))


def names(examples: list[Example]) -> list[str]:
    return [example.images[0].name for example in examples]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from("abcde"), min_size=1, max_size=60),
    st.integers(0, 3),
    st.floats(0, 1),
)
def test_each_beginning_of_the_order_has_the_classes_shares(classes: list[str], seed: int, share: float) -> None:
    order = arranged(len(classes), seed, classes)
    assert sorted(order) == list(range(len(classes)))
    cut = round(share * len(classes))
    found, whole = Counter(classes[index] for index in order[:cut]), Counter(classes)
    for name, count in whole.items():
        assert abs(found[name] - cut * count / len(classes)) <= 2


def test_a_cut_keeps_the_shares_and_depends_on_the_seed_alone(tmp_path: Path) -> None:
    place = folder_of(tmp_path, {"cat": 20, "dog": 40, "bird": 20})
    selected = chosen(place, train_size=16)
    train = selected.train[:16]
    assert Counter(example.answer for example in train) == {"cat": 4, "dog": 8, "bird": 4}
    assert names(chosen(place, train_size=16).train) == names(selected.train)
    assert set(names(chosen(place, train_size=16, seed=1).train[:16])) != set(names(train))


def test_one_folder_is_split_by_class_without_overlap(tmp_path: Path) -> None:
    selected = chosen(folder_of(tmp_path, {"cat": 10, "dog": 20}))
    assert not set(names(selected.train)) & set(names(selected.test))
    assert len(selected.train) + len(selected.test) == 30
    shares = Counter(example.answer for example in selected.test)
    assert shares["dog"] == pytest.approx(2 * shares["cat"], abs=1)


def test_train_and_test_folders_are_kept_apart(tmp_path: Path) -> None:
    folder_of(tmp_path / "train", {"cat": 3, "dog": 3})
    folder_of(tmp_path / "test", {"cat": 2, "dog": 2, "hen": 1})
    selected = chosen(tmp_path)
    assert all(name.startswith("train/") for name in names(selected.train))
    assert all(name.startswith("test/") for name in names(selected.test))
    assert selected.survey == ("cat", "dog", "hen"), "the prompt names the classes of both"


def test_a_class_without_rows_to_train_on_is_said(tmp_path: Path, image_reader: Reader) -> None:
    folder_of(tmp_path / "train", {"cat": 3, "dog": 3})
    folder_of(tmp_path / "test", {"cat": 2, "dog": 2, "hen": 1})
    (tmp_path / "train" / "yak").mkdir()
    (tmp_path / "train" / "yak" / "0.png").write_bytes(b"")
    prepared = prepare(PETS, Settings(dataset=str(tmp_path), eval_size=5), image_reader, train=True)
    assert "2 of 4 classes have no row to train on: hen, yak" in prepared.record["notes"]
    assert prepared.record["train"]["dropped"] == {
        "image is empty (0 bytes)": {"count": 1, "rows": ["train/yak/0.png"]}
    }
    assert (prepared.record["train"]["used"], prepared.record["test"]["used"]) == (6, 5)


def test_one_class_is_no_classification(tmp_path: Path) -> None:
    folder_of(tmp_path, {"cat": 3})
    (tmp_path / "dog").mkdir()
    with pytest.raises(DataError, match=r"only one class \(cat\); expected two or more"):
        chosen(tmp_path)


def test_an_adapters_classes_are_asked_for_whatever_the_data_have(tmp_path: Path) -> None:
    place = folder_of(tmp_path, {"cat": 3, "dog": 3, "gnu": 1})
    selected = select(PETS, Settings(dataset=str(place)), survey=("dog", "cat", "hen"))
    assert {example.prompt[0].content for example in selected.train} == {
        "Which of these does the picture show?\ndog\ncat\nhen\nAnswer with the name alone."
    }
    assert any("the classes that the adapter was trained with" in note for note in selected.notes)
    assert list(selected.counts["train"].dropped) == ["label is none of the classes in the prompt"]
    same = select(PETS, Settings(dataset=str(place)), survey=("cat", "dog", "gnu"))
    assert not any("adapter" in note for note in same.notes)


def test_rows_beyond_take_the_place_of_those_that_do_not_fit(tmp_path: Path, image_reader: Reader) -> None:
    """`--train-size 4` means four rows that can be used, where there are as many."""
    folder_of(tmp_path / "train", {"cat": 6, "dog": 6})
    folder_of(tmp_path / "test", {"cat": 1, "dog": 1})
    settings = Settings(dataset=str(tmp_path), train_size=4, eval_size=2)
    first = names(select(PETS, settings).train)[0]
    (tmp_path / first).write_text("no image any more")
    prepared = prepare(PETS, settings, image_reader, train=True)
    assert prepared.record["train"] == {
        "read": 12,
        "used": 4,
        "dropped": {"image is not in a format that can be read": {"count": 1, "rows": [first]}},
    }
    assert len(prepared.pictures) == len(prepared.train) == 4
