"""A stand-in for Google Cloud's APIs on the loopback, for the real gcloud: it records what is sent, and answers.

gcloud takes it for its endpoints and for its proxy, so that regional host names need no name resolution; what is
not meant for it (CONNECT) is refused, so that nothing leaves the machine. Cloud Storage's requests go on to a real
fake-gcs-server.
"""

import http.client
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.loopback import Handler, served

APIS = (
    "ARTIFACTREGISTRY", "CLOUDBUILD", "CLOUDRESOURCEMANAGER", "COMPUTE", "CONTAINER", "IAM", "LOGGING", "RUN",
    "SECRETMANAGER", "SERVICEUSAGE", "STORAGE",
)  # fmt: skip
PROJECT, NUMBER = "test-project", "123456789"
NOT_HERE = 404, {"error": {"code": 404, "status": "NOT_FOUND", "message": "not found"}}
READY = [{"type": "Ready", "status": "True"}]
FINISHED = [
    {"type": kind, "status": "True"} for kind in ("Completed", "ResourcesAvailable", "Started", "ContainerReady")
]


@dataclass(frozen=True)
class Sent:
    """A request of gcloud's. `body` is its JSON, or None."""

    method: str
    host: str
    path: str
    query: dict[str, list[str]]
    body: Any


@dataclass
class Cloud:
    """What was sent, and what there is."""

    storage: str
    """host:port of the emulator of Cloud Storage."""
    port: int = 0
    sent: list[Sent] = field(default_factory=list)
    jobs: dict[str, Any] = field(default_factory=dict)
    """Cloud Run jobs by name."""

    def environment(self, folder: Path) -> dict[str, str]:
        """For a gcloud that talks to this cloud alone, with its configuration in `folder`."""
        (folder / "token").write_text("a-token\n")
        settings = {
            "CONFIG": str(folder),
            "AUTH_ACCESS_TOKEN_FILE": str(folder / "token"),
            "CORE_DISABLE_PROMPTS": "1",
            "CORE_DISABLE_USAGE_REPORTING": "true",
            "CORE_CHECK_GCE_METADATA": "false",
            "COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
            "SURVEY_DISABLE_PROMPTS": "1",
            "PROXY_TYPE": "http",
            "PROXY_ADDRESS": "127.0.0.1",
            "PROXY_PORT": str(self.port),
            **{f"API_ENDPOINT_OVERRIDES_{api}": f"http://{api.lower()}.test:{self.port}/" for api in APIS},
        }
        return {**os.environ, **{f"CLOUDSDK_{name}": value for name, value in settings.items()}}

    def answer(self, sent: Sent) -> tuple[int, Any] | None:
        """Status and JSON: those of the first rule that fits, else what was sent; None for the emulator to answer."""
        for methods, pattern, name in RULES:
            found = re.search(pattern, sent.path)
            if found and sent.method in methods.split("|"):
                return getattr(self, name)(sent, *found.groups())
        return None if "storage" in sent.host else (200, sent.body or {})

    def project(self, sent: Sent) -> tuple[int, Any]:
        return 200, {"projectId": PROJECT, "projectNumber": NUMBER, "lifecycleState": "ACTIVE"}

    def done(self, sent: Sent) -> tuple[int, Any]:
        place = f"projects/{PROJECT}/locations/us-central1"
        return 200, {
            "name": f"{place}/operations/op-1",
            "done": True,
            "response": {"name": f"{place}/repositories/gemma"},
        }

    def version(self, sent: Sent, secret: str) -> tuple[int, Any]:
        return 200, {"name": f"projects/{PROJECT}/secrets/{secret}/versions/1", "state": "ENABLED"}

    def build(self, sent: Sent) -> tuple[int, Any]:
        build = {"id": "b-1", "projectId": PROJECT, "status": "SUCCESS", "logUrl": "http://log.test/b-1"}
        build |= {"createTime": "2026-01-01T00:00:00Z", "finishTime": "2026-01-01T00:01:00Z"}
        build["logsBucket"] = f"gs://{PROJECT}_cloudbuild"
        if sent.method == "GET":
            return 200, build
        kind = "type.googleapis.com/google.devtools.cloudbuild.v1.BuildOperationMetadata"
        return 200, {"name": f"operations/build/{PROJECT}/b-1", "metadata": {"@type": kind, "build": build}}

    def cluster(self, sent: Sent) -> tuple[int, Any]:
        if sent.method == "GET":
            place = {"location": "us-central1", "zone": "us-central1", "endpoint": "127.0.0.1:9"}
            about = {"currentMasterVersion": "1.33", "autopilot": {"enabled": True}}
            return 200, {"name": "c", "status": "RUNNING", "masterAuth": {"clusterCaCertificate": ""}, **place, **about}
        return self.operation(sent)

    def operation(self, sent: Sent) -> tuple[int, Any]:
        at = f"http://container.test/v1/projects/{PROJECT}/locations/us-central1"
        links = {"selfLink": f"{at}/operations/op-1", "targetLink": f"{at}/clusters/c"}
        return 200, {
            "name": "op-1",
            "operationType": "CREATE_CLUSTER",
            "status": "DONE",
            "zone": "us-central1",
            **links,
        }

    def job(self, sent: Sent, name: str | None) -> tuple[int, Any]:
        """Create, replace, show and delete; a job is ready at once, and gone at once."""
        name = name or sent.body["metadata"]["name"]
        if sent.method == "POST" and name in self.jobs:
            return 409, {"error": {"code": 409, "status": "ALREADY_EXISTS", "message": f"{name} already exists"}}
        if sent.method in ("POST", "PUT"):
            labels = {"cloud.googleapis.com/location": "us-central1", **sent.body["metadata"].get("labels", {})}
            metadata = {**sent.body["metadata"], "generation": 1, "labels": labels}
            self.jobs[name] = {
                **sent.body,
                "metadata": metadata,
                "status": {"observedGeneration": 1, "conditions": READY},
            }
        if name not in self.jobs:
            return NOT_HERE
        if sent.method == "DELETE":
            del self.jobs[name]
            return 200, {"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success"}
        return 200, self.jobs[name]

    def execution(self, sent: Sent, job: str) -> tuple[int, Any]:
        """What `execute` starts, and what it has become when it is asked for again."""
        if job not in self.jobs and sent.method == "POST":
            return NOT_HERE
        ended = {"succeededCount": 1, "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:01:00Z"}
        run = {
            "apiVersion": "run.googleapis.com/v1",
            "kind": "Execution",
            "metadata": {
                "name": f"{job}-abc", "namespace": PROJECT, "generation": 1, "annotations": {},
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"cloud.googleapis.com/location": "us-central1", "run.googleapis.com/job": job},
            },
            "spec": {"taskCount": 1, "template": {"spec": {"containers": [{"image": "i"}]}}},
            "status": {"observedGeneration": 1, "conditions": FINISHED, **ended},
        }  # fmt: skip
        return 200, run

    def executions(self, sent: Sent) -> tuple[int, Any]:
        items = [self.execution(sent, job)[1] for job in self.jobs] if sent.method == "GET" else []
        return 200, {"apiVersion": "run.googleapis.com/v1", "kind": "ExecutionList", "metadata": {}, "items": items}

    def policy(self, sent: Sent) -> tuple[int, Any]:
        """Of a bucket: the emulator has none."""
        return 200, sent.body or {"bindings": [], "version": 3}

    def layout(self, sent: Sent, bucket: str) -> tuple[int, Any]:
        return 200, {"kind": "storage#storageLayout", "bucket": bucket, "hierarchicalNamespace": {"enabled": False}}

    def folders(self, sent: Sent) -> tuple[int, Any]:
        return 200, {"kind": "storage#managedFolders", "items": []}


