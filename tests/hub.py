"""A stand-in for the hub's API on the loopback: as much as pushing needs. It keeps what it is given, by repository.

Used through HF_ENDPOINT, in a process of its own (huggingface_hub reads it once), with HF_HUB_DISABLE_XET=1.
"""

import base64
import hashlib
import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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
            return self._of_repository(f"{owner}/{name}", rest[0] if rest else "", body)
        return 404, {"error": f"{method} {path} is not known here"}

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


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            path = self.path.partition("?")[0]
            hub.requests.append(f"{self.command} {path}")
            hub.tokens.add(self.headers.get("Authorization"))
            status, found = hub.answer(self.command, path, body)
            if not status:
                self.close_connection = True
                return
            text = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            with suppress(ConnectionError):  # a client that has given up
                self.wfile.write(text)

        do_GET = do_POST = do_PUT = answer

        def log_message(self, *_: Any) -> None: ...

    return Handler


@contextmanager
def serve() -> Iterator[Hub]:
    """A hub, for as long as the block lasts."""
    hub = Hub()
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub)) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield hub
        server.shutdown()
