"""`make test-cloud`: the README's commands for Google Cloud, run as they stand by the real gcloud, kubectl, envsubst.

Every block of the section is run in order, as a user would copy it, against stand-ins on the loopback; what the
clients sent is then looked at field by field.
"""

import base64
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from finetune import hardware
from finetune.plan import Plan
from tests.cloud_session import BLOCKS, BUCKET, SECTION, TOKEN, Session, readme_session
from tests.google_cloud import Sent
from tests.machines import machine
from tests.test_manifests import MANIFESTS, VALUES, placeholders
from tests.tools import need

pytest_plugins = ("tests.command_line",)
pytestmark = pytest.mark.cloud
ACCOUNT = "finetune-gemma-job-sa@test-project.iam.gserviceaccount.com"
IMAGE = "us-central1-docker.pkg.dev/test-project/gemma/finetune-gemma-gpu:1.0.0"
RECIPE_A = """
gcloud builds submit . --substitutions=_ARTIFACT_REPO_LOCATION="${ARTIFACT_REPO_LOCATION}"
export IMAGE_URL="${ARTIFACT_REPO_LOCATION}-docker.pkg.dev/${PROJECT_ID}/gemma/finetune-gemma-gpu:1.0.0"
envsubst < manifests/finetune.yaml | kubectl apply -f -
kubectl logs job.batch/finetune-job -f
kubectl delete job finetune-job
"""
RECIPE_B = """
export AR_REPO=gemma4-finetuning-repo IMAGE_NAME=gemma4-finetune
gcloud builds submit --tag $REGION-docker.pkg.dev/$PROJECT_ID/$AR_REPO/$IMAGE_NAME:latest .
gcloud beta run jobs create $JOB_NAME --region $REGION \\
  --image $REGION-docker.pkg.dev/$PROJECT_ID/$AR_REPO/$IMAGE_NAME:latest \\
  --gpu 1 --gpu-type nvidia-rtx-pro-6000 --cpu 30.0 --memory 120Gi --labels dev-tutorial=finetune-gemma \\
  --add-volume name=model-volume,type=cloud-storage,bucket=$BUCKET_NAME \\
  --add-volume-mount volume=model-volume,mount-path=/mnt/gcs \\
  --args="--model-id","/mnt/gcs/google/gemma-4-31b-it/","--output-dir","/mnt/gcs/gemma4-finetuned","--train-size","700","--eval-size","200","--merge"
gcloud beta run jobs execute $JOB_NAME --region $REGION --async
"""
"""The published commands, word for word, but that recipe A's manifest lies in manifests/."""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    need("gcloud", "kubectl", "envsubst", "gke-gcloud-auth-plugin", "bash")
    with readme_session(tmp_path_factory.mktemp("cloud")) as session:
        yield session


def only(found: list[Sent]) -> Any:
    """The body of the only request."""
    (sent,) = found
    return sent.body


def test_every_command_was_run(session: Session) -> None:
    assert len(session.blocks) == len(BLOCKS) >= 15
    commands = re.findall(r"\b(?:gcloud|kubectl) [a-z]", SECTION)
    assert len(commands) >= 35
    assert not [ran for ran in session.blocks if "YOUR_" in ran.text]
    assert not [block for block in BLOCKS if re.search(r"(^|\s)#", block)], "zsh takes comments for words, if typed"


def test_apis_and_os_login(session: Session) -> None:
    enabled = only(session.sent("POST", "services:batchEnable"))["serviceIds"]
    used = {"run", "container", "cloudbuild", "artifactregistry", "secretmanager", "storage", "compute", "iam"}
    assert {name.removesuffix(".googleapis.com") for name in enabled} == used
    metadata = only(session.sent("POST", "setCommonInstanceMetadata"))
    assert metadata["items"] == [{"key": "enable-oslogin", "value": "TRUE"}]


