"""gs://BUCKET/PATH as a folder, through gcsfs: in parallel, tried again while the bucket is busy, checksums compared.

Credentials are those of the environment. STORAGE_EMULATOR_HOST names an emulator, which needs none.
"""

import base64
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from finetune.errors import FinetuneError, StorageError

IN_BUCKET = re.compile(r"gs://[a-z0-9][\w.-]+(/.*)?")
PART = 32 * 2**20
"""Bytes of one request."""
AHEAD = 4
"""Requests on their way at once: a single connection does not fill a cloud machine's network."""
EMULATOR = "STORAGE_EMULATOR_HOST"
Work = TypeVar("Work")
Result = TypeVar("Result")


@contextmanager
def bucket_errors(failed: str, hint: str, kind: type[FinetuneError] = StorageError) -> Iterator[None]:
    """What goes wrong with a bucket in the block is raised as `kind`: `failed`, the reason, and `hint`.

    gcsfs tries each request again while the bucket is busy (429, 5xx) or out of reach, for about a minute.
    """
    import aiohttp
    from google.auth.exceptions import GoogleAuthError

    gcsfs = _gcsfs()
    try:
        yield
    except (
        OSError,
        RuntimeError,
        ValueError,
        GoogleAuthError,
        aiohttp.ClientError,
        gcsfs.retry.HttpError,
        gcsfs.retry.ChecksumError,
        gcsfs.retry.NonRetryableError,
    ) as error:
        if isinstance(error, FinetuneError):
            raise
        raise kind(f"{failed}: {_reason(error)}", hint) from error


def _reason(error: Exception) -> str:
    """One line of what a bucket said, in the words of who has to mend it."""
    text = (str(error).strip() or type(error).__name__).splitlines()
    if isinstance(error, FileNotFoundError) and error.errno is None:  # gcsfs's word for 404
        return "there is no such bucket, or this machine's account may not see it"
    if text[0].startswith("Forbidden") or getattr(error, "code", None) in (401, 403, "401", "403"):
        return f"this machine's account may not do that: {text[-1]}"
    return text[0]


def connect() -> Any:
    """Cloud Storage as a file system."""
    return _gcsfs().GCSFileSystem(token="anon" if os.environ.get(EMULATOR) else None)


def _gcsfs() -> Any:
    """The library. It asks for a bucket's kind by gRPC, for which emulators let it wait a minute a bucket."""
    if os.environ.get(EMULATOR):
        os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    import gcsfs

    return gcsfs


class BucketFolder:
    """gs://BUCKET/PATH."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.root = self.url.removeprefix("gs://")
        with self._errors("cannot be reached"):
            self.storage = connect()

    def _errors(self, failed: str, name: str = "") -> Any:
        place = f"{self.url}/{name}" if name else self.url
        return bucket_errors(f"{place} {failed}", "see that the bucket is there, and that the account may use it")

    def files(self, deep: bool = True) -> dict[str, int]:
        with self._errors("cannot be listed"):
            self.storage.invalidate_cache()
            found = self.storage.find(self.root, detail=True, withdirs=False, maxdepth=None if deep else 1)
            if not found:  # gcsfs finds nothing in a bucket that is not there, too
                self.storage.ls(self.root.partition("/")[0], refresh=True)
        inside = {name.removeprefix(self.root).lstrip("/"): entry["size"] for name, entry in found.items()}
        return {name: int(size) for name, size in inside.items() if name and not name.endswith("/")}

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        self._info(name)
        with self._errors("cannot be read", name):
            return bytes(self.storage.cat_file(f"{self.root}/{name}", start=start, end=end))

    def _info(self, name: str) -> Mapping[str, Any]:
        """What the bucket says of an object. Raises FileNotFoundError, as a local folder does."""
        with self._errors("cannot be read", name):
            try:
                found: Mapping[str, Any] = self.storage.info(f"{self.root}/{name}")
            except FileNotFoundError:
                found = {}
        if found.get("type") != "file":
            raise FileNotFoundError(f"{self.url}/{name}")
        return found

    def stream(self, name: str) -> Iterator[bytes]:
        import google_crc32c

        info = self._info(name)
        size, digest = int(info["size"]), google_crc32c.Checksum()
        spans = [(start, min(start + PART, size)) for start in range(0, size, PART)]
        with ThreadPoolExecutor(AHEAD) as pool:
            for data in ahead(pool, lambda span: self._part(name, span), spans):
                digest.update(data)
                yield data
        _check(f"{self.url}/{name}", info, digest)

    def _part(self, name: str, span: tuple[int, int]) -> bytes:
        with self._errors("cannot be read", name):
            data = bytes(self.storage.cat_file(f"{self.root}/{name}", start=span[0], end=span[1]))
            if len(data) != span[1] - span[0]:
                raise OSError(f"{len(data):,} bytes came of {span[1] - span[0]:,}")
            return data

    def write(self, name: str, data: bytes) -> None:
        with self._errors("cannot be written", name):
            self.storage.pipe_file(f"{self.root}/{name}", data, consistency="md5")

    def put(self, name: str, source: Path) -> None:
        with self._errors("cannot be written", name):
            self.storage.put_file(str(source), f"{self.root}/{name}", consistency="md5")

    def delete(self, name: str) -> None:
        with self._errors("cannot be removed", name), suppress(FileNotFoundError):
            self.storage.rm_file(f"{self.root}/{name}")


def _check(place: str, info: Mapping[str, Any], digest: Any) -> None:
    wanted = info.get("crc32c")
    if wanted and base64.b64encode(digest.digest()).decode() != wanted:
        raise StorageError(f"{place} did not arrive as its checksum says", "run the same command again")


def ahead(pool: ThreadPoolExecutor, work: Callable[[Work], Result], items: Iterable[Work]) -> Iterator[Result]:
    """The results in order, with at most AHEAD of them begun and not yet taken: they are large."""
    begun: deque[Future[Result]] = deque()
    for item in items:
        begun.append(pool.submit(work, item))
        if len(begun) == AHEAD:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()
