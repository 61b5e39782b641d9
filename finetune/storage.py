"""One way to a folder, wherever it is: on a local disk, a mounted bucket, or gs://BUCKET/PATH (through gcsfs).

What is written is durable when the call returns, and is never renamed: on a mounted bucket renaming a folder is copy
and delete, or refused. What is read comes front to back, and from a bucket as its checksum says.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Protocol

from finetune.errors import StorageError
from finetune.gcs import BucketFolder

CHUNK = 16 * 2**20
"""Bytes read or written at a time on a disk or a mount."""
NOT_BUCKETS = ("fuseblk", "fuse.fuse-overlayfs", "fuse.lxcfs")
"""File systems in user space that are local disks, or views of one."""


class Folder(Protocol):
    """A folder and what is below it. `url` is how a user would write it. Raises StorageError where it fails."""

    url: str

    def files(self, deep: bool = True) -> dict[str, int]:
        """Bytes by name (with / between folders), all levels or the first. Empty where there is no such folder."""

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Some bytes of a file. Raises FileNotFoundError if there is none."""

    def stream(self, name: str) -> Iterator[bytes]:
        """A whole file, from its first byte to its last."""

    def write(self, name: str, data: bytes) -> None:
        """Write a small file."""

    def put(self, name: str, source: Path) -> None:
        """Copy a local file here."""

    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""


def open_folder(place: str | Path) -> Folder:
    """The folder that a user's path means."""
    return BucketFolder(str(place)) if is_bucket(place) else LocalFolder(Path(place).expanduser())


def is_bucket(place: str | Path) -> bool:
    """Whether a path is one that no local program can open."""
    return str(place).startswith("gs://")


def is_url(place: str) -> bool:
    """Whether somebody wrote a path in a bucket, be it the right way (gs://), or another (gs:/, s3://)."""
    return re.match(r"[a-z][a-z0-9]+:/", place) is not None


def parent(place: str) -> str:
    """The folder above."""
    return place.rstrip("/").rpartition("/")[0] if is_bucket(place) else str(Path(place).expanduser().parent)


def whole(place: str) -> str:
    """A path without ~ and, on a disk, from the root."""
    return place.rstrip("/") if is_bucket(place) else str(Path(place).expanduser().resolve())


def is_mount(place: Path) -> bool:
    """Whether a path lies on a bucket that is mounted (Cloud Storage FUSE and its like)."""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return False  # no Linux, so no such mount
    real = os.path.realpath(place)
    mounts = [(line.split()[1].replace("\\040", " "), line.split()[2]) for line in lines]
    above = [found for found in mounts if real == found[0] or real.startswith(found[0].rstrip("/") + "/")]
    kind = max(above, key=lambda found: len(found[0]), default=("", ""))[1]
    return kind.startswith("fuse") and kind not in NOT_BUCKETS


def copied(folder: Folder, name: str, target: Path) -> Iterator[bytes]:
    """Copy a file of a folder to a local one, and give its chunks on the way. FileNotFoundError: it is not there."""
    chunks = folder.stream(name)
    with told(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        file = target.open("wb", buffering=0)
    with file:
        for chunk in chunks:
            with told(str(target)):
                _write_all(file, chunk)
            yield chunk


def _write_all(file: FileIO, chunk: bytes) -> None:
    left = memoryview(chunk)
    while left:  # an unbuffered write may take less than it was given
        left = left[file.write(left) :]


@contextmanager
def told(what: str) -> Iterator[None]:
    """Raise what goes wrong with the disk in the block as StorageError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageError(f"{error.filename or what}: {reason}", "see that the disk is there and has room") from error


class LocalFolder:
    """A folder on a disk or a mount."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = str(path)

    def files(self, deep: bool = True) -> dict[str, int]:
        found = {}
        with told(self.url):
            for folder, below, names in os.walk(self.path):
                below[:] = below if deep else []
                for name in names:
                    path = Path(folder, name)
                    with suppress(FileNotFoundError):  # being replaced, or a link to nowhere
                        found[path.relative_to(self.path).as_posix()] = path.stat().st_size
        return found

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        with (self.path / name).open("rb") as file:
            file.seek(start)
            return file.read() if end is None else file.read(end - start)

    def stream(self, name: str) -> Iterator[bytes]:
        with (self.path / name).open("rb", buffering=0) as file:
            while True:
                with told(str(self.path / name)):
                    chunk = file.read(CHUNK)
                if not chunk:
                    return
                yield chunk

    def write(self, name: str, data: bytes) -> None:
        self._write(name, [data])

    def put(self, name: str, source: Path) -> None:
        self._write(name, LocalFolder(source.parent).stream(source.name))

    def _write(self, name: str, chunks: Iterable[bytes]) -> None:
        path, size = self.path / name, 0
        with told(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb", buffering=0) as file:
                for chunk in chunks:
                    _write_all(file, chunk)
                    size += len(chunk)
                os.fsync(file.fileno())
            self._sync(path.parent)
            if path.stat().st_size != size:
                raise OSError(f"{path} has {path.stat().st_size:,} bytes after writing {size:,}")

    def delete(self, name: str) -> None:
        path = self.path / name
        with told(str(path)):
            path.unlink(missing_ok=True)
            self._sync(path.parent)
        with suppress(OSError):  # not empty yet; or the root itself, which stays
            if path.parent != self.path:
                path.parent.rmdir()

    def _sync(self, folder: Path) -> None:
        """Make the folder's list of names durable. Mounts have no such thing, and some refuse."""
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
