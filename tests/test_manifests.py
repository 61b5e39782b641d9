"""manifests/: what envsubst makes of them is valid, asks for the right hardware, and runs what it says."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from finetune import hardware
from finetune.errors import DataError, DeliveryError, Interrupted, LaunchError, ModelError, TrainingError, UsageError
from finetune.facts import GRACE_S
from finetune.plan import Plan
from tests.conftest import ROOT
from tests.machines import machine
from tests.tools import need

pytest_plugins = ("tests.command_line",)
MANIFESTS = sorted((ROOT / "manifests").glob("*.yaml"))
GKE = [path for path in MANIFESTS if path.name != "finetune-cloudrun.yaml"]
VALUES = {
    "IMAGE_URL": "us-central1-docker.pkg.dev/test-project/gemma/finetune-gemma-gpu:1.0.0",
    "RESERVATION": "my-reservation",
    "BUCKET_NAME": "my-bucket",
    "NUM_NODES": "2",
    "JOB_NAME": "gemma4-finetuning-job",
    "REGION": "europe-west4",
    "SERVICE_ACCOUNT_EMAIL": "finetune-gemma-job-sa@test-project.iam.gserviceaccount.com",
    "SECRET_ID": "HF_TOKEN",
}
RECIPE_A = {"PROJECT_ID", "CLUSTER_NAME", "CLUSTER_REGION", "RESERVATION", "HF_TOKEN", "ARTIFACT_REPO_LOCATION",
            "NETWORK", "IMAGE_URL"}  # fmt: skip
"""The variables that the published recipe exports."""
MACHINES = {"nvidia-b200": ("b200x8", "8", "b200x8"), "nvidia-rtx-pro-6000": ("rtx-pro-server", "1", "rtx-pro-6000")}
"""Accelerator -> nvidia-smi's text there, the GPUs to ask for, and the profile that has to match."""