RULES = (
    ("GET", r"^/v1/projects/[^/:]+$", "project"),
    ("POST", r"/services:batchEnable$", "done"),
    ("POST|DELETE", r"/repositories(?:/[^/]+)?$", "done"),
    ("POST", r"/secrets/([^/:]+):addVersion$", "version"),
    ("POST|GET", r"/builds(?:/b-1)?$", "build"),
    ("GET|DELETE", r"/clusters/[^/]+$", "cluster"),
    ("POST", r"/clusters$", "operation"),
    ("GET", r"/operations/op-1$", "operation"),
    ("POST", r"/jobs/([^/:]+):run$", "execution"),
    ("GET", r"/executions/(.+)-abc$", "execution"),
    ("GET", r"/executions$", "executions"),
    ("POST|PUT|GET|DELETE", r"^/apis/run.googleapis.com/v1/namespaces/[^/]+/jobs(?:/([^/:]+))?$", "job"),
    ("GET|PUT", r"^/storage/v1/b/[^/]+/iam$", "policy"),
    ("GET", r"^/storage/v1/b/([^/]+)/storageLayout$", "layout"),
    ("GET", r"^/storage/v1/b/[^/]+/managedFolders$", "folders"),
)
"""Method, path, and the answer's method of Cloud. Deleting a cluster gives an operation, as creating one does."""


def _handler(cloud: Cloud) -> type[Handler]:
    class CloudHandler(Handler):
        def answer(self) -> None:
            raw, url = self.body(), urlsplit(self.path)
            host = (url.netloc or self.headers.get("Host", "")).partition(":")[0]
            try:
                body = json.loads(raw) if raw else None
            except ValueError:  # an upload
                body = None
            sent = Sent(self.command, host, url.path, parse_qs(url.query), body)
            cloud.sent.append(sent)
            answer = cloud.answer(sent)
            if answer is None:
                self.forward(url.path + (f"?{url.query}" if url.query else ""), raw)
            else:
                self.reply(answer[0], {"Content-Type": "application/json"}, json.dumps(answer[1]).encode())

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def do_CONNECT(self) -> None:
            self.reply(403, {}, b"nothing leaves this machine")

        def forward(self, target: str, raw: bytes) -> None:
            hop = ("host", "connection", "proxy-connection", "content-length", "transfer-encoding")
            headers = {name: value for name, value in self.headers.items() if name.lower() not in hop}
            emulator = http.client.HTTPConnection(cloud.storage, timeout=60)
            emulator.request(self.command, target, raw, {**headers, "Host": cloud.storage})
            answer = emulator.getresponse()
            content = answer.read()
            if self.command == "DELETE" and content.strip() == b"null":
                content = b""  # Cloud Storage's own answer has no body
            own = self.headers["Host"]
            kept = {n: v.replace(cloud.storage, own) for n, v in answer.getheaders() if n.lower() not in hop}
            self.reply(answer.status, kept, content)

    return CloudHandler


@contextmanager
def serve(storage_url: str) -> Iterator[Cloud]:
    """A cloud, for as long as the block lasts."""
    cloud = Cloud(storage_url.removeprefix("http://"))
    with served(_handler(cloud)) as url:
        cloud.port = int(url.rpartition(":")[2])
        yield cloud
