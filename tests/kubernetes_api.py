"""A stand-in for a Kubernetes API server on the loopback, for the real kubectl: objects of a few kinds, in memory.

Objects are validated as a server validates them (strictly, with the schemas that kubernetes-validate brings). There
are no controllers: a Job gets one pod, which has run, and whose log is its image.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate

from tests.loopback import Handler, served

VERSION = "1.33"
KINDS = {
    "v1": {"pods": "Pod", "secrets": "Secret", "serviceaccounts": "ServiceAccount", "services": "Service"},
    "batch/v1": {"jobs": "Job"},
}
Answer = tuple[int, Any]


def status(code: int, reason: str, message: str) -> Answer:
    about = {"status": "Failure", "reason": reason, "message": message, "code": code}
    return code, {"kind": "Status", "apiVersion": "v1", "metadata": {}, **about}


@dataclass
class Cluster:
    """What was applied, by kind and name."""

    url: str = ""
    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def kubeconfig(self, path: Path) -> None:
        """Write the kubeconfig that makes kubectl use this cluster."""
        named = {
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "users": [{"name": "test", "user": {}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "test", **named}))

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer | str:
        """Status and JSON, or the text of a log."""
        found = _discovery(path)
        if found is not None:
            return 200, found
        for version, kinds in KINDS.items():
            base = f"{_base(version)}/namespaces/default/"
            plural, _, name = path.removeprefix(base).partition("/")
            if path.startswith(base) and plural in kinds:
                return self._of_kind(method, version, kinds[plural], name, query, body)
        return status(404, "NotFound", "the server could not find the requested resource")

    def _of_kind(
        self, method: str, version: str, kind: str, name: str, query: dict[str, list[str]], body: Any
    ) -> Answer | str:
        if name.endswith("/log"):
            return f"log of {self.objects[kind, name.removesuffix('/log')]['spec']['containers'][0]['image']}\n"
        if method == "GET" and not name:
            selector = dict(part.split("=") for part in query.get("labelSelector", [""])[0].split(",") if part)
            items = [
                item for (of, _), item in self.objects.items()
                if of == kind and selector.items() <= item["metadata"].get("labels", {}).items()
            ]  # fmt: skip
            return 200, {
                "kind": f"{kind}List",
                "apiVersion": version,
                "metadata": {"resourceVersion": "1"},
                "items": items,
            }
        if method == "POST":
            return self._create(version, kind, body)
        if (kind, name) not in self.objects:
            return status(404, "NotFound", f'{kind.lower()} "{name}" not found')
        if method == "DELETE":
            del self.objects[kind, name]
            return 200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return 200, self.objects[kind, name]

    def _create(self, version: str, kind: str, body: Any) -> Answer:
        name = body["metadata"]["name"]
        try:
            kubernetes_validate.validate(body, VERSION, strict=True)
        except kubernetes_validate.ValidationError as error:
            place = ".".join(map(str, error.path))
            return status(
                400, "BadRequest", f"{kind} cannot be handled: strict decoding error: {place}: {error.message}"
            )
        added = {"namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"}
        made = {**body, "metadata": {**body["metadata"], **added, "creationTimestamp": "2026-01-01T00:00:00Z"}}
        self.objects[kind, name] = made
        if kind == "Job":
            labels = {
                "batch.kubernetes.io/job-name": name,
                "job-name": name,
                "batch.kubernetes.io/controller-uid": added["uid"],
            }
            made["spec"].setdefault("selector", {"matchLabels": {"batch.kubernetes.io/controller-uid": added["uid"]}})
            about = {"name": f"{name}-0", **added, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z"}
            spec = body["spec"]["template"]["spec"]
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec, "status": {"phase": "Succeeded"}}
            self.objects["Pod", f"{name}-0"] = pod
        return 201, made


def _base(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def _discovery(path: str) -> Any:
    """What kubectl asks for before it does anything: which kinds there are, and that they can be validated."""
    if path == "/version":
        return {"major": "1", "minor": VERSION.partition(".")[2], "gitVersion": f"v{VERSION}.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        group = {"name": "batch", "versions": [{"groupVersion": "batch/v1", "version": "v1"}]}
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
    if path == "/openapi/v3":
        return {"paths": {_base(of)[1:]: {"serverRelativeURL": f"/openapi/v3{_base(of)}"} for of in KINDS}}
    for version, kinds in KINDS.items():
        if path == _base(version):
            verbs = ["create", "delete", "get", "list", "patch", "watch"]
            listed = [
                {"name": plural, "kind": kind, "namespaced": True, "verbs": verbs} for plural, kind in kinds.items()
            ]
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": listed}
        if path == f"/openapi/v3{_base(version)}":
            return {
                "openapi": "3.0.0",
                "info": {"title": "test", "version": VERSION},
                "paths": _patches(version, kinds),
            }
    return None


def _patches(version: str, kinds: dict[str, str]) -> dict[str, Any]:
    group = version.rpartition("/")[0]
    parameters = [{"name": name, "in": "query"} for name in ("dryRun", "fieldManager", "fieldValidation")]
    paths = {}
    for plural, kind in kinds.items():
        about = {"x-kubernetes-group-version-kind": {"group": group, "version": "v1", "kind": kind}}
        patch = {**about, "x-kubernetes-action": "patch", "parameters": parameters}
        paths[f"{_base(version)}/namespaces/{{namespace}}/{plural}/{{name}}"] = {"patch": patch}
    return paths


def _handler(cluster: Cluster) -> type[Handler]:
    class ClusterHandler(Handler):
        def answer(self) -> None:
            raw, url = self.body(), urlsplit(self.path)
            body = json.loads(raw) if raw.startswith(b"{") else None
            answer = cluster.answer(self.command, url.path.rstrip("/"), parse_qs(url.query), body)
            if isinstance(answer, str):
                self.reply(200, {"Content-Type": "text/plain"}, answer.encode())
            else:
                self.reply(answer[0], {"Content-Type": "application/json"}, json.dumps(answer[1]).encode())

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    return ClusterHandler


@contextmanager
def serve() -> Iterator[Cluster]:
    """A cluster, for as long as the block lasts."""
    cluster = Cluster()
    with served(_handler(cluster)) as cluster.url:
        yield cluster
