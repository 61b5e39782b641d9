"""A data set's rows, from wherever the user has them: a folder, a file, a hub id, or the embedded set.

Local text files are read here line by line, not through `datasets`, so that one bad line is one
counted row with its number, and not a failed load. Nothing heavy is imported at module level.
"""

import csv
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.embedded import EMBEDDED, ROWS
from finetune.errors import DataError
from finetune.tasks.base import DataSource, Row, Unusable

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
TRAIN_NAMES = ("train",)
TEST_NAMES = ("test", "validation", "valid", "val", "dev", "eval")
HUB_TEST_SPLITS = ("test", "validation")


@dataclass(frozen=True)
class Numbered:
    """A row and where it stands: `number` is its line in a .jsonl file, else its place from 1."""

    number: int
    row: Row | Unusable


@dataclass(frozen=True)
class Tables:
    """What was read. `test` is None where the source has one undivided table."""

    source: str
    train: Sequence[Numbered]
    test: Sequence[Numbered] | None


def read(dataset: str) -> Tables:
    """Read all rows of `dataset`, a path or a hub id. Raises DataError naming the file and what was expected."""
    path = Path(dataset)
    if path.is_dir():
        return _read_folder(path)
    if path.exists():
        return Tables(dataset, read_file(path), None)
    train, test = load_hub(dataset)
    return Tables(dataset, _raw(train), None if test is None else _raw(test))


def _raw(table: Any) -> list[Numbered]:
    """A table's rows as they are stored: images are not decoded."""
    return _numbered(table.with_format("arrow")[:].to_pylist())


def embedded(task: str, source: DataSource, seed: int, train_size: int | None) -> Tables:
    """The embedded rows of a task. As many are made as are asked for."""
    if task not in ROWS:
        raise DataError(f"--dataset {EMBEDDED}: there are no embedded rows for {task}", "give a folder or a file")
    train = ROWS[task]("train", train_size or source.train_size, seed)
    return Tables(EMBEDDED, _numbered(train), _numbered(ROWS[task]("test", embedded_held_out(source), seed)))


def embedded_held_out(source: DataSource) -> int:
    """Embedded rows to measure on: as many as the task's own data set has, where it has one."""
    return source.eval_size if source.dataset else 500


def _numbered(rows: Sequence[Row]) -> list[Numbered]:
    return [Numbered(number, row) for number, row in enumerate(rows, start=1)]


def data_files(folder: Path) -> dict[str, list[Path]]:
    """The folder's files by split ("train", "test", "other"), by name: train.jsonl, test-00000-of-00002.parquet.

    Looks in the folder, and in a `data` folder within it (the hub's layout).
    """
    found: dict[str, list[Path]] = {"train": [], "test": [], "other": []}
    for place in (folder, folder / "data"):
        for path in sorted(place.iterdir()) if place.is_dir() else []:
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            word = path.stem.replace("_", "-").replace(".", "-").split("-")[0].lower()
            split = "train" if word in TRAIN_NAMES else "test" if word in TEST_NAMES else "other"
            found[split].append(path)
    return found


def _read_folder(folder: Path) -> Tables:
    files = data_files(folder)
    if files["train"]:
        test = _read_all(files["test"]) if files["test"] else None
        return Tables(str(folder), _read_all(files["train"]), test)
    alone = files["other"] + files["test"]
    if len(alone) == 1:
        return Tables(str(alone[0]), read_file(alone[0]), None)
    names = ", ".join(path.name for path in alone) or "no data file"
    raise DataError(
        f"--dataset {folder}: expected train and test files ({', '.join(SUFFIXES)}), found {names}",
        "name them train.jsonl and test.jsonl, or give the one file to use",
    )


def _read_all(files: Sequence[Path]) -> list[Numbered]:
    return [row for path in files for row in read_file(path)]


