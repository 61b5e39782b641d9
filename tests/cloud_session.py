"""The README's section on Google Cloud, run block by block by the real clients, against stand-ins on the loopback."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import cloud_storage, google_cloud, kubernetes_api
from tests.conftest import ROOT
from tests.google_cloud import Sent

TOKEN = "hf_MARKERTOKENthatMustNotLeak"
FILLED_IN = {
    "YOUR_PROJECT_ID": "test-project",
    "YOUR_REGION": "us-central1",
    "YOUR_HF_TOKEN": TOKEN,
    "YOUR_RESERVATION": "my-reservation",
}
BUCKET = "test-project-gemma4-finetuning"
SECTION = (ROOT / "README.md").read_text().split("\n## On Google Cloud\n")[1].split("\n## ")[0]
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
NO_LOG = 'gcloud() { case "$1 $2" in "builds submit") set -- "$@" --async;; esac; command gcloud "$@"; }'
"""Not waited for: gcloud reads the log from Cloud Storage's public address, whatever it was told of a stand-in."""


@dataclass(frozen=True)
class Ran:
    """A block of commands: its text, what it printed, and what gcloud sent."""

    text: str
    printed: str
    sent: list[Sent]


@dataclass(frozen=True)
class Shell:
    """A user's shell in a clone of the project. Exported variables live on from one block to the next."""

    clone: Path
    variables: Path
    environ: dict[str, str]
    cloud: google_cloud.Cloud

    def run(self, text: str) -> Ran:
        """Run a block, which must succeed."""
        before = len(self.cloud.sent)
        script = f"set -euo pipefail\n. {self.variables}\n{NO_LOG}\n{text}\nexport -p > {self.variables}\n"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.clone, env=self.environ, capture_output=True, text=True, timeout=180,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return Ran(text, done.stdout + done.stderr, self.cloud.sent[before:])


@dataclass(frozen=True)
class Session:
    """All blocks of the README, what was in the cluster before the last one cleaned up, and the shell after it."""

    blocks: list[Ran]
    applied: dict[tuple[str, str], dict[str, Any]]
    shell: Shell
    cluster: kubernetes_api.Cluster

    def sent(self, method: str, path: str) -> list[Sent]:
        """The requests of this method whose path holds this pattern."""
        found = [sent for ran in self.blocks for sent in ran.sent]
        return [sent for sent in found if sent.method == method and re.search(path, sent.path)]

    def block(self, words: str) -> Ran:
        """The only block with these words in it."""
        (found,) = [ran for ran in self.blocks if words in ran.text]
        return found


@contextmanager
def readme_session(home: Path) -> Iterator[Session]:
    """Run all blocks, with their placeholders filled in."""
    (home / "gcloud").mkdir()
    kubeconfig, variables = home / "kubeconfig", home / "variables"
    variables.touch()
    with (
        cloud_storage.serve() as (url, storage),
        google_cloud.serve(url) as cloud,
        kubernetes_api.serve() as cluster,
    ):
        environ = {**cloud.environment(home / "gcloud"), "KUBECONFIG": str(kubeconfig), "HOME": str(home)}
        shell = Shell(_clone(home / "clone"), variables, environ, cloud)
        blocks: list[Ran] = []
        applied: dict[tuple[str, str], dict[str, Any]] = {}
        for text in BLOCKS:
            if "gcloud storage cp" in text:
                storage.pipe_file(f"{BUCKET}/gemma4-finetuned/report.html", b"a report")
            if "delete job" in text:
                applied = dict(cluster.objects)
            if 'jobs create "$JOB_NAME"' in text:
                cloud.jobs.pop("gemma4-finetuning-job")  # the README's other way to make it came first
            for placeholder, value in FILLED_IN.items():
                text = text.replace(placeholder, value)
            blocks.append(shell.run(text))
            if "get-credentials" in text:
                cluster.kubeconfig(kubeconfig)  # the cluster that it names is not there
        yield Session(blocks, applied, shell, cluster)


def _clone(folder: Path) -> Path:
    """The project's files as they are here, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder
