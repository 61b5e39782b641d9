"""Rows are read from every kind of source, bad ones counted by line, and split the same way every time."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from finetune.errors import DataError
from finetune.rows import Sizes, arranged, read, read_file, split_sizes
from finetune.tasks.base import DataSource, Unusable

SOURCE = DataSource("hub/name", rows=12_500, train_size=10_000, eval_size=2_500)
ROWS = [{"q": f"question {number}", "a": f"answer, {number}\nsecond line"} for number in range(3)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    found = read_file(write(tmp_path / f"x{suffix}", ROWS))
    assert [(item.number, item.row) for item in found] == list(enumerate(ROWS, start=1))


def test_bad_lines_are_rows_with_a_reason_and_their_line_number(write_jsonl: Callable[..., Path]) -> None:
    path = write_jsonl("x.jsonl", ['{"q": 1}', "", "{oops", "[1]", '{"q": 2}'])
    assert [(item.number, item.row) for item in read_file(path)] == [
        (1, {"q": 1}),
        (3, Unusable("not valid JSON")),
        (4, Unusable("not a JSON object")),
        (5, {"q": 2}),
    ]


def test_a_folder_with_train_and_test_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "train-00000-of-00002.parquet", ROWS[:2])
    write(tmp_path / "data" / "train-00001-of-00002.parquet", ROWS[2:])
    write(tmp_path / "validation.csv", ROWS[:1])
    tables = read(str(tmp_path))
    assert [len(tables.train), len(tables.test or [])] == [3, 1]


def test_a_folder_with_one_file_is_that_file(tmp_path: Path) -> None:
    write(tmp_path / "rows.jsonl", ROWS)
    tables = read(str(tmp_path))
    assert (len(tables.train), tables.test) == (3, None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"hello", "x.txt: a file of unknown kind"),
        ("x.jsonl", b'{"q": "\xff"}\n', "x.jsonl: not UTF-8 text"),
        ("x.json", b'{"q": 1}', "expected a list of objects, found dict"),
        ("x.json", b"[1,\n2,,3]", "x.json:2: not valid JSON"),
        ("x.parquet", b"PAR?", "x.parquet: not a Parquet file"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(str(tmp_path / name))


def test_a_folder_without_split_names_says_what_is_there(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", ROWS)
    write(tmp_path / "b.jsonl", ROWS)
    with pytest.raises(DataError, match=r"found a\.jsonl, b\.jsonl"):
        read(str(tmp_path))


def test_a_hub_id_without_the_hub_is_an_error_with_a_hint() -> None:
    with pytest.raises(DataError, match="some/thing: not a local path, and the hub cannot give it") as caught:
        read("some/thing")
    assert "HF_TOKEN" in caught.value.hint


@pytest.mark.parametrize(
    ("total", "train_size", "expected"),
    [
        (100_000, None, Sizes(10_000, 2_500)),
        (12_500, None, Sizes(10_000, 2_500)),
        (1_000, None, Sizes(800, 200)),
        (2, None, Sizes(1, 1)),
        (1, None, Sizes(1, 0)),
        (1_000, 300, Sizes(300, 700)),
        (100_000, 300, Sizes(300, 2_500)),
        (100_000, 50_000, Sizes(50_000, 2_500)),
        (1_000, 1_000, Sizes(800, 200)),
        (1_000, 5_000, Sizes(800, 200)),
    ],
)
def test_split_sizes(total: int, train_size: int | None, expected: Sizes) -> None:
    assert split_sizes(total, SOURCE, train_size) == expected


def test_the_order_depends_on_the_seed_alone() -> None:
    assert arranged(50, 7) == arranged(50, 7) != arranged(50, 8)
    assert sorted(arranged(50, 7)) == list(range(50))