def rendered(path: Path) -> list[dict[str, Any]]:
    """The manifest's objects, as the real envsubst and a YAML reader see them."""
    need("envsubst")
    environ = {**VALUES, "PATH": "/usr/bin:/bin:/usr/local/bin:/opt/homebrew/bin"}
    done = subprocess.run(["envsubst"], input=path.read_text(), env=environ, capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def job(path: Path) -> dict[str, Any]:
    return next(item for item in rendered(path) if item["kind"] == "Job")


def pod(path: Path) -> dict[str, Any]:
    """The spec of the job's pods, or of Cloud Run's task."""
    spec = job(path)["spec"]["template"]["spec"]
    return spec if path in GKE else spec["template"]["spec"]


def placeholders(path: Path) -> set[str]:
    return set(re.findall(r"\$\{?(\w+)", path.read_text()))


by_name = pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
on_gke = pytest.mark.parametrize("path", GKE, ids=lambda path: path.name)


def test_all_are_there() -> None:
    names = {path.name for path in MANIFESTS}
    assert names == {"finetune.yaml", "finetune-gcs.yaml", "finetune-multinode.yaml", "finetune-cloudrun.yaml"}


@by_name
def test_every_placeholder_is_set_and_none_is_left(path: Path) -> None:
    assert placeholders(path) <= VALUES.keys()
    assert "$" not in yaml.safe_dump_all(rendered(path))


def test_recipe_a_s_variables_are_enough_for_its_job() -> None:
    assert placeholders(ROOT / "manifests" / "finetune.yaml") <= RECIPE_A


@on_gke
def test_kubernetes_takes_it_strictly(path: Path) -> None:
    for item in rendered(path):
        kubernetes_validate.validate(item, "1.33", strict=True)
        assert item["metadata"]["namespace"] == "default"


@by_name
def test_its_arguments_are_a_command_line_for_its_machine(
    path: Path, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The accelerator and the number of GPUs give the profile, and the arguments a plan without mistakes."""
    spec = pod(path)
    (container,) = spec["containers"]
    accelerators = {"cloud.google.com/gke-accelerator", "run.googleapis.com/accelerator"} & spec["nodeSelector"].keys()
    smi, gpus, profile = MACHINES[spec["nodeSelector"][accelerators.pop()]]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == gpus
    monkeypatch.setattr(hardware, "detect", lambda: machine(smi))
    monkeypatch.setenv("HF_TOKEN", "a-token")
    for item in container["env"]:
        if "value" in item:
            monkeypatch.setenv(item["name"], item["value"])
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    # The weights are not mounted here: a hub id stands for their folder.
    typed = ["--model-id=google/gemma-4-31B-it" if "--model-id" in word else word for word in container["args"]]
    typed = [word.replace("=/out/", "=out/").replace("=/mnt/", "=mnt/") for word in typed]
    assert typed[0] == "run"
    code, out, err = run("plan", "--json", *typed[1:])
    assert (code, err) == (0, "")
    plan = Plan.from_json(out)
    assert plan.profile == profile
    assert "asked for" not in plan.reason
    nodes = int(VALUES["NUM_NODES"]) if "multinode" in path.name else 1
    assert (plan.launch.num_nodes, plan.launch.num_processes) == (nodes, nodes * int(gpus))
    assert plan.rows_per_step == (512 if profile == "b200x8" else 16)


@by_name
def test_where_it_writes_is_mounted(path: Path) -> None:
    """Caches, results and scratch, since the root file system is read-only; and what the arguments name."""
    spec = pod(path)
    (container,) = spec["containers"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {mount["name"] for mount in mounts.values()} == {volume["name"] for volume in spec["volumes"]}
    paths = [word.partition("=")[2] for word in container["args"] if "=/" in word]
    assert paths
    for place in paths:
        (mount,) = [mounts[parent] for parent in map(str, Path(place).parents) if parent in mounts]
        assert not (mount.get("readOnly") and f"--output-dir={place}" in container["args"])
    if path in GKE:
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert {"/home/finetune", "/tmp", "/dev/shm"} <= mounts.keys()


@on_gke
def test_it_runs_with_no_more_rights_than_it_needs(path: Path) -> None:
    spec = pod(path)
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["fsGroup"] == 1000
    assert spec["automountServiceAccountToken"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    secret = {"secretKeyRef": {"name": "hf-secret", "key": "hf_api_token"}}
    assert {"name": "HF_TOKEN", "valueFrom": secret} in container["env"]


@on_gke
def test_what_is_tried_again(path: Path) -> None:
    """Preemption is, and does not count; a user's mistake is not. Other failures are, a few times."""
    spec = job(path)["spec"]
    ignored, stopped, failed = spec["podFailurePolicy"]["rules"]
    assert (ignored["action"], ignored["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert (stopped["action"], stopped["onExitCodes"]["values"]) == ("Ignore", [Interrupted.exit_code])
    assert stopped["onExitCodes"]["containerName"] == pod(path)["containers"][0]["name"]
    mistakes = {error.exit_code for error in (UsageError, DataError, ModelError)}
    assert failed["action"] == "FailJob"
    assert set(failed["onExitCodes"]["values"]) == mistakes
    assert not mistakes & {error.exit_code for error in (LaunchError, TrainingError, DeliveryError)}
    assert failed["onExitCodes"]["containerName"] == pod(path)["containers"][0]["name"]
    assert (spec["template"]["spec"]["restartPolicy"], spec["backoffLimit"] > 0) == ("Never", True)
    assert pod(path)["terminationGracePeriodSeconds"] == GRACE_S


@on_gke
def test_the_reservation_is_asked_for(path: Path) -> None:
    selector = pod(path)["nodeSelector"]
    assert selector["cloud.google.com/reservation-name"] == VALUES["RESERVATION"]
    assert selector["cloud.google.com/reservation-affinity"] == "specific"


@pytest.mark.parametrize("name", ["finetune-gcs.yaml", "finetune-multinode.yaml"])
def test_the_bucket_is_mounted_through_cloud_storage_fuse(name: str) -> None:
    path = ROOT / "manifests" / name
    account = next(item for item in rendered(path) if item["kind"] == "ServiceAccount")
    spec, annotations = pod(path), job(path)["spec"]["template"]["metadata"]["annotations"]
    assert spec["serviceAccountName"] == account["metadata"]["name"]
    assert annotations["gke-gcsfuse/volumes"] == "true"
    weights, results = [volume["csi"] for volume in spec["volumes"] if "csi" in volume]
    for csi in (weights, results):
        assert csi["driver"] == "gcsfuse.csi.storage.gke.io"
        options = csi["volumeAttributes"]["mountOptions"].split(",")
        assert {"uid=1000", "gid=1000"} <= set(options)
        assert " " not in csi["volumeAttributes"]["mountOptions"]
    assert weights["readOnly"]
    assert "file-cache:enable-parallel-downloads:true" in weights["volumeAttributes"]["mountOptions"]
    # 62.5 GB of weights fit into the cache, and the cache into the sidecar's disk.
    cache, disk = weights["volumeAttributes"]["fileCacheCapacity"], annotations["gke-gcsfuse/ephemeral-storage-limit"]
    assert 63 <= int(cache.removesuffix("Gi")) < int(disk.removesuffix("Gi"))


def test_the_pods_of_several_nodes_find_the_first() -> None:
    path = ROOT / "manifests" / "finetune-multinode.yaml"
    service = next(item for item in rendered(path) if item["kind"] == "Service")
    spec, name = job(path)["spec"], job(path)["metadata"]["name"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(VALUES["NUM_NODES"])
    environ = {item["name"]: item.get("value") for item in pod(path)["containers"][0]["env"]}
    assert environ["MASTER_ADDR"] == f"{name}-0.{service['metadata']['name']}"
    assert environ["MASTER_PORT"] == str(service["spec"]["ports"][0]["port"])
    assert pod(path)["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert pod(path)["enableServiceLinks"] is False, "or a service called master would set MASTER_PORT"


def test_the_three_gke_jobs_differ_only_where_they_mean_to() -> None:
    """One is copied from the other: what they share stays the same."""
    shared = ("terminationGracePeriodSeconds", "securityContext", "nodeSelector", "enableServiceLinks", "restartPolicy")
    one, *others = [pod(path) for path in GKE]
    for other in others:
        assert {key: other[key] for key in shared} == {key: one[key] for key in shared}
        assert other["containers"][0]["securityContext"] == one["containers"][0]["securityContext"]


def test_cloud_build_plans_for_every_profile_and_knows_recipe_a_s_substitution() -> None:
    build = yaml.safe_load((ROOT / "cloudbuild.yaml").read_text())
    script = next(step for step in build["steps"] if step["id"] == "plan every profile")["args"][1]
    from finetune.profiles import PROFILES

    assert re.search(r"for profile in (.*); do", script)[1].split() == [profile.name for profile in PROFILES]  # type: ignore[index]
    values = build["substitutions"]
    image = values["_IMAGE"].replace("${PROJECT_ID}", "test-project")
    for name, value in {**values, "_ARTIFACT_REPO_LOCATION": "us-central1"}.items():
        image = image.replace(f"${{{name}}}", value)
    assert f"{image}:{values['_TAG']}" == VALUES["IMAGE_URL"]
    assert build["options"]["dynamicSubstitutions"]
    assert set(build["images"]) == {"${_IMAGE}:${_TAG}", "${_IMAGE}:latest"}
    assert build["options"]["diskSizeGb"] >= 50
    assert int(build["timeout"].removesuffix("s")) >= 1800


def test_the_image_is_made_of_what_the_code_needs() -> None:
    """.dockerignore lets in what the Dockerfile copies; the entry point is the exec form, and no root."""
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in ignore if line.startswith("!")}
    dockerfile = (ROOT / "Dockerfile").read_text()
    copied = {word for line in re.findall(r"^COPY (.*) \S+$", dockerfile, re.MULTILINE) for word in line.split()}
    assert ignore[1] == "*" and copied == let_in
    assert all((ROOT / name).exists() for name in copied)
    assert 'ENTRYPOINT ["python", "entrypoint.py"]' in dockerfile
    assert re.findall(r"^USER (.*)$", dockerfile, re.MULTILINE) == ["1000:1000"]
    assert "777" not in dockerfile
