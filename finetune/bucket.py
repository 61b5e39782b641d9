"""Buckets, through gcsfs: `opened` gives one to work in, and `copy` puts a run directory there, sizes compared."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from finetune.errors import DeliveryError
from finetune.gcs import bucket_errors, connect

TEMPORARY = (".tmp", ".lock", ".incomplete")
CHECKPOINTS = "checkpoints"
"""In a run directory. They serve to resume the run there, and are as large as all else together."""


@contextmanager
def opened(failed: str, hint: str) -> Iterator[Any]:
    """Cloud Storage as a file system. What goes wrong with it in the block is raised as DeliveryError: `failed`,
    the reason, and `hint`."""
    with bucket_errors(failed, hint, DeliveryError):
        yield connect()


def copy(run_dir: Path, place: str, say: Callable[[str], None], known_as: str | None = None) -> None:
    """Copy all files of a run to `place` (gs://BUCKET/PATH). Raises DeliveryError with what to run to copy again.

    `known_as` is where the user has the run directory, if not there.
    """
    home = known_as or str(run_dir)
    say(f"> copying {home} to {place}")
    root = place.removeprefix("gs://").rstrip("/")
    wanted = {f"{root}/{path.relative_to(run_dir).as_posix()}": path for path in _files(run_dir)}
    failed = f"the results were not copied to {place}"
    again = shlex.join(["gcloud", "storage", "rsync", "--recursive", home, place])
    hint = f"they are safe in {home}; copy them with `{again}`"
    with opened(failed, hint) as storage:
        storage.put([str(path) for path in wanted.values()], list(wanted))
        storage.invalidate_cache()
        there = {name: entry["size"] for name, entry in storage.find(root, detail=True).items()}
    wrong = [name for name, path in wanted.items() if there.get(name) != path.stat().st_size]
    if wrong:
        arrived = f"{len(wanted) - len(wrong)} of {len(wanted)} files arrived; not {wrong[0]}"
        raise DeliveryError(f"{failed}: {arrived}", hint)
    say(f"  {len(wanted)} files are in {place}")


def _files(run_dir: Path) -> list[Path]:
    """All results; no checkpoints, not what is being written, and nothing hidden."""
    files = [path for path in sorted(run_dir.rglob("*")) if path.is_file() and path.suffix not in TEMPORARY]
    inside = {path: path.relative_to(run_dir).parts for path in files}
    shown = [path for path, parts in inside.items() if not any(part.startswith(".") for part in parts)]
    return [path for path in shown if inside[path][0] != CHECKPOINTS]
