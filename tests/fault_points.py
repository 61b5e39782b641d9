"""Where a run can be cut short, and how: functions of the product, wrapped in the process that is to be."""

import importlib
import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POINTS: dict[str, tuple[str, str, int]] = {
    "loading": ("finetune.model", "load_base", 0),
    "before": ("finetune.evaluate", "_answer", 1),
    "adapter": ("finetune.model", "add_lora", 0),
    "first step": ("finetune.train", "Trainer.training_step", 2),
    "fifth step": ("finetune.train", "Trainer.training_step", 16),
    "between files": ("finetune.storage", "LocalFolder.put", 5),
    "upload": ("finetune.gcs", "BucketFolder.put", 5),
    "pruning": ("finetune.commits", "remove", 4),
    "saving": ("finetune.checkpoint", "place_adapter", 0),
    "after": ("finetune.evaluate", "_answer", 6),
    "report": ("finetune.report_html", "write_html", 0),
    "delivery": ("finetune.export", "deliver", 0),
}
"""Name -> a function, and the call of it that is cut short (0: the first)."""
AMONG_TWO = {"fifth step": 8, "after": 3}
"""On each of two ranks there are fewer calls."""
FILES = ("adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors", "state.json", "answers.json")
"""Files of checkpoints, in each of which the writing is cut short half-way; and so it is in the marker."""
MARKER = "COMMITTED"
WRITING = "writing "


def inject(fault: str) -> None:
    """Make this process end, or be told to, at a point. On the first rank, where files are written."""
    point, _, name = fault.partition(":")
    if not fault or os.environ.get("RANK", "0") != "0":
        return

    def send() -> None:
        to = os.getpid() if name == "KILL" or "RANK" not in os.environ else os.getppid()
        os.kill(to, signal.SIGKILL if name == "KILL" else signal.SIGTERM)
        time.sleep(0.2)  # the signal's thread comes first

    def hang() -> None:
        send()
        if name == "TWICE":
            time.sleep(1.5)
            send()
        time.sleep(60)

    if name == "TERM":
        _write_slowly()
    if point == "refused":
        _refuse()
        return
    hit = hang if point == "slow step" else send
    point = "fifth step" if point == "slow step" else point
    if point.startswith(WRITING):
        _cut_writing(point.removeprefix(WRITING), hit)
        return
    where, function, at = POINTS[point]
    at = AMONG_TWO.get(point, at) if "RANK" in os.environ else at
    owner: Any = importlib.import_module(where)
    *path, last = function.split(".")
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, last, _counted(getattr(owner, last), at, hit))


def _refuse() -> None:
    """A bucket that takes nothing more once it holds the first checkpoint."""
    from finetune import journal
    from finetune.errors import StorageError
    from finetune.gcs import BucketFolder

    original = BucketFolder.put

    def put(self: BucketFolder, name: str, source: Path) -> None:
        if name.startswith("step-4/"):
            raise StorageError("the bucket is gone")
        original(self, name, source)

    BucketFolder.put = put
    journal.PAUSES_S = (0.1, 0.1)


def _write_slowly() -> None:
    """What is on its way has to arrive, however the run ends."""
    from finetune import commits

    original = commits.write

    def write(*args: Any) -> commits.Commit:
        time.sleep(0.3)
        return original(*args)

    commits.write = write


def _counted(original: Callable[..., Any], at: int, hit: Callable[[], None]) -> Callable[..., Any]:
    calls = itertools.count()

    def call(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == at:
            hit()
        return original(*args, **kwargs)

    return call


def _cut_writing(name: str, hit: Callable[[], None]) -> None:
    """Cut the second file of that name short (the first of those that come once): half of it is written. In a bucket
    an object is there whole or not at all."""
    from finetune import gcs, storage

    original, calls = storage._write_all, itertools.count()
    wanted = 0 if name == "answers.json" else 1

    def write(file: Any, chunk: bytes) -> None:
        if str(file.name).endswith(f"/{name}") and "keeping" not in str(file.name) and next(calls) == wanted:
            original(file, chunk[: len(chunk) // 2])
            hit()
            original(file, chunk[len(chunk) // 2 :])
        else:
            original(file, chunk)

    storage._write_all = write
    for method in ("put", "write"):
        setattr(gcs.BucketFolder, method, _named(getattr(gcs.BucketFolder, method), name, calls, wanted, hit))


def _named(
    original: Callable[..., Any], name: str, calls: "itertools.count[int]", wanted: int, hit: Callable[[], None]
) -> Callable[..., Any]:
    def call(self: Any, path: str, content: Any) -> Any:
        if path.endswith(f"/{name}") and next(calls) == wanted:
            hit()
        return original(self, path, content)

    return call
