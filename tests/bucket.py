"""A stand-in for Cloud Storage's JSON API on the loopback: uploads (whole and resumable), listing, reading.

Used through STORAGE_EMULATOR_HOST: `environment` says so.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import google_crc32c

from tests.loopback import Handler, served


def environment(url: str) -> dict[str, str]:
    """For a process that is to use the storage at `url`."""
    return {"STORAGE_EMULATOR_HOST": url}


class Storage:
    """What the server holds, by `bucket/name`, and how it is to misbehave."""

    def __init__(self, *buckets: str) -> None:
        self.url = ""
        self.buckets = set(buckets)
        self.closed: set[str] = set()
        """Buckets that this account may not use."""
        self.objects: dict[str, bytes] = {}
        self.uploads: list[tuple[str, bytes]] = []
        self.failures: list[int] = []
        """Statuses to answer the next uploads with."""
        self.loses: str | None = None
        """An object of this name is taken, and not kept."""

    def environment(self) -> dict[str, str]:
        """For a process that is to use this storage."""
        return environment(self.url)

    def keep(self, name: str, content: bytes) -> dict[str, Any]:
        """Take an object; its metadata."""
        if self.loses is None or not name.endswith(self.loses):
            self.objects[name] = content
        return metadata(name, content)

    def answer(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON (or bytes)."""
        url = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        _, _, rest = url.path.partition("/storage/v1/b/")
        bucket, _, name = rest.partition("/o")
        name = unquote(name.removeprefix("/"))
        if url.path.startswith("/resumable/"):
            return self._part(int(url.path.rpartition("/")[2]), headers["Content-Range"], body)
        if bucket in self.closed:
            return 403, {}, {"error": {"code": 403, "message": "it lacks storage.objects.list access"}}
        if bucket not in self.buckets:
            return 404, {}, {"error": {"code": 404, "message": "The specified bucket does not exist."}}
        if url.path.startswith("/upload/"):
            if self.failures:
                status = self.failures.pop(0)
                return status, {}, {"error": {"code": status, "message": "busy"}}
            if query["uploadType"] == "resumable":
                self.uploads.append((f"{bucket}/{query['name']}", b""))
                return 200, {"Location": f"{self.url}/resumable/{len(self.uploads) - 1}"}, {}
            boundary = b"--" + headers["Content-Type"].partition("boundary=")[2].strip('"').encode()
            _, about, content = body.removesuffix(b"\n" + boundary + b"--").split(boundary, 2)
            told = json.loads(about.partition(b"\n\n")[2])
            return 200, {}, self.keep(f"{bucket}/{told['name']}", content.partition(b"\n\n")[2])
        if name:
            found = self.objects.get(f"{bucket}/{name}")
            if found is None:
                return 404, {}, {"error": {"code": 404, "message": "No such object"}}
            return 200, {}, found if query.get("alt") == "media" else metadata(f"{bucket}/{name}", found)
        prefix = f"{bucket}/{query.get('prefix', '')}"
        items = [metadata(key, content) for key, content in sorted(self.objects.items()) if key.startswith(prefix)]
        return 200, {}, {"items": items}

    def _part(self, number: int, place: str, body: bytes) -> tuple[int, dict[str, str], Any]:
        name, so_far = self.uploads[number]
        self.uploads[number] = (name, so_far + body)
        whole = int(place.rpartition("/")[2])
        if len(so_far + body) < whole:
            return 308, {"Range": f"bytes=0-{len(so_far + body) - 1}"}, {}
        return 200, {}, self.keep(name, so_far + body)


def metadata(key: str, content: bytes) -> dict[str, Any]:
    bucket, _, name = key.partition("/")
    made = "2026-01-01T00:00:00.000Z"
    sums = {"crc32c": checksum(content), "md5Hash": base64.b64encode(hashlib.md5(content).digest()).decode()}
    return {"bucket": bucket, "name": name, "size": str(len(content)), "timeCreated": made, "updated": made, **sums}


def checksum(content: bytes) -> str:
    """As Cloud Storage writes it."""
    return base64.b64encode(google_crc32c.Checksum(content).digest()).decode()


def _handler(storage: Storage) -> type[Handler]:
    class StorageHandler(Handler):
        def answer(self) -> None:
            status, headers, found = storage.answer(self.command, self.path, self.headers, self.body())
            self.reply(status, headers, found if isinstance(found, bytes) else json.dumps(found).encode())

        do_GET = do_POST = do_PUT = do_DELETE = answer

    return StorageHandler


@contextmanager
def serve(*buckets: str) -> Iterator[Storage]:
    """A storage service with these empty buckets, for as long as the block lasts."""
    storage = Storage(*buckets)
    with served(_handler(storage)) as storage.url:
        yield storage
