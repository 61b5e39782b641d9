"""Conversations from wherever the user has them: rows.py's rows, with the images that they name made pictures.

An image is an entry of the column `images` (or `image`), or a part of a message, {"type": "image", "image": ...} or
{"type": "image_url", "image_url": {"url": ...}}: a path from the data file's folder, a data: URL, or the
{"bytes", "path"} of a .parquet file and the hub. Nothing is opened here, and nothing fetched.
"""

import binascii
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from finetune import rows
from finetune.pictures import FilePicture, HeldPicture, RemotePicture
from finetune.rows import Numbered, Tables
from finetune.tasks.base import Picture, Row, Unusable
from finetune.tasks.chat import IMAGE_PARTS, LISTS, content_of

NAMES = ("image", "image_url", "url", "path")
"""Keys of an image part under which the image stands."""
WEB = ("http://", "https://")


def read(dataset: str) -> Tables:
    """All conversations of `dataset`. Raises DataError naming the file and what was expected."""
    tables, path = rows.read(dataset), Path(dataset)
    folder = path if path.is_dir() else path.parent
    test = None if tables.test is None else [_placed(item, folder) for item in tables.test]
    return replace(tables, train=[_placed(item, folder) for item in tables.train], test=test)


def _placed(item: Numbered, folder: Path) -> Numbered:
    return item if isinstance(item.row, Unusable) else Numbered(item.number, with_pictures(item.row, folder))


def with_pictures(row: Row, folder: Path) -> Row:
    """The row, its `images` the pictures of all that it names: those of its parts, else those of its column."""
    found = list(_named(row)) or _listed(row)
    if not found:
        return row
    return {**row, "images": tuple(_picture(value, folder, place) for place, value in enumerate(found, start=1))}


def _named(row: Row) -> Iterator[Any]:
    """The images of the parts of messages that say which they are."""
    for column in (*LISTS, "prompt", "completion"):
        turns = row.get(column)
        for message in turns if isinstance(turns, list) else ():
            content = content_of(message) if isinstance(message, Mapping) else None
            for part in content if isinstance(content, list) else ():
                if isinstance(part, Mapping) and part.get("type") in IMAGE_PARTS:
                    yield from (part[name] for name in NAMES if part.get(name) is not None)


def _listed(row: Row) -> list[Any]:
    value = row.get("images", row.get("image"))
    return value if isinstance(value, list) else [] if value is None else [value]


def _picture(value: Any, folder: Path, place: int) -> Picture:
    if isinstance(value, Mapping):
        data, path = value.get("bytes"), value.get("path")
        if isinstance(data, bytes):
            return HeldPicture(data, path if isinstance(path, str) else f"image {place}")
        value = path or value.get("url")
    if isinstance(value, str) and value.startswith("data:"):
        return HeldPicture(_data_of(value), f"image {place}")
    if isinstance(value, str) and value.startswith(WEB):
        return RemotePicture(value)
    if isinstance(value, str):
        name = value.removeprefix("file://")
        return FilePicture(str(folder / name), name)
    return HeldPicture(b"", f"image {place}") if value is None or isinstance(value, int | float) else value


def _data_of(url: str) -> bytes:
    """What a data: URL holds (RFC 2397). What is no base64 is not an image either, and is told as such."""
    form, _, data = url.partition(",")
    held = unquote_to_bytes(data)
    if not form.endswith(";base64"):
        return held
    try:
        return b64decode(held)
    except binascii.Error:
        return held
