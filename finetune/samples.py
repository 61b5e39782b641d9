"""A glance at a data set before any GPU time is spent: are the task's columns there?

Only what is cheap: names of files, the first rows of .jsonl, the header of .csv. Rows are judged one by one,
and all formats read in full, when the run starts (rows.py).
"""

import csv
import json
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from finetune.rows import SUFFIXES, data_files

ROWS_LOOKED_AT = 100
Problem = tuple[str, str]
"""Message and hint."""


def check_columns(path: Path, columns: Sequence[str], task: str) -> Problem | None:
    """What is wrong with the data set at `path` for a task that needs `columns`, if anything shows at a glance."""
    if path.is_file():
        if path.suffix not in SUFFIXES:
            return f"{path}: a file of unknown kind", f"expected one of {', '.join(SUFFIXES)}"
        return _check_file(path, columns, task)
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
    problems = (_check_file(file, columns, task) for file in looked_at + files["test"] * bool(files["train"]))
    return next((problem for problem in problems if problem), None)


def _check_file(path: Path, columns: Sequence[str], task: str) -> Problem | None:
    try:
        if path.stat().st_size == 0:
            return f"{path}: is empty", "give a file with rows"
        if path.suffix == ".jsonl":
            return _check_jsonl(path, columns, task)
        if path.suffix == ".csv":
            csv.field_size_limit(2**31 - 1)
            with path.open(encoding="utf-8-sig", newline="") as lines:
                return _check_names(path, 1, next(csv.reader(lines), []), columns, task)
    except UnicodeDecodeError as error:
        return f"{path}: is not UTF-8 text (byte {error.start})", "save the file as UTF-8"
    except csv.Error as error:
        return f"{path}: is not a CSV file: {error}", "save it as comma-separated values with a header line"
    except OSError as error:
        return f"{path}: cannot be read: {error.strerror}", "check the path and its permissions"
    return None


def _check_jsonl(path: Path, columns: Sequence[str], task: str) -> Problem | None:
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
    return _check_names(path, min(names.values()), list(names), columns, task)


def _check_names(path: Path, line: int, names: Sequence[str], columns: Sequence[str], task: str) -> Problem | None:
    missing = [column for column in columns if column not in names]
    if not missing:
        return None
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    near = {column: get_close_matches(column, [n for n in names if n not in columns], 1, 0.7) for column in missing}
    renames = ", ".join(f"{found[0]} to {column}" for column, found in near.items() if found)
    hint = (f"rename {renames}; " if renames else "") + f"{task} needs the columns {', '.join(columns)}"
    return f"{path}:{line}: no column {', '.join(missing)}; found {shown or 'none'}", hint
