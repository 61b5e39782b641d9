"""Images as they come: each is shown as a person sees it, or left out with the reason."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image, ImageDraw
from transformers.models.gemma4.processing_gemma4 import Gemma4Processor

from finetune.pictures import MANY_PIXELS, FilePicture, StoredPicture, as_seen
from finetune.reader import Reader
from finetune.tasks.base import Unusable

RED, BLUE = (220, 30, 20), (20, 40, 230)
ORIENTATION = 0x0112


def half_red(width: int = 64, height: int = 32) -> Image.Image:
    """Red on the left, blue on the right."""
    image = Image.new("RGB", (width, height), BLUE)
    ImageDraw.Draw(image).rectangle((0, 0, width // 2 - 1, height), fill=RED)
    return image


def palette_with_a_hole() -> Image.Image:
    image = half_red().convert("P", palette=Image.Palette.ADAPTIVE, colors=2)
    image.info["transparency"] = image.getpixel((60, 5))
    return image


def faded() -> Image.Image:
    image = half_red().convert("RGBA")
    image.putalpha(Image.new("L", image.size, 255))
    image.paste((0, 0, 0, 0), (32, 0, 64, 32))
    return image


def deep(kind: Any, top: float) -> Image.Image:
    """Grey of more than 8 bits: the left half is two thirds bright, the right half dark."""
    values = numpy.zeros((32, 64), dtype=kind)
    values[:, :32], values[0, 0] = top * 2 / 3, top
    return Image.fromarray(values)


def turned(image: Image.Image, orientation: int) -> tuple[Image.Image, dict[str, Any]]:
    """The image as a camera stores it that was held otherwise: pixels lying, and a note of how to turn them."""
    back = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return image.transpose(back[orientation]), {"exif": exif}


# format, image, what to save it with, colours of the left and the right half as a person sees them
SEEN: dict[str, tuple[str, Callable[[], Any], tuple[Any, Any]]] = {
    "RGB": ("png", half_red, (RED, BLUE)),
    "JPEG": ("jpg", half_red, (RED, BLUE)),
    "grey": ("png", lambda: half_red().convert("L"), ((86,) * 3, (55,) * 3)),
    "black and white": ("png", lambda: half_red().convert("L").point(lambda v: v > 70 and 255).convert("1"),
                        ((255,) * 3, (0,) * 3)),
    "palette": ("gif", lambda: half_red().convert("P", palette=Image.Palette.ADAPTIVE), (RED, BLUE)),
    "palette with transparency": ("png", palette_with_a_hole, (RED, (255,) * 3)),
    "RGBA on white": ("png", faded, (RED, (255,) * 3)),
    "grey with alpha on white": ("png", lambda: faded().convert("LA"), ((86,) * 3, (255,) * 3)),
    "CMYK": ("jpg", lambda: half_red().convert("CMYK"), (RED, BLUE)),
    "16 bits": ("png", lambda: deep(numpy.uint16, 65535), ((170,) * 3, (0,) * 3)),
    "16 bits in TIFF": ("tif", lambda: deep(numpy.uint16, 65535), ((170,) * 3, (0,) * 3)),
    "32 bits": ("tif", lambda: deep(numpy.int32, 65535), ((170,) * 3, (0,) * 3)),
    "floating point": ("tif", lambda: deep(numpy.float32, 1.0), ((170,) * 3, (0,) * 3)),
    "lying on its left side": ("jpg", lambda: turned(half_red(), 6), (RED, BLUE)),
    "lying on its right side": ("jpg", lambda: turned(half_red(), 8), (RED, BLUE)),
    "upside down": ("jpg", lambda: turned(half_red(), 3), (RED, BLUE)),
    "WebP": ("webp", half_red, (RED, BLUE)),
    "YCbCr": ("tif", lambda: half_red().convert("YCbCr"), (RED, BLUE)),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN)
def test_each_kind_is_shown_as_a_person_sees_it(tmp_path: Path, name: str) -> None:
    suffix, make, (left, right) = SEEN[name]
    made = make()
    image, options = made if isinstance(made, tuple) else (made, {})
    path = tmp_path / f"picture.{suffix}"
    image.save(path, **options)
    seen = as_seen(FilePicture(str(path), "picture"))
    assert not isinstance(seen, Unusable), seen
    assert (seen.mode, seen.size) == ("RGB", (64, 32))
    for x, wanted in ((16, left), (48, right)):
        assert numpy.abs(numpy.subtract(seen.getpixel((x, 16)), wanted)).max() <= 12, (x, seen.getpixel((x, 16)))


def as_file(folder: Path, name: str, content: bytes) -> FilePicture:
    path = folder / name
    path.write_bytes(content)
    return FilePicture(str(path), name)


def jpeg(image: Image.Image | None = None) -> bytes:
    from io import BytesIO

    stream = BytesIO()
    (image or half_red(400, 300)).save(stream, "JPEG")
    return stream.getvalue()


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "cut short": (lambda: jpeg()[: len(jpeg()) // 2], "image is damaged or cut short"),
    "only its header": (lambda: jpeg()[:300], "image is damaged or cut short"),
    "zero bytes": (lambda: b"", "image is empty (0 bytes)"),
    "a text file": (lambda: b"This is no image.\n" * 20, "image is not in a format that can be read"),
    "an HTML page": (lambda: b"<!doctype html><h1>404</h1>", "image is not in a format that can be read"),
    "a PNG cut short": (lambda: b"\x89PNG\r\n\x1a\n" + b"\0" * 30, "image"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_shown_has_a_reason(tmp_path: Path, name: str) -> None:
    content, reason = BAD[name]
    seen = as_seen(as_file(tmp_path, "picture.jpg", content()))
    assert isinstance(seen, Unusable) and seen.reason.startswith(reason)


def test_files_that_are_not_there_or_are_folders_have_a_reason(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "no.jpg", "image file is not there"),
        (tmp_path, "image cannot be read: Is a dir"),
    ):
        seen = as_seen(FilePicture(str(path), "x"))
        assert isinstance(seen, Unusable) and seen.reason.startswith(reason)


def test_every_cut_of_a_file_is_either_shown_or_has_a_reason(tmp_path: Path) -> None:
    whole = {"jpg": jpeg(half_red(80, 60))}
    for suffix in ("png", "gif", "webp", "tif", "bmp"):
        half_red(80, 60).save(tmp_path / f"whole.{suffix}")
        whole[suffix] = (tmp_path / f"whole.{suffix}").read_bytes()
    for suffix, content in whole.items():
        for size in range(0, len(content), max(1, len(content) // 40)):
            as_seen(as_file(tmp_path, f"cut.{suffix}", content[:size]))  # raises nothing


def test_damaged_exif_data_are_passed_over(tmp_path: Path) -> None:
    content = jpeg()
    note = b"Exif\0\0" + b"\xff" * 20
    spoiled = content[:2] + b"\xff\xe1" + (len(note) + 2).to_bytes(2, "big") + note + content[2:]
    seen = as_seen(as_file(tmp_path, "x.jpg", spoiled))
    assert not isinstance(seen, Unusable) and seen.size == (400, 300)


def test_huge_images_are_reduced_and_too_huge_ones_left_out(tmp_path: Path) -> None:
    for suffix in ("jpg", "png"):
        path = tmp_path / f"huge.{suffix}"
        half_red(9000, 6000).save(path)
        seen = as_seen(FilePicture(str(path), "huge"))
        assert not isinstance(seen, Unusable)
        assert seen.width * seen.height <= MANY_PIXELS and abs(seen.width / seen.height - 1.5) < 0.01
        assert numpy.abs(numpy.subtract(seen.getpixel((9, 9)), RED)).max() <= 4
    bomb = as_file(tmp_path, "bomb.ppm", b"P6 20000 20000 255\n")
    assert as_seen(bomb) == Unusable("image of more than 179 million pixels")


@pytest.mark.parametrize(
    "size", [(1, 1), (1, 500), (5000, 3), (3, 5000), (4000, 40), (3, 3), (17, 999), (500, 375), (224, 224)]
)
def test_any_shape_becomes_the_tokens_that_were_counted(image_reader: Reader, tmp_path: Path, size: Any) -> None:
    """What the plan of a row counts by size is what the processor makes of the pixels."""
    Image.new("RGB", size, RED).save(tmp_path / "x.png")
    picture = FilePicture(str(tmp_path / "x.png"), "x")
    processor: Gemma4Processor = image_reader.processor
    made = processor(images=[[as_seen(picture)]], text=["<|image|>"], add_special_tokens=False)
    ids = image_reader.image_tokens(size[1], size[0])
    assert list(made["input_ids"][0]) == ids
    assert 3 <= len(ids) <= 72
    pixels = image_reader.pixels([picture])
    assert set(pixels) == {"pixel_values", "image_position_ids"}
    assert pixels["pixel_values"].shape == (1, 630, 768)


def stored(folder: Path) -> list[StoredPicture]:
    """Pictures in a parquet file: bytes, and a path."""
    from datasets import Dataset
    from datasets import Image as ImageFeature

    half_red().save(folder / "b.png")
    rows = {"picture": [str(folder / "b.png")] * 2, "label": ["a", "b"]}
    Dataset.from_dict(rows).cast_column("picture", ImageFeature()).to_parquet(folder / "x.parquet")
    table = Dataset.from_parquet(str(folder / "x.parquet"), cache_dir=str(folder / "cache"))
    table = table.cast_column("picture", ImageFeature(decode=False)).select_columns(["picture"])
    return [StoredPicture(table, "picture", index, str(folder)) for index in range(2)]


def test_stored_pictures_are_pickled_as_places(tmp_path: Path) -> None:
    pictures = stored(tmp_path)
    size = len(pickle.dumps(pictures))
    assert size < 10_000
    for picture in pickle.loads(pickle.dumps(pictures)):
        seen = as_seen(picture)
        assert not isinstance(seen, Unusable) and seen.size == (64, 32)
    assert [picture.name for picture in pictures] == ["image of row 1", "image of row 2"]


def test_a_stored_path_begins_at_its_files_folder(tmp_path: Path) -> None:
    half_red().save(tmp_path / "x.png")
    for cell, fine in (("x.png", True), ({"bytes": None, "path": "x.png"}, True), (None, False), ("", False)):
        seen = as_seen(StoredPicture([{"image": cell}], "image", 0, str(tmp_path)))
        assert isinstance(seen, Unusable) is not fine, cell


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    half_red().save(path)
    path.chmod(0)
    assert as_seen(FilePicture(str(path), "x")) == Unusable("image cannot be read: Permission denied")
