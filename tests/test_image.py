"""`make test-image`: the image is built, and does its work as user 1000 with a read-only root file system.

BASE_IMAGE=python:3.12-slim-bookworm make test-image takes the Dockerfile's own base, where a registry can be reached.
It takes some ten minutes and 20 GB of disk, root, and Debian's buildah, podman, runc and debootstrap.
"""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from finetune.profiles import PROFILES
from tests import image
from tests.conftest import ROOT
from tests.tools import need

pytestmark = pytest.mark.image
GRACE_S = 10
"""What Cloud Run gives a job that it stops; Kubernetes' manifests give more."""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image's name, once it is built."""
    need("buildah", "podman", "runc", *([] if os.environ.get("BASE_IMAGE") else ["debootstrap"]))
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a base image and mount what the build needs")
    folder = tmp_path_factory.mktemp("image")
    name = image.base(folder)
    since = time.monotonic()
    image.build(name, folder)
    print(f"built in {time.monotonic() - since:.0f} s")
    since = time.monotonic()
    context = folder / "context"
    shutil.copytree(ROOT, context, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "out"))
    shutil.copy(ROOT / ".dockerignore", context / ".dockerignore")
    with (context / "entrypoint.py").open("a") as code:
        code.write("# a change of the code\n")
    log = image.build(name, folder, context)
    print(f"built again after a change of the code in {time.monotonic() - since:.0f} s")
    assert log.count("Using cache") >= 6, log
    assert "Installing collected packages" not in log
    image.build(name, folder)
    return image.TAG


def test_it_names_its_user_entry_point_and_home(built: str) -> None:
    about = json.loads(subprocess.run(["podman", "inspect", built], capture_output=True, text=True).stdout)[0]["Config"]
    assert about["User"] == "1000:1000"
    assert about["Entrypoint"] == ["python", "entrypoint.py"]
    assert not about.get("Cmd")
    environ = dict(item.split("=", 1) for item in about["Env"])
    assert environ["HF_HOME"].startswith(environ["HOME"])
    assert environ["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert not [name for name in environ if "TOKEN" in name]
    assert about["Labels"]["org.opencontainers.image.title"] == "gemma4-finetune"


def test_nothing_of_the_machine_that_built_it_is_inside(built: str) -> None:
    script = "cat /etc/pip.conf /etc/apt/sources.list.d/host.sources /etc/host-ca.crt 2>/dev/null | head -c 1"
    find = "; find /app -name '.*' -mindepth 1; find /app -name tests"
    done = image.run("-c", script + find, options=["--entrypoint=bash"])
    assert done.stdout == ""


@pytest.mark.parametrize("profile", [profile.name for profile in PROFILES])
def test_it_plans_for_every_profile(built: str, tmp_path: Path, profile: str) -> None:
    done = image.run("plan", "--profile", profile, mounts=image.writable(tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"profile       {profile}: " in done.stdout


def test_without_a_gpu_it_runs_the_demo(built: str, tmp_path: Path) -> None:
    since = time.monotonic()
    done = image.run(mounts=image.writable(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    print(f"the demo took {time.monotonic() - since:.0f} s in the image")
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["after"]["execution accuracy"]["value"] > 0.8
    assert (tmp_path / "out" / "report.html").stat().st_uid == 1000


def test_a_folder_that_it_may_not_write_is_told(built: str, tmp_path: Path) -> None:
    """As on Cloud Run, where a bucket is root's unless it is mounted for user 1000."""
    for mode in (0o755, 0o700):
        tmp_path.chmod(mode)
        done = image.run("--output-dir", "/mnt/gcs/run", mounts=[f"{tmp_path}:/mnt/gcs"])
        assert done.returncode == 2
        assert "--output-dir: /mnt/gcs cannot be written to by user 1000" in done.stderr
        assert "mount it with uid=1000 and gid=1000" in done.stderr


def test_a_folder_that_it_may_not_read_is_told(built: str, tmp_path: Path) -> None:
    """Another user's, with the mode that `mkdir` gives under a strict umask; and a data file of its owner's alone."""
    (tmp_path / "closed").mkdir(mode=0o700)
    (tmp_path / "rows.jsonl").write_text("{}")
    (tmp_path / "rows.jsonl").chmod(0o600)
    tmp_path.chmod(0o755)
    mine = ["--model-id", "/mnt/closed/31B", "--dataset", "/mnt/rows.jsonl"]
    done = image.run("plan", *mine, mounts=[f"{tmp_path}:/mnt", *image.writable(tmp_path / "own")])
    assert done.returncode == 2
    assert "--model-id: /mnt/closed/31B: user 1000 may not read it" in done.stderr
    assert "--dataset: /mnt/rows.jsonl: user 1000 may not read it" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("after", ["plan", "imports", "training"])
def test_it_stops_in_time(built: str, tmp_path: Path, after: str) -> None:
    """SIGTERM to PID 1: as the launcher takes over, while it imports torch, and in the middle of training. Then the
    exit code is that of a run that goes on, and does."""
    argv = [*image.RUN, "-d", "--read-only", "--network=none"]
    mounts = image.writable(tmp_path)
    argv += [word for mount in mounts for word in ("-v", mount)]
    name = subprocess.run([*argv, built], capture_output=True, text=True, check=True).stdout.strip()
    since = time.monotonic()
    while time.monotonic() - since < 120:
        log = subprocess.run(["podman", "logs", name], capture_output=True, text=True)
        if ("step 20/" in log.stderr) if after == "training" else ("launch" in log.stdout):
            break
        time.sleep(0.05)
    print(f"\nfirst line of the log after {time.monotonic() - since:.1f} s")
    time.sleep(2 if after == "imports" else 0)
    since = time.monotonic()
    stop = ["podman", "--log-level=error", "--runtime=runc", "stop", "-t", str(2 * GRACE_S), name]
    subprocess.run(stop, capture_output=True, check=True)
    took = time.monotonic() - since
    code = subprocess.run(["podman", "inspect", name, "--format={{.State.ExitCode}}"], capture_output=True, text=True)
    subprocess.run(["podman", "rm", "-f", name], capture_output=True)
    assert (took < GRACE_S, code.stdout.strip()) == (True, "75"), f"{took:.1f} s"
    if after == "training":
        done = image.run(mounts=mounts)
        assert done.returncode == 0, done.stderr[-3000:]
        assert "goes on from step-" in done.stdout and ", on from step-" in done.stderr
