"""A stand-in for the hub's API on the loopback: as much as pushing to it and reading from it need.

Used through HF_ENDPOINT, in a process of its own (huggingface_hub reads it once), with HF_HUB_DISABLE_XET=1.
"""

import base64
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.loopback import Handler, served

OWNER = "me"


class Hub:
    """What the server holds, and how it is to misbehave."""

    def __init__(self) -> None:
        self.url = ""
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.commits: dict[str, int] = defaultdict(int)
        self.requests: list[str] = []
        self.tokens: set[str | None] = set()
        self.failures: dict[str, list[int]] = {}
        """Statuses to answer with, one a request, by a part of the path. 0 closes the connection unanswered."""
        self.refusal: int | None = None
        """Status of every answer."""
        self.large: dict[str, bytes] = {}
        self.served = 0
        """Bytes of files that were read."""
        self.damaged: str | None = None
        """A file of this name is not served as its checksum says."""

    def environment(self, **changes: str) -> dict[str, str]:
        """For a process that is to use this hub."""
        here = {"HF_ENDPOINT": self.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "hf_test"}
        return {**os.environ, **here, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1", **changes}

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """Status and JSON. A status that is due for a failure comes first."""
        if self.refusal:
            return self.refusal, {"error": "no"}
        for part, statuses in self.failures.items():
            if part in path and statuses:
                return statuses.pop(0), {"error": "busy"}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path.endswith("/info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            there = [{**item, "actions": {"upload": {"href": f"{self.url}/large/{item['oid']}"}}} for item in wanted]
            return 200, {"transfer": "basic", "objects": there}
        if path.startswith("/large/"):
            self.large[path.removeprefix("/large/")] = body
            return 200, {}
        if path.startswith("/api/models/"):
            owner, name, *rest = path.removeprefix("/api/models/").split("/")
            if rest and rest[0] == "tree":
                return 200, [entry(*item) for item in sorted(self.repositories[f"{owner}/{name}"].items())]
            return self._of_repository(f"{owner}/{name}", rest[0] if rest else "", body)
        return 404, {"error": f"{method} {path} is not known here"}

    def file(self, path: str, span: str | None) -> tuple[int, dict[str, str], bytes] | None:
        """Status, headers and bytes of OWNER/NAME/resolve/REVISION/FILE; None for what is no file. `span` is Range."""
        owner, name, what, *rest = [*path.strip("/").split("/", 4), "", "", ""]
        content = self.repositories.get(f"{owner}/{name}", {}).get(rest[1])
        if what != "resolve" or content is None:
            return None
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": rest[0],
            "Accept-Ranges": "bytes",
        }
        if rest[1] == self.damaged:
            content = content[:-1] + b"!"
        if not span:
            return 200, headers, content
        first, _, last = span.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last or len(content) - 1), len(content) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
        return 206, headers, content[start : end + 1]

    def _create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        repository = f"{asked['organization'] or OWNER}/{asked['name']}"
        there = repository in self.repositories
        self.repositories.setdefault(repository, {})
        self.private.setdefault(repository, asked.get("visibility") == "private")
        return (409 if there else 200), {"url": f"{self.url}/{repository}"}

    def _of_repository(self, repository: str, what: str, body: bytes) -> tuple[int, Any]:
        if repository not in self.repositories:
            return 404, {"error": "Repository not found"}
        if what == "preupload":
            modes = [
                {
                    "path": item["path"],
                    "uploadMode": "lfs" if item["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for item in json.loads(body)["files"]
            ]
            return 200, {"files": modes}
        if what == "commit":
            files = self.repositories[repository]
            for line in map(json.loads, body.decode().splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    files[value["path"]] = self.large[value["oid"]]
                    assert hashlib.sha256(files[value["path"]]).hexdigest() == value["oid"]
            self.commits[repository] += 1
            url = f"{self.url}/{repository}/commit/{'0' * 40}"
            return 200, {"commitUrl": url, "commitOid": "0" * 40}
        return 200, {"id": repository, "private": self.private[repository], "sha": "0" * 40, "tags": [], "siblings": []}


def entry(path: str, content: bytes) -> dict[str, Any]:
    """A file in the listing of a repository: large ones by SHA-256, as the hub keeps safetensors."""
    oid = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
    found = {"type": "file", "path": path, "size": len(content), "oid": oid}
    if path.endswith(".safetensors"):
        found["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return found


def _handler(hub: Hub) -> type[Handler]:
    class HubHandler(Handler):
        def answer(self) -> None:
            body, path = self.body(), self.path.partition("?")[0]
            hub.requests.append(f"{self.command} {path}")
            hub.tokens.add(self.headers.get("Authorization"))
            file = None if hub.refusal else hub.file(path, self.headers.get("Range"))
            if file is not None and not any(part in path and due for part, due in hub.failures.items()):
                self.reply(*file)
                hub.served += len(file[2]) if self.command == "GET" else 0
                return
            status, found = hub.answer(self.command, path, body)
            if not status:
                self.close_connection = True
                return
            self.reply(status, {"Content-Type": "application/json"}, json.dumps(found).encode())

        do_GET = do_HEAD = do_POST = do_PUT = answer

    return HubHandler


@contextmanager
def serve() -> Iterator[Hub]:
    """A hub, for as long as the block lasts."""
    hub = Hub()
    with served(_handler(hub)) as hub.url:
        yield hub