def test_roles_are_few_and_on_the_bucket_where_they_can_be(session: Session) -> None:
    of_project = [sent.body["policy"]["bindings"] for sent in session.sent("POST", r"projects/[^/]+:setIamPolicy")]
    default = "serviceAccount:123456789-compute@developer.gserviceaccount.com"
    assert of_project == [
        [{"role": role, "members": [default]}]
        for role in ("roles/cloudbuild.builds.builder", "roles/container.defaultNodeServiceAccount")
    ]
    of_bucket = [sent.body["bindings"] for sent in session.sent("PUT", f"/b/{BUCKET}/iam$")]
    pods = (
        "principal://iam.googleapis.com/projects/123456789/locations/global/workloadIdentityPools/"
        "test-project.svc.id.goog/subject/ns/default/sa/finetune"
    )
    members = [f"serviceAccount:{ACCOUNT}", pods]
    assert of_bucket == [[{"role": "roles/storage.objectUser", "members": [member]}] for member in members]
    of_secret = only(session.sent("POST", "secrets/HF_TOKEN:setIamPolicy"))["policy"]["bindings"]
    assert of_secret == [{"role": "roles/secretmanager.secretAccessor", "members": [members[0]]}]


def test_the_token_goes_through_standard_input_alone(session: Session) -> None:
    sent = only(session.sent("POST", "secrets/HF_TOKEN:addVersion"))
    assert base64.b64decode(sent["payload"]["data"]).decode() == TOKEN
    secret = session.applied["Secret", "hf-secret"]
    assert base64.b64decode(secret["data"]["hf_api_token"]).decode() == TOKEN
    for ran in session.blocks:
        assert TOKEN not in ran.printed
        words = [word for line in ran.text.splitlines() for word in line.split() if "HF_TOKEN" in word]
        assert not [word for word in words if word.startswith("--") and '"$HF_TOKEN"' in word]


def test_the_image_is_built_from_the_clone(session: Session) -> None:
    assert only(session.sent("POST", r"/repositories$"))["format"] == "DOCKER"
    build = only(session.sent("POST", r"/builds$"))
    assert build["substitutions"]["_ARTIFACT_REPO_LOCATION"] == "us-central1"
    assert build["options"]["diskSizeGb"] == "100"
    assert build["timeout"] == "3600s"
    assert len(build["steps"]) == 3
    uploaded = session.block("gcloud builds submit").sent
    assert [sent for sent in uploaded if "_cloudbuild" in sent.path + str(sent.query)], "the sources were uploaded"


