"""Image data sets in every layout become rows of a picture and a label; nothing but labels is read."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, Features, Value
from datasets import Image as ImageFeature
from PIL import Image

from finetune.errors import DataError
from finetune.image_rows import Columns, read
from finetune.pictures import as_seen
from finetune.rows import Numbered, Tables
from finetune.samples import check_images
from finetune.tasks.base import Unusable

COLOURS = {"cat": (200, 0, 0), "dog": (0, 0, 200)}
NO_COLUMNS = Columns()


def photos(folder: Path, per_class: int = 2) -> list[tuple[str, str]]:
    """Small photos in `folder`: (file name, label) of each."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for label, colour in COLOURS.items():
        for number in range(per_class):
            Image.new("RGB", (20, 10), colour).save(folder / f"{label}_{number}.png")
            made.append((f"{label}_{number}.png", label))
    return made


def class_folders(folder: Path) -> Path:
    for name, label in photos(folder / "spare"):
        (folder / label).mkdir(exist_ok=True)
        (folder / "spare" / name).rename(folder / label / name)
    (folder / "spare").rmdir()
    (folder / "cat" / "notes.txt").write_text("no image")
    (folder / "cat" / "._cat_0.png").write_text("what macOS leaves")
    (folder / ".cache").mkdir()
    return folder


def split_class_folders(folder: Path) -> Path:
    class_folders(folder / "train")
    class_folders(folder / "test")
    return folder


