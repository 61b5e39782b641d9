"""Conversations from files: their images become pictures, found from the data file's folder."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from finetune.chat_rows import read, with_pictures
from finetune.pictures import FilePicture, HeldPicture, as_seen
from finetune.tasks import chat
from finetune.tasks.base import Example, Unusable


def write_image(path: Path, colour: str = "red") -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), colour).save(path)
    return path.read_bytes()


def conversation(**image: Any) -> dict[str, Any]:
    content = [{"type": "image", **image}, {"type": "text", "text": "Which colour?"}]
    return {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "Red."}]}


@pytest.mark.parametrize("key", ["image", "url", "path"])
def test_images_of_parts_are_found_from_the_files_folder(tmp_path: Path, key: str) -> None:
    write_image(tmp_path / "data" / "photos" / "a.png")
    rows = tmp_path / "data" / "rows.jsonl"
    rows.write_text(json.dumps(conversation(**{key: "photos/a.png"})) + "\n{oops\n")
    found = read(str(rows)).train
    example = chat.to_example(found[0].row, 1)  # type: ignore[arg-type]
    assert isinstance(example, Example)
    [picture] = example.images
    assert picture.name == "photos/a.png"
    seen = as_seen(picture)
    assert not isinstance(seen, Unusable) and seen.size == (8, 6)
    assert found[1].row == Unusable("not valid JSON")


def test_images_as_openai_has_them(tmp_path: Path) -> None:
    data = write_image(tmp_path / "a.png")
    said = f"data:image/png;base64,{b64encode(data).decode()}"
    parts: list[Any] = [{"type": "image_url", "image_url": value} for value in ({"url": said}, {"url": "a.png"}, said)]
    content = [*parts, {"type": "image", "image": f"file://{tmp_path}/a.png"}, {"type": "text", "text": "Colours?"}]
    talk = {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "Red."}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(talk) + "\n")
    example = chat.to_example(read(str(tmp_path / "rows.jsonl")).train[0].row, 1)  # type: ignore[arg-type]
    assert isinstance(example, Example)
    assert [picture.name for picture in example.images] == ["image 1", "a.png", "image 3", f"{tmp_path}/a.png"]
    assert all(not isinstance(as_seen(picture), Unusable) for picture in example.images)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://example.com/a.png", "image is on the web (download it, and write its path)"),
        ("data:image/png;base64,####", "image is empty (0 bytes)"),
        ("data:image/png;base64,abcde", "image is not in a format that can be read"),
        ("data:text/plain,hello%20there", "image is not in a format that can be read"),
        ("data:", "image is empty (0 bytes)"),
    ],
)
def test_an_address_that_gives_no_image(url: str, reason: str) -> None:
    row = with_pictures(conversation(url=url), Path("/nowhere"))
    assert as_seen(row["images"][0]) == Unusable(reason)


def test_a_column_of_images_and_a_folder_with_both_splits(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    for split in ("train", "test"):
        row = {"prompt": "Which?", "completion": "Red.", "image": "a.png"}
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row) + "\n")
    tables = read(str(tmp_path))
    assert tables.test is not None
    for item in (*tables.train, *tables.test):
        assert isinstance(item.row, dict) and item.row["images"] == (FilePicture(str(tmp_path / "a.png"), "a.png"),)


def test_images_in_a_parquet_file(tmp_path: Path) -> None:
    data = write_image(tmp_path / "a.png")
    table = pyarrow.table(
        {"prompt": ["Which?"] * 2, "completion": ["Red."] * 2, "images": [[{"bytes": data, "path": None}], []]}
    )
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    first, second = (chat.to_example(item.row, 1) for item in read(str(tmp_path / "rows.parquet")).train)  # type: ignore[arg-type]
    assert isinstance(first, Example) and isinstance(second, Example)
    assert first.images == (HeldPicture(data, "image 1"),) and second.images == ()
    assert not isinstance(as_seen(first.images[0]), Unusable)


def test_what_is_no_image_is_told_when_it_is_looked_at() -> None:
    row = with_pictures({"prompt": "x", "completion": "y", "images": [None, "gone.png"]}, Path("/nowhere"))
    assert [as_seen(picture) for picture in row["images"]] == [
        Unusable("image is empty (0 bytes)"),
        Unusable("image file is not there"),
    ]


def test_rows_without_images_stay_as_they_are() -> None:
    row = {"messages": [{"role": "user", "content": "x"}]}
    assert with_pictures(row, Path()) is row
    assert with_pictures({"prompt": "x", "images": []}, Path()) == {"prompt": "x", "images": []}
