"""Images as they come: where each one is, and how a person sees it. Nothing is read before it is needed.

The kinds here fit tasks/base.Picture. `as_seen` is the only way from a picture to pixels, for the check before
training, for training and for evaluation alike.
"""

import os
import struct
import zlib
from dataclasses import dataclass
from io import BytesIO
from math import ceil, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finetune.tasks.base import Picture, Unusable

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (
    *(".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"),
    *(".pgm", ".pbm", ".pnm", ".avif", ".jp2", ".tga", ".ico"),
)
"""File names that claim to be images. Whether they are is found out by reading them."""
MANY_PIXELS = 16_000_000
"""Larger images are reduced while they are read. Gemma 4 looks at 0.65 million pixels (280 soft tokens)."""
WHITE = (255, 255, 255, 255)
BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, IndexError, KeyError)
"""What PIL's readers raise where a file is damaged."""


class EmptyFileError(OSError):
    """An image of no bytes."""


class RemoteImageError(OSError):
    """An image that would have to be fetched."""


@dataclass(frozen=True)
class FilePicture:
    """An image file. `name` is its path as the user knows it, within the data set."""

    path: str
    name: str

    def open(self) -> "Image":
        """Read the file at once: on a bucket mount, one sequential read."""
        return _decode(Path(self.path).read_bytes())


@dataclass(frozen=True)
class HeldPicture:
    """An image whose file is in memory."""

    data: bytes
    name: str

    def open(self) -> "Image":
        return _decode(self.data)


@dataclass(frozen=True)
class RemotePicture:
    """An address on the web. Rows are read again and again: what they need has to be here."""

    name: str

    def open(self) -> "Image":
        raise RemoteImageError


@dataclass(frozen=True)
class StoredPicture:
    """An image in a `datasets.Dataset` on disk: bytes, a path, or the {"bytes", "path"} of an Image column not decoded.

    `folder` is where relative paths begin. Pickled, it is only where the data set's files are.
    """

    table: Any
    column: str
    index: int
    folder: str

    @property
    def name(self) -> str:
        return f"image of row {self.index + 1}"

    def open(self) -> "Image":
        cell = self.table[self.index][self.column]
        if isinstance(cell, dict):
            cell = cell.get("bytes") or cell.get("path")
        if isinstance(cell, str):
            cell = Path(self.folder, cell).read_bytes()
        if not isinstance(cell, bytes):
            raise EmptyFileError
        return _decode(cell)


def _decode(data: bytes) -> "Image":
    from PIL import Image

    if not data:
        raise EmptyFileError
    return Image.open(BytesIO(data))


def as_seen(picture: Picture) -> "Image | Unusable":
    """The picture in RGB, upright, on white where it is transparent; or why it cannot be shown.

    Any side may be one pixel. Of an animation, the first frame.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        return _rgb(_upright(_loaded(picture.open())))
    except Image.DecompressionBombError:
        return Unusable(f"image of more than {2 * (Image.MAX_IMAGE_PIXELS or 0) / 1e6:.0f} million pixels")
    except FileNotFoundError:
        return Unusable("image file is not there")
    except (IsADirectoryError, PermissionError) as error:
        return Unusable(f"image cannot be read: {os.strerror(error.errno) if error.errno else error}")
    except RemoteImageError:
        return Unusable("image is on the web (download it, and write its path)")
    except EmptyFileError:
        return Unusable("image is empty (0 bytes)")
    except UnidentifiedImageError:
        return Unusable("image is not in a format that can be read")
    except BROKEN:
        return Unusable("image is damaged or cut short")


def _loaded(image: "Image") -> "Image":
    """Decode it. What is far larger than the model looks at becomes smaller by a whole factor, to keep memory low."""
    width, height = image.size
    factor = ceil(sqrt(width * height / MANY_PIXELS))
    if factor > 1:
        image.draft(None, (width // factor, height // factor))  # JPEG only: decodes at a half, a quarter, an eighth
    image.load()
    left = ceil(sqrt(image.width * image.height / MANY_PIXELS))
    # Palettes and 16-bit modes cannot be averaged; they keep their size.
    return image.reduce(left) if left > 1 and image.mode in ("L", "RGB", "RGBA", "CMYK", "LA") else image


def _upright(image: "Image") -> "Image":
    """Turned as its EXIF data say. Damaged EXIF data are passed over, as every viewer does."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except BROKEN:
        return image


def _rgb(image: "Image") -> "Image":
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        image = _eight_bits(image)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, WHITE), layer).convert("RGB")
    return image.convert("RGB")


def _eight_bits(image: "Image") -> "Image":
    """Grey of 16 bits, 32 bits or floating point, which PIL would clip at 255, as grey of 8 bits."""
    import numpy
    from PIL import Image

    values = numpy.asarray(image, dtype=numpy.float32)
    highest = float(values.max())
    tops = {"F": (1.0, 255.0, 65535.0), "I": (255.0, 65535.0)}.get(image.mode, (65535.0,))
    top = next((top for top in tops if highest <= top), highest)
    return Image.fromarray((values / top * 255).clip(0, 255).round().astype(numpy.uint8))