def metadata(folder: Path, name: str = "metadata.jsonl") -> Path:
    rows = [{"file_name": file, "label": label} for file, label in photos(folder)]
    if name.endswith(".jsonl"):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif name.endswith(".csv"):
        with (folder / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        Dataset.from_list(rows).to_parquet(folder / name)
    return folder


def split_metadata(folder: Path) -> Path:
    metadata(folder / "train")
    metadata(folder / "validation")
    return folder


def paths_in(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        rows = [{"image": f"photos/{file}", "label": label} for file, label in photos(folder / "photos")]
        path = folder / name
        if name.endswith(".json"):
            path.write_text(json.dumps(rows))
        elif name.endswith(".jsonl"):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            path.write_text("image,label\n" + "".join(f"{row['image']},{row['label']}\n" for row in rows))
        return path

    return make


def with_images(folder: Path) -> Dataset:
    rows = photos(folder / "photos")
    features = Features({"image": ImageFeature(), "label": ClassLabel(names=["cat", "dog"])})
    columns = {"image": [str(folder / "photos" / file) for file, _ in rows], "label": [label for _, label in rows]}
    return Dataset.from_dict(columns, features=features)


def parquet(folder: Path) -> Path:
    with_images(folder).to_parquet(folder / "photos.parquet")
    return folder / "photos.parquet"


def hub_layout(folder: Path) -> Path:
    table = with_images(folder / "made")
    (folder / "set" / "data").mkdir(parents=True)
    for split in ("train", "test"):
        for part in range(2):
            table.select([part, part + 2]).to_parquet(folder / f"set/data/{split}-0000{part}-of-00002.parquet")
    return folder / "set"


LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "class folders": class_folders,
    "class folders in splits": split_class_folders,
    "metadata.jsonl": metadata,
    "metadata.csv": lambda folder: metadata(folder, "metadata.csv"),
    "metadata.parquet": lambda folder: metadata(folder, "metadata.parquet"),
    "metadata.jsonl in splits": split_metadata,
    "paths in .jsonl": paths_in("rows.jsonl"),
    "paths in .json": paths_in("rows.json"),
    "paths in .csv": paths_in("rows.csv"),
    "images in .parquet": parquet,
    "images in parquet files, as on the hub": hub_layout,
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def labels(rows: Any) -> list[Any]:
    return sorted(item.row["label"] for item in rows)


def check(rows: Any) -> None:
    """Every picture has its class's colour."""
    assert labels(rows) == ["cat", "cat", "dog", "dog"]
    assert [item.number for item in rows] == [1, 2, 3, 4]
    for item in rows:
        seen = as_seen(item.row["image"])
        assert not isinstance(seen, Unusable), (item, seen)
        assert seen.getpixel((3, 3)) == COLOURS[item.row["label"]]


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_read(tmp_path: Path, name: str) -> None:
    place = LAYOUTS[name](tmp_path / "data")
    tables = read(str(place), NO_COLUMNS)
    check(tables.train)
    assert (tables.test is not None) is ("splits" in name or "hub" in name)
    if tables.test:
        check(tables.test)
    assert check_images(place, NO_COLUMNS) is None


def test_a_hub_data_set_is_read_like_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its features are those of timm/oxford-iiit-pet: an Image, and a label that is a number of a list of names."""
    table = with_images(tmp_path / "made")
    monkeypatch.setattr("finetune.image_rows.load_hub", lambda name: (table, table))
    tables = read("someone/photos", NO_COLUMNS)
    check(tables.train)
    check(tables.test)


def test_names_are_those_within_the_data_set(tmp_path: Path) -> None:
    tables = read(str(split_class_folders(tmp_path)), NO_COLUMNS)
    assert tables.test is not None
    assert tables.train[0].row["image"].name == "train/cat/cat_0.png"  # type: ignore[index, union-attr]
    assert tables.test[3].row["image"].name == "test/dog/dog_1.png"  # type: ignore[index, union-attr]


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    photos(tmp_path)
    path = tmp_path / "breeds.csv"
    path.write_text("photo,breed,label\ncat_0.png,tabby,x\ndog_1.png,pug,y\n")
    columns = Columns(image="photo", label="breed")
    rows = read(str(path), columns).train
    assert labels(rows) == ["pug", "tabby"]
    assert check_images(path, columns) is None
    message, hint = check_images(path, NO_COLUMNS) or ("", "")
    assert message == f"{path}:1: no column image or file_name; found photo, breed, label"
    assert hint == "write --image-column NAME"
    with pytest.raises(DataError, match="no column image or file_name; found photo, breed, label"):
        read(str(path), NO_COLUMNS)


def test_parquet_columns_that_are_not_there_are_named(tmp_path: Path) -> None:
    path = parquet(tmp_path)
    with pytest.raises(DataError, match="no column breed; found image, label") as caught:
        read(str(path), Columns(label="breed"))
    assert caught.value.hint == "write --label-column NAME"


def test_rows_without_a_path_or_a_label_stay_rows(tmp_path: Path) -> None:
    photos(tmp_path)
    lines = ['{"image": "cat_0.png", "label": "cat"}', '{"image": null, "label": "cat"}', '{"label": "dog"}', "{oops"]
    (tmp_path / "rows.jsonl").write_text("\n".join([*lines, '{"image": "dog_0.png"}']))
    rows = read(str(tmp_path / "rows.jsonl"), NO_COLUMNS).train
    assert rows[3] == Numbered(4, Unusable("not valid JSON"))
    found = [(item.row["image"] is not None, item.row["label"]) for item in rows if not isinstance(item.row, Unusable)]
    assert found == [(True, "cat"), (False, "cat"), (False, "dog"), (True, None)]


def test_a_label_that_a_hub_data_set_hides_is_none(tmp_path: Path) -> None:
    """-1 is how `datasets` writes that a class is not told."""
    features = Features({"image": Value("string"), "label": ClassLabel(names=["cat", "dog"])})
    Dataset.from_dict({"image": ["a.png"] * 3, "label": [0, -1, 1]}, features=features).to_parquet(
        tmp_path / "x.parquet"
    )
    rows = read(str(tmp_path / "x.parquet"), NO_COLUMNS).train
    assert [item.row["label"] for item in rows if not isinstance(item.row, Unusable)] == ["cat", None, "dog"]


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "an empty folder": (lambda folder: None, "no metadata.jsonl or .csv, no data file, and 0 class folders"),
    "one class": (lambda folder: photos(folder / "cat"), "and 1 class folder"),
    "photos alone": (photos, "and 0 class folders"),
    "metadata without labels": (
        lambda folder: (folder / "metadata.csv").write_text("file_name\na.png\n"),
        "metadata.csv:1: no column label; found file_name",
    ),
    "two files": (
        lambda folder: [(folder / f"{name}.csv").write_text("image,label\n") for name in "ab"],
        "no train file among a.csv, b.csv",
    ),
    "empty file": (lambda folder: (folder / "train.csv").touch(), "train.csv: is empty"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_image_data_set_shows_at_a_glance(tmp_path: Path, name: str) -> None:
    make, words = WRONG[name]
    make(tmp_path)
    message, hint = check_images(tmp_path, NO_COLUMNS) or ("", "")
    assert words in message and hint


def test_a_folder_of_no_images_is_told_when_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with pytest.raises(DataError, match=r"no images: no metadata\.jsonl or \.csv, and no folders of images by class"):
        read(str(tmp_path), NO_COLUMNS)


def test_nothing_but_labels_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data set may be larger than the memory, and its images far away."""
    places = [LAYOUTS[name](tmp_path / name.replace(" ", "-")) for name in LAYOUTS]

    def no(*_: Any, **__: Any) -> None:
        raise AssertionError("an image was opened")

    monkeypatch.setattr(Image, "open", no)
    found: list[Tables] = [read(str(place), NO_COLUMNS) for place in places]
    assert len(found) == len(LAYOUTS)
