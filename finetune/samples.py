"""A glance at a data set before any GPU time is spent: are the task's columns there, its images and classes?

Only what is cheap: names of files, the first rows of .jsonl, the header of .csv. Rows are judged one by one,
and all formats read in full, when the run starts (rows.py).
"""

import csv
import json
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from finetune.image_rows import Columns, class_folders, metadata_file, split_folders
from finetune.rows import SUFFIXES, data_files
from finetune.tasks.base import Task

ROWS_LOOKED_AT = 100
Problem = tuple[str, str]
"""Message and hint."""
MEANT = {
    "conversation": "messages",
    "instruction": "prompt",
    "question": "prompt",
    "input": "prompt",
    "answer": "completion",
    "response": "completion",
    "output": "completion",
}
"""Names of columns that are in use elsewhere -> ours."""
Missing = Callable[[Sequence[str]], Problem | None]
"""Column names -> what is missing among them, if anything is."""


def check_columns(path: Path, task: Task) -> Problem | None:
    """What is wrong with the data set at `path` for a task without images, if anything shows at a glance."""
    return _check_tables(path, lambda names: _missing(task, names))


def check_images(path: Path, columns: Columns) -> Problem | None:
    """The same for a task with images."""
    if path.is_file():
        return _check_tables(path, columns.missing)
    train, test = split_folders(path)
    metadata = [file for folder in train + test or [path] if (file := metadata_file(folder))]
    if metadata:
        return next((problem for file in metadata if (problem := _check_file(file, columns.missing))), None)
    classes = [len(class_folders(folder)) for folder in train or [path]]
    files = data_files(path)
    if not train and any(files.values()):
        return _check_tables(path, columns.missing)
    if max(classes) >= 2:
        return None
    found = f"{max(classes)} class folder" + "s" * (max(classes) != 1)
    hint = f"expected {train[0] if train else path}/CLASS/*.jpg for two classes or more, or a metadata.jsonl"
    return f"{path}: no metadata.jsonl or .csv, no data file, and {found}", hint


def _check_tables(path: Path, missing: Missing) -> Problem | None:
    if path.is_file():
        if path.suffix not in SUFFIXES:
            return f"{path}: a file of unknown kind", f"expected one of {', '.join(SUFFIXES)}"
        return _check_file(path, missing)
    files = data_files(path)
    looked_at = files["train"] or (files["other"] + files["test"])
    if not looked_at:
        return f"{path}: no data file ({', '.join(SUFFIXES)}) in this folder", "name them train.jsonl and test.jsonl"
    if not files["train"] and len(looked_at) > 1:
        names = ", ".join(file.name for file in looked_at[:4])
        return (
            f"{path}: no train file among {names}",
            "name them train.jsonl and test.jsonl, or give the one file to use",
        )
    problems = (_check_file(file, missing) for file in looked_at + files["test"] * bool(files["train"]))
    return next((problem for problem in problems if problem), None)


def _check_file(path: Path, missing: Missing) -> Problem | None:
    try:
        if path.stat().st_size == 0:
            return f"{path}: is empty", "give a file with rows"
        if path.suffix == ".jsonl":
            return _check_jsonl(path, missing)
        if path.suffix == ".csv":
            csv.field_size_limit(2**31 - 1)
            with path.open(encoding="utf-8-sig", newline="") as lines:
                return _told(path, 1, missing(next(csv.reader(lines), [])))
    except UnicodeDecodeError as error:
        return f"{path}: is not UTF-8 text (byte {error.start})", "save the file as UTF-8"
    except csv.Error as error:
        return f"{path}: is not a CSV file: {error}", "save it as comma-separated values with a header line"
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror}", "check the path and its permissions"
    return None


def _check_jsonl(path: Path, missing: Missing) -> Problem | None:
    names: dict[str, int] = {}
    broken: tuple[int, str] | None = None
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(islice(lines, ROWS_LOOKED_AT), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                broken = broken or (number, f"is not JSON: {error.msg}")
                continue
            if not isinstance(row, dict):
                broken = broken or (number, f"is not an object but {type(row).__name__}")
                continue
            for name in row:
                names.setdefault(name, number)
    if not names:
        number, what = broken or (1, "is empty")
        return f"{path}:{number}: {what}", 'a .jsonl file has one object a line: {"column": "value", ...}'
    return _told(path, min(names.values()), missing(list(names)))


def _told(path: Path, line: int, problem: Problem | None) -> Problem | None:
    return problem and (f"{path}:{line}: {problem[0]}", problem[1])


def _missing(task: Task, names: Sequence[str]) -> Problem | None:
    """What is missing of the layout that is nearest to these columns, and which of them are meant by it."""
    found = [_compare(layout, names) for layout in task.LAYOUTS]
    pairs = zip(found, task.LAYOUTS, strict=True)
    far = [(len(missing) - len(renames) / 2) / len(layout) for (missing, renames), layout in pairs]
    missing, renames = found[far.index(min(far))]
    if not missing:
        return None
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    wanted = ", or ".join(", ".join(columns) for columns in task.LAYOUTS)
    hint = (f"rename {', '.join(renames)}; " if renames else "") + f"{task.NAME} needs the columns {wanted}"
    return f"no column {', '.join(missing)}; found {shown or 'none'}", hint


def _compare(layout: Sequence[str], names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The columns of a layout that are missing, and the names that seem to be meant: `answer to completion`."""
    missing = [column for column in layout if column not in names]
    others = [name for name in names if name not in layout]
    renames = []
    for column in missing:
        near = [name for name in others if MEANT.get(name.lower()) == column]
        near += get_close_matches(column, others, 1, 0.7)
        renames += [f"{near[0]} to {column}"] if near else []
    return missing, renames
