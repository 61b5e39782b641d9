"""The small images that stand in report.html: files in the run directory, made by the run, read by the report.

thumbnails/row-12.jpg      row 12 of the held-out rows, the longer side THUMBNAIL pixels
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from finetune.tasks.base import Unusable

if TYPE_CHECKING:
    from PIL.Image import Image

THUMBNAILS = "thumbnails"
"""The folder in the run directory."""
THUMBNAIL = 160
QUALITY = 80
"""Of JPEG: about 6 KB an image."""


def write_thumbnails(run_dir: Path, rows: Mapping[int, "Callable[[], Image | Unusable]"]) -> None:
    """Make a small image of each row. Each is called for the row's image, upright; one that is Unusable has none."""
    folder = run_dir / THUMBNAILS
    folder.mkdir(parents=True, exist_ok=True)
    for row, show in rows.items():
        image = show()
        if isinstance(image, Unusable):
            continue
        small = image.convert("RGB")
        small.thumbnail((THUMBNAIL, THUMBNAIL))
        data = BytesIO()
        small.save(data, "JPEG", quality=QUALITY)
        _path(folder, row).write_bytes(data.getvalue())


def read_thumbnails(run_dir: Path, rows: Iterable[int]) -> dict[int, str]:
    """Those of the rows that are there, as data: addresses."""
    paths = {row: _path(run_dir / THUMBNAILS, row) for row in rows}
    return {
        row: "data:image/jpeg;base64," + base64.b64encode(path.read_bytes()).decode("ascii")
        for row, path in paths.items()
        if path.is_file()
    }


def _path(folder: Path, row: int) -> Path:
    return folder / f"row-{row}.jpg"
