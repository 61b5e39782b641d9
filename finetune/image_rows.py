"""Image data sets, from wherever the user has them, as rows of `image` (a Picture) and `label`.

A folder of class folders, a folder with metadata.jsonl or .csv (`file_name`, `label`), both with or without train
and test folders above; a .csv, .jsonl or .json file with paths; a .parquet file or a hub id with an image column.
Only labels are read here. Images stay where they are until they are looked at (pictures.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.errors import DataError
from finetune.pictures import SUFFIXES as IMAGE_SUFFIXES
from finetune.pictures import FilePicture, StoredPicture
from finetune.rows import SUFFIXES, TEST_NAMES, TRAIN_NAMES, Numbered, Tables, data_files, load_hub, read_file
from finetune.tasks.base import Unusable

IMAGE, LABEL = "image", "label"
"""The columns of the rows made here."""
IMAGE_COLUMNS = (IMAGE, "file_name")
"""Where the image is looked for if the user does not say."""
METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")


@dataclass(frozen=True)
class Columns:
    """The user's --image-column and --label-column, None where they gave none."""

    image: str | None = None
    label: str | None = None

    def find(self, names: Sequence[str]) -> tuple[str | None, str | None]:
        """The image's and the label's column among `names`, None for each that is not there."""
        wanted = (self.image,) if self.image else IMAGE_COLUMNS
        label = self.label or LABEL
        return next((name for name in wanted if name in names), None), label if label in names else None

    def missing(self, names: Sequence[str]) -> tuple[str, str] | None:
        """What is missing among `names` and what to write, None if nothing is."""
        image, label = self.find(names)
        if image and label:
            return None
        wanted = [self.image or " or ".join(IMAGE_COLUMNS)] * (not image) + [self.label or LABEL] * (not label)
        flags = ["--image-column NAME"] * (not image) + ["--label-column NAME"] * (not label)
        shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
        return f"no column {' and no column '.join(wanted)}; found {shown or 'none'}", f"write {' '.join(flags)}"


def read(dataset: str, columns: Columns) -> Tables:
    """All rows of `dataset`. Raises DataError naming the file and what was expected."""
    path = Path(dataset)
    if path.is_dir():
        return _read_folder(path, columns)
    if path.exists():
        return Tables(dataset, _read_table([path], columns), None)
    train, test = load_hub(dataset)
    held_out = None if test is None else _stored(test, columns, dataset, ".")
    return Tables(dataset, _stored(train, columns, dataset, "."), held_out)


def split_folders(folder: Path) -> tuple[list[Path], list[Path]]:
    """The folder's train and test folders, by their names."""
    parts = [path for path in sorted(folder.iterdir()) if path.is_dir()]
    train = [path for path in parts if path.name.lower() in TRAIN_NAMES]
    return train, [path for path in parts if path.name.lower() in TEST_NAMES] if train else []


def metadata_file(folder: Path) -> Path | None:
    """The file that names the folder's images, if it has one."""
    return next((folder / name for name in METADATA if (folder / name).is_file()), None)


def class_folders(folder: Path) -> list[Path]:
    """The folders in it, each of which is a class. Hidden ones are none."""
    return [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]


def _read_folder(folder: Path, columns: Columns) -> Tables:
    train, test = split_folders(folder)
    if train:
        held_out = [row for part in test for row in _read_images(part, folder, columns)] if test else None
        return Tables(str(folder), [row for part in train for row in _read_images(part, folder, columns)], held_out)
    files = data_files(folder)
    if files["train"]:
        held_out = _read_table(files["test"], columns) if files["test"] else None
        return Tables(str(folder), _read_table(files["train"], columns), held_out)
    alone = [path for path in files["other"] + files["test"] if path.name not in METADATA]
    if len(alone) == 1 and not metadata_file(folder):
        return Tables(str(alone[0]), _read_table(alone, columns), None)
    return Tables(str(folder), _read_images(folder, folder, columns), None)


def _read_images(folder: Path, top: Path, columns: Columns) -> list[Numbered]:
    """The images of one folder, by its metadata file or by class folders. `top` is where their names begin."""
    metadata = metadata_file(folder)
    if metadata:
        return _read_table([metadata], columns, top)
    found = [
        (path, part.name)
        for part in class_folders(folder)
        for path in sorted(part.rglob("*"))
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")
    ]
    if not found:
        raise DataError(
            f"--dataset {folder}: no images: no metadata.jsonl or .csv, and no folders of images by class",
            f"expected {folder}/CLASS/*.jpg, or {folder}/metadata.jsonl with file_name and label",
        )
    return [
        Numbered(number, {IMAGE: FilePicture(str(path), str(path.relative_to(top))), LABEL: label})
        for number, (path, label) in enumerate(found, start=1)
    ]


def _read_table(files: Sequence[Path], columns: Columns, top: Path | None = None) -> list[Numbered]:
    """Rows of files of one kind: .parquet with the images in it, the others with their paths."""
    if files[0].suffix == ".parquet":
        from datasets import Dataset

        table = Dataset.from_parquet([str(path) for path in files])
        return _stored(table, columns, str(files[0]), str(files[0].parent))
    if any(path.suffix not in SUFFIXES for path in files):
        raise DataError(f"--dataset {files[0]}: a file of unknown kind", f"expected one of {', '.join(SUFFIXES)}")
    return [row for path in files for row in _paths(path, columns, top or path.parent)]


def _paths(file: Path, columns: Columns, top: Path) -> Iterator[Numbered]:
    """Rows of a text file, their image column a path from the file's own folder."""
    numbered = read_file(file)
    names = list(dict.fromkeys(name for item in numbered if isinstance(item.row, Mapping) for name in item.row))
    missing = columns.missing(names)
    if missing and numbered:
        raise DataError(f"--dataset {file}: {missing[0]}", missing[1])
    image, label = columns.find(names)
    for item in numbered:
        if isinstance(item.row, Unusable):
            yield item
            continue
        path = item.row.get(image or "")
        picture = None
        if isinstance(path, str) and path.strip():
            whole = file.parent / path.strip()
            picture = FilePicture(str(whole), str(whole.relative_to(top)) if whole.is_relative_to(top) else path)
        yield Numbered(item.number, {IMAGE: picture, LABEL: item.row.get(label or "")})


def _stored(table: Any, columns: Columns, source: str, folder: str) -> list[Numbered]:
    """Rows of a `datasets.Dataset`. The labels are read, the images are not."""
    from datasets import ClassLabel, Image

    missing = columns.missing(table.column_names)
    if missing:
        raise DataError(f"--dataset {source}: {missing[0]}", missing[1])
    image, label = columns.find(table.column_names)
    pictures = table.select_columns([image])
    if isinstance(table.features[image], Image):
        pictures = pictures.cast_column(image, Image(decode=False))
    labels: list[Any] = list(table[label])
    kind = table.features[label]
    if isinstance(kind, ClassLabel):
        labels = [kind.int2str(value) if value is not None and value >= 0 else None for value in labels]
    return [
        Numbered(index + 1, {IMAGE: StoredPicture(pictures, str(image), index, folder), LABEL: value})
        for index, value in enumerate(labels)
    ]