def read_file(path: Path) -> list[Numbered]:
    """Read one .jsonl, .json, .csv or .parquet file."""
    readers = {".jsonl": _read_jsonl, ".json": _read_json, ".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise DataError(f"--dataset {path}: a file of unknown kind", f"expected one of {', '.join(SUFFIXES)}")
    try:
        return list(readers[path.suffix](path))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start})", "save the file as UTF-8") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read_jsonl(path: Path) -> Iterator[Numbered]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except json.JSONDecodeError:
                yield Numbered(number, Unusable("not valid JSON"))
                continue
            yield Numbered(number, value if isinstance(value, dict) else Unusable("not a JSON object"))


def _read_json(path: Path) -> Iterator[Numbered]:
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{error.lineno}: not valid JSON: {error.msg}",
            "expected a list of objects; one object a line is .jsonl",
        ) from error
    if not isinstance(values, list):
        raise DataError(f"{path}: expected a list of objects, found {type(values).__name__}")
    for number, value in enumerate(values, start=1):
        yield Numbered(number, value if isinstance(value, dict) else Unusable("not a JSON object"))


def _read_csv(path: Path) -> Iterator[Numbered]:
    csv.field_size_limit(2**31 - 1)  # schemas are longer than csv's 128 KiB default
    with path.open(encoding="utf-8-sig", newline="") as lines:
        try:
            yield from _numbered(list(csv.DictReader(lines)))
        except csv.Error as error:
            raise DataError(f"{path}: not a CSV file: {error}") from error


def _read_parquet(path: Path) -> Iterator[Numbered]:
    import pyarrow
    import pyarrow.parquet

    try:
        yield from _numbered(pyarrow.parquet.read_table(path).to_pylist())
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from error


def load_hub(dataset: str) -> tuple[Any, Any | None]:
    """The train and test splits of a data set on the hub, as `datasets.Dataset`s on disk."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    hint = "give a local folder or file with --dataset, or check the name, HF_TOKEN and the network"
    try:
        splits: dict[str, Any] = load_dataset(dataset)
    except (DatasetNotFoundError, HfHubHTTPError, OfflineModeIsEnabled, ConnectionError, FileNotFoundError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"--dataset {dataset}: not a local path, and the hub cannot give it: {reason}", hint) from error
    if "train" not in splits:
        raise DataError(f"--dataset {dataset}: has no split called train, only {', '.join(splits)}")
    return splits["train"], next((splits[name] for name in HUB_TEST_SPLITS if name in splits), None)


@dataclass(frozen=True)
class Sizes:
    """Rows to train on, and rows held out."""

    train: int
    test: int


def split_sizes(total: int, source: DataSource, train_size: int | None) -> Sizes:
    """How to divide one undivided table of `total` usable rows.

    The task's published numbers (text-to-SQL: 10,000 + 2,500 of 12,500) are kept where the table has as
    many rows; otherwise the same proportion is. An explicit train_size is kept while something is left to
    hold out. The answer does not depend on how many rows are measured, so `evaluate` sees the same split.
    """
    held_out = source.eval_size / source.rows
    if train_size is not None and train_size < total:
        return Sizes(train_size, min(total - train_size, source.eval_size))
    used = min(total, source.rows if train_size is None else total)
    test = max(1, round(used * held_out)) if used > 1 else 0
    return Sizes(used - test, test)


def arranged(count: int, seed: int, classes: Sequence[str] | None = None) -> list[int]:
    """The numbers 0..count-1 in an order that depends on the seed alone.

    With `classes` (one a row) each beginning of the order has the classes' shares, as near as can be: the k-th of
    n rows of a class stands at (k - 1/2) / n of the way.
    """
    order = list(range(count))
    random.Random(seed).shuffle(order)
    if classes is None:
        return order
    sizes = Counter(classes)
    seen: Counter[str] = Counter()
    places = {}
    for index in order:
        places[index] = (seen[classes[index]] + 0.5) / sizes[classes[index]]
        seen[classes[index]] += 1
    return sorted(order, key=lambda index: places[index])  # stable: rows of one place stay shuffled
