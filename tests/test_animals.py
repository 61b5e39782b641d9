"""The drawn animals: always the same from the same numbers, none in both splits, and unlike each other."""

import pickle

import numpy
import pytest

from finetune.embedded import ROWS, animals
from finetune.embedded.animals import CLASSES, SIDE, Drawing
from finetune.tasks.base import Split


def pixels(drawing: Drawing) -> numpy.ndarray:
    return numpy.asarray(drawing.open())


def test_they_are_the_pets_tasks_embedded_rows() -> None:
    assert ROWS["pets"]("test", 12, 3) == animals.rows("test", 12, 3)


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_same_arguments_give_the_same_pixels(split: Split) -> None:
    one, other = animals.rows(split, 12, 3), animals.rows(split, 12, 3)
    assert one == other
    for left, right in zip(one, other, strict=True):
        assert numpy.array_equal(pixels(left["image"]), pixels(pickle.loads(pickle.dumps(right["image"]))))
    assert animals.rows(split, 12, 4) != one


def test_classes_are_balanced_and_labels_are_those_of_a_data_set() -> None:
    labels = [row["label"] for row in animals.rows("train", 6 * 20, 0)]
    assert {labels.count(name) for name in CLASSES} == {20} and len(CLASSES) == 6
    assert labels[:6] != labels[6:12], "in no fixed order"
    assert any("_" in name for name in CLASSES)


def test_no_drawing_is_in_both_splits() -> None:
    """Whatever the seed: the wall behind a held-out animal never has the colour of one to train on."""
    walls: dict[str, set[tuple[int, ...]]] = {"train": set(), "test": set()}
    for split in ("train", "test"):
        for seed in range(3):
            for row in animals.rows(split, 100, seed):  # type: ignore[arg-type]
                walls[split].add(row["image"].open().getpixel((2, 2)))
    assert len(walls["train"]) > 250 < len(walls["test"])
    assert not walls["train"] & walls["test"]


def test_drawings_are_images_of_one_size_and_all_differ() -> None:
    drawings = [row["image"] for row in animals.rows("train", 60, 1)]
    assert {(drawing.open().mode, drawing.open().size) for drawing in drawings} == {("RGB", (SIDE, SIDE))}
    assert len({pixels(drawing).tobytes() for drawing in drawings}) == 60
    assert len({drawing.name for drawing in drawings}) == 60
