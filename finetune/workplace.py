"""Where a run works: a folder for what is of the moment, and the run directory, here or on its way to a bucket."""

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from accelerate import PartialState

from finetune.earlier import CHECKPOINTS
from finetune.plan import Plan
from finetune.sources import fetch
from finetune.storage import Folder, is_bucket, is_mount, open_folder

PREFIX = "gemma4-finetune-"
MERGED = "merged"
LEFT_BY_A_RUN = ("adapter", "logs", MERGED, "metrics.json", "report.html", "run.json", "thumbnails")
RUN = "run.json"
"""Copied last: it says that the run is finished."""


@dataclass
class Workplace:
    """`run_dir` is what the results are written to, on a disk or a mount. `bucket` is where they go from there, None
    if they are where they belong. `logs` is a folder that can be appended to."""

    scratch: Path
    run_dir: Path
    logs: Path
    bucket: Folder | None = None
    _sent: dict[str, tuple[int, int]] = field(default_factory=dict)

    def publish(self) -> None:
        """Copy what has changed in the run directory to its bucket. On the main process."""
        if self.logs.is_dir() and not self.logs.is_relative_to(self.run_dir):
            folder = open_folder(self.run_dir / "logs")
            for path in self.logs.iterdir():
                folder.put(path.name, path)
        if self.bucket is None:
            return
        paths = [path for path in sorted(self.run_dir.rglob("*")) if path.is_file() and not path.name.startswith(".")]
        for path in sorted(paths, key=lambda path: path.name == RUN):
            name, state = path.relative_to(self.run_dir).as_posix(), _state(path)
            if self._sent.get(name) != state:
                self.bucket.put(name, path)
                self._sent[name] = state

    def fetch(self) -> None:
        """Bring the results of a finished run here, from their bucket. A merged model is made anew, not fetched."""
        if self.bucket is not None:
            names = [name for name in self.bucket.files() if name.partition("/")[0] not in (CHECKPOINTS, MERGED)]
            fetch(self.bucket, names, self.run_dir)
            self._sent = {name: _state(self.run_dir / name) for name in names}

    def clear(self) -> None:
        """Remove an earlier run's results. What is not a result stays."""
        for path in (*(self.run_dir / name for name in LEFT_BY_A_RUN), *self.run_dir.glob("predictions-*.jsonl")):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if self.bucket is not None:
            for name in self.bucket.files():
                if name.partition("/")[0] in LEFT_BY_A_RUN or name.startswith("predictions-"):
                    self.bucket.delete(name)

    def close(self) -> None:
        """Remove what was of the moment. On one process of each node."""
        shutil.rmtree(self.scratch, ignore_errors=True)


def open_workplace(plan: Plan) -> Workplace:
    """Make the folders that a plan needs on this node. Every process must call it."""
    # The ranks of a node share a parent, the launcher; other runs on the machine have another.
    scratch = Path(tempfile.gettempdir()) / f"{PREFIX}{os.getppid()}"
    in_bucket = is_bucket(plan.place)
    run_dir = scratch / "run" if in_bucket else plan.run_dir
    if PartialState().is_local_main_process:
        _sweep(scratch)
        scratch.mkdir(mode=0o700)
        if PartialState().is_main_process:
            run_dir.mkdir(parents=True, exist_ok=True)
    PartialState().wait_for_everyone()
    appendable = in_bucket or not is_mount(run_dir)
    logs = run_dir / "logs" if appendable else scratch / "logs"
    return Workplace(scratch, run_dir, logs, open_folder(plan.place) if in_bucket else None)


def _state(path: Path) -> tuple[int, int]:
    """What changes as a file is written."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _sweep(own: Path) -> None:
    """Remove what runs that were killed could not."""
    for path in own.parent.glob(f"{PREFIX}*"):
        number = path.name.removeprefix(PREFIX)
        if number.isdecimal() and (path == own or not psutil.pid_exists(int(number))):
            shutil.rmtree(path, ignore_errors=True)
