"""The image, built from the unchanged Dockerfile by buildah and run by podman, with what this machine lends the build.

The base is the environment variable BASE_IMAGE, or a Debian made by debootstrap with this machine's own Python 3.12,
where there is no registry of images. The machine's package sources are mounted for the build's steps alone.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.conftest import ROOT

TAG = "localhost/gemma4-finetune:test"
BASE = "localhost/gemma4-finetune-base:test"
LIBRARIES = "ca-certificates,libssl3,libffi8,libsqlite3-0,libreadline8,libbz2-1.0,liblzma5,zlib1g,libncursesw6"
"""What a Python that was built elsewhere links to."""
PYTHON = Path.home() / ".pyenv" / "versions"
RUN = ("podman", "--log-level=error", "--runtime=runc", "run", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096")


def base(folder: Path) -> str:
    """The base image's name. Made where none is named: a Debian, and a Python 3.12 if this machine has one to lend."""
    if os.environ.get("BASE_IMAGE"):
        return os.environ["BASE_IMAGE"]
    root = folder / "root"
    source = next(
        line.split()[1] for line in Path("/etc/apt/sources.list.d/debian.sources").read_text().splitlines()
        if line.startswith("URIs:")
    )  # fmt: skip
    _do(["debootstrap", "--variant=minbase", f"--include={LIBRARIES}", "bookworm", str(root), source])
    pythons = sorted(PYTHON.glob("3.12.*"))
    if pythons:
        ignored = shutil.ignore_patterns("__pycache__", "test", "site-packages")
        shutil.copytree(pythons[-1], root / "usr" / "local", dirs_exist_ok=True, symlinks=True, ignore=ignored)
        _do(["chroot", str(root), "ldconfig"])
    (root / "etc" / "apt" / "sources.list").write_text("")
    archive = folder / "base.tar"
    _do(["tar", "-C", str(root), "--numeric-owner", "-cf", str(archive), "."])
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    _do(["podman", "import", "--quiet", "--change", f"ENV {path}", str(archive), BASE])
    shutil.rmtree(root)
    archive.unlink()
    return BASE


def build(base_image: str, folder: Path, context: Path = ROOT) -> str:
    """Build the Dockerfile; what buildah printed."""
    lent = {
        "/etc/apt/sources.list.d/debian.sources": "/etc/apt/sources.list.d/host.sources",
        str(Path("/etc/ssl/certs/ca-certificates.crt").resolve()): "/etc/host-ca.crt",
        str(_pip_config(folder)): "/etc/pip.conf",
        **{place: place for place in _local_packages()},
    }
    argv = ["buildah", "bud", "--isolation=chroot", "--network=host", "--layers", "--format=docker"]
    argv += [word for here, there in lent.items() if Path(here).exists() for word in ("-v", f"{here}:{there}:ro")]
    argv += ["--build-arg", f"BASE_IMAGE={base_image}", "-t", TAG, str(context)]
    return _do(argv)


def run(*arguments: str, mounts: Sequence[str] = (), options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run the image as Kubernetes would: its own user, read-only, no network. Mounts are `HERE:THERE`."""
    argv = [*RUN, "--rm", "--read-only", "--network=none", *options]
    argv += [word for mount in mounts for word in ("-v", mount)]
    return subprocess.run([*argv, TAG, *arguments], capture_output=True, text=True, timeout=900)


def writable(folder: Path) -> list[str]:
    """Mounts for all that a run writes, as user 1000's."""
    mounts = []
    for place in ("/out", "/home/finetune", "/tmp"):
        here = folder / place.strip("/").replace("/", "-")
        here.mkdir(parents=True)
        os.chown(here, 1000, 1000)
        mounts.append(f"{here}:{place}")
    return mounts


@cache
def _pip_settings() -> dict[str, str]:
    """This machine's settings of pip that say where packages come from."""
    kept = ("index-url", "extra-index-url", "find-links", "trusted-host", "timeout")
    lines = _do([sys.executable, "-m", "pip", "config", "list"]).replace("\\n", " ").splitlines()
    named = {line.partition("=")[0].partition(".")[2]: line.partition("=")[2].strip("'") for line in lines}
    return {name: value for name, value in named.items() if name in kept}


def _pip_config(folder: Path) -> Path:
    """The settings as a file, with the place that this machine's certificates have in the build."""
    path = folder / "pip.conf"
    lines = [f"{name} = {value}" for name, value in _pip_settings().items()]
    path.write_text("\n".join(["[global]", "cert = /etc/host-ca.crt", *lines]))
    return path


def _local_packages() -> list[str]:
    """Folders of this machine that the settings name: of an index, the one that its files lie in too."""
    places = [place for value in _pip_settings().values() for place in value.split()]
    indexes = [Path(place.removeprefix("file://")).parent for place in places if place.startswith("file://")]
    folders = [Path(place) for place in places if place.startswith("/")]
    return [str(place) for place in dict.fromkeys([*indexes, *folders]) if place.is_dir()]


def _do(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, f"{argv[:2]}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout + done.stderr