def test_the_bucket_is_private_and_in_the_region(session: Session) -> None:
    bodies = [sent.body for sent in session.sent("POST", r"/storage/v1/b$")]
    (bucket,) = [body for body in bodies if body["name"] == BUCKET]
    assert bucket["location"].lower() == "us-central1"
    assert bucket["iamConfiguration"]["publicAccessPrevention"] == "enforced"
    assert bucket["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]


def task(job: Any) -> Any:
    return job["spec"]["template"]["spec"]["template"]["spec"]


def test_the_weights_are_staged_by_a_job_of_the_image(session: Session, run: Callable[..., Any], started: Any) -> None:
    bodies = [sent.body for sent in session.sent("POST", r"/namespaces/[^/]+/jobs$")]
    (job,) = [body for body in bodies if body["metadata"]["name"] == "stage-weights"]
    (container,) = task(job)["containers"]
    assert container["image"] == IMAGE
    assert container["resources"]["limits"] == {"cpu": "4", "memory": "4Gi"}
    assert (task(job)["timeoutSeconds"], task(job)["maxRetries"]) == ("10800", 3)
    assert task(job)["serviceAccountName"] == ACCOUNT
    assert run(*container["args"])[0] == 0
    target = f"gs://{BUCKET}/google/gemma-4-31b-it"
    assert started[0][0][1:] == ["-m", "finetune.stage", "google/gemma-4-31B-it", target]
    assert session.sent("POST", "jobs/stage-weights:run")


@pytest.mark.parametrize("how", ["replace", "create"])
def test_the_cloud_run_job(
    session: Session, how: str, run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By file and by the published command: the same machine, volume, secret and limits; the arguments make a plan."""
    words = "jobs replace" if how == "replace" else 'beta run jobs create "$JOB_NAME"'
    job = only([sent for sent in session.block(words).sent if sent.method in ("POST", "PUT")])
    spec, (container,) = task(job), task(job)["containers"]
    assert job["metadata"]["name"] == "gemma4-finetuning-job"
    assert job["metadata"]["annotations"]["run.googleapis.com/launch-stage"] == "BETA"
    assert spec["nodeSelector"] == {"run.googleapis.com/accelerator": "nvidia-rtx-pro-6000"}
    limits = container["resources"]["limits"]
    assert (float(limits["cpu"]), limits["memory"], limits["nvidia.com/gpu"]) == (30, "120Gi", "1")
    (volume,) = spec["volumes"]
    assert volume["csi"]["driver"] == "gcsfuse.run.googleapis.com"
    assert volume["csi"]["volumeAttributes"] == {"bucketName": BUCKET, "mountOptions": "uid=1000,gid=1000"}
    assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/mnt/gcs"}]
    secret = {"secretKeyRef": {"name": "HF_TOKEN", "key": "latest"}}
    assert container["env"] == [{"name": "HF_TOKEN", "valueFrom": secret}]
    assert (spec["maxRetries"], spec["timeoutSeconds"]) == (3, str(12 * 3600))
    assert (container["image"], spec["serviceAccountName"]) == (IMAGE, ACCOUNT)
    monkeypatch.setattr(hardware, "detect", lambda: machine("rtx-pro-server"))
    typed = ["run", *container["args"]] if container["args"][0] != "run" else container["args"]
    typed = [
        word.replace("/mnt/gcs/google/gemma-4-31b-it", "google/gemma-4-31b-it").rstrip("/").replace("/mnt/", "mnt/")
        for word in typed
    ]
    code, out, err = run("plan", "--json", *typed[1:])
    assert (code, err) == (0, "")
    plan = Plan.from_json(out)
    assert (plan.profile, plan.settings.task, plan.settings.quantization) == ("rtx-pro-6000", "pets", "nf4")
    if how == "create":
        assert (plan.settings.train_size, plan.settings.eval_size, plan.settings.merge) == (700, 200, True)


def test_the_job_is_executed_and_watched(session: Session) -> None:
    assert session.sent("POST", "jobs/gemma4-finetuning-job:run")
    assert session.sent("GET", "/executions$")
    asked = only(session.sent("POST", "entries:list"))
    assert "resource.labels.job_name = gemma4-finetuning-job" in asked["filter"]


def test_the_cluster_is_an_autopilot_cluster_and_goes_again(session: Session) -> None:
    cluster = only(session.sent("POST", "/clusters$"))["cluster"]
    assert cluster["autopilot"] == {"enabled": True}
    assert cluster["releaseChannel"] == {"channel": "RAPID"}
    assert cluster["name"] == "gemma4-finetune"
    assert session.sent("DELETE", "/clusters/gemma4-finetune$")


@pytest.mark.parametrize("name", ["finetune-job", "finetune-gcs", "finetune-multinode"])
def test_what_kubectl_applied_is_the_manifest(session: Session, name: str) -> None:
    """kubectl's own strict validation took it; the server got every variable."""
    applied = session.applied["Job", name]["spec"]["template"]["spec"]
    assert applied["containers"][0]["image"] == IMAGE
    assert applied["nodeSelector"]["cloud.google.com/reservation-name"] == "my-reservation"
    assert applied["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert f"log of {IMAGE}" in session.block(f"manifests/{name.replace('-job', '')}.yaml | kubectl").printed
    if name != "finetune-job":
        assert {csi["volumeAttributes"]["bucketName"] for v in applied["volumes"] if (csi := v.get("csi"))} == {BUCKET}
        assert ("ServiceAccount", "finetune") in session.applied
    if name == "finetune-multinode":
        assert session.applied["Job", name]["spec"]["completions"] == 2
        assert ("Service", name) in session.applied


def test_the_result_is_fetched(session: Session) -> None:
    assert (session.shell.clone / "gemma4-finetuned" / "report.html").read_bytes() == b"a report"


def test_everything_that_was_made_is_deleted(session: Session) -> None:
    gone = {sent.path.rpartition("/")[2] for sent in session.sent("DELETE", "")}
    made = {"gemma4-finetune", "gemma", "HF_TOKEN", ACCOUNT, "stage-weights", "gemma4-finetuning-job", BUCKET}
    assert made <= gone
    created = session.sent("POST", r"(clusters|repositories|secrets|serviceAccounts|/b|/jobs)$")
    mine = [sent for sent in created if "_cloudbuild" not in json.dumps(sent.body)]
    assert len(mine) == len(made) + 1, "the Cloud Run job was made in two ways"


def check_line() -> str:
    (found,) = [block for block in BLOCKS if "envsubst -v" in block]
    return str(found)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
@pytest.mark.parametrize("how", ["unset", "empty"])
def test_a_variable_that_is_not_set_is_named(path: Path, how: str) -> None:
    """The README's one line, for every manifest and every variable of it."""
    need("envsubst", "bash")
    line = check_line().replace("manifests/finetune.yaml", shlex.quote(str(path)))
    for name in sorted(placeholders(path)):
        environ = {**VALUES, "PATH": "/usr/bin:/bin:/usr/local/bin"}
        environ[name] = ""
        if how == "unset":
            del environ[name]
        for shell in ("bash", "sh"):
            done = subprocess.run([shell, "-c", line], env=environ, capture_output=True, text=True)
            assert (done.returncode, done.stdout) == (1, f"set {name} first\n")
    done = subprocess.run(["bash", "-c", line], env={**VALUES, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_recipe_a_s_own_commands(session: Session) -> None:
    ran = session.shell.run(RECIPE_A)
    build = only([sent for sent in ran.sent if sent.path.endswith("/builds")])
    assert build["substitutions"]["_ARTIFACT_REPO_LOCATION"] == "us-central1"
    assert f"log of {IMAGE}" in ran.printed
    assert 'job.batch "finetune-job" deleted' in ran.printed


def test_recipe_b_s_own_commands(session: Session) -> None:
    """Its build, without cloudbuild.yaml; its job, which is ours but for the volume's owner, account and limits."""
    session.shell.cloud.jobs.pop("gemma4-finetuning-job", None)
    ran = session.shell.run(RECIPE_B)
    build, job, _ = [sent.body for sent in ran.sent if sent.method == "POST" and re.search(r"builds|/jobs", sent.path)]
    image = "us-central1-docker.pkg.dev/test-project/gemma4-finetuning-repo/gemma4-finetune:latest"
    assert build["images"] == [image]
    (container,) = task(job)["containers"]
    assert container["image"] == image
    ours = only([sent for sent in session.block('jobs create "$JOB_NAME"').sent if sent.method == "POST"])
    for key in ("args", "resources", "volumeMounts"):
        assert container[key] == task(ours)["containers"][0][key]


def test_the_shell_in_the_readme_is_clean(tmp_path: Path) -> None:
    need("shellcheck")
    script = tmp_path / "readme.sh"
    script.write_text("#!/usr/bin/env bash\n" + "\n".join(BLOCKS))
    # SC2155: a failed `gcloud projects describe` shows its own error, and the next command fails.
    # SC2140: the published command quotes the words of --args one by one.
    done = subprocess.run(["shellcheck", "--exclude=SC2155,SC2140", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
