"""What a run reads, brought to where this machine can open it: one process a node fetches, the others wait.

A folder on a disk or a mount stays where it is. Of a model in a bucket only the small files come here: its weights go
straight from the bucket to the device (weights.py). A data set in a bucket is copied whole.
"""

import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from accelerate import PartialState
from httpx2 import HTTPError
from huggingface_hub import snapshot_download
from tqdm import tqdm

from finetune.errors import StorageError
from finetune.hub_files import IGNORED, Lines
from finetune.plan import Plan
from finetune.reader import source, unreadable
from finetune.shards import SUFFIX
from finetune.storage import Folder, copied, is_bucket, open_folder, parent

FILES_AT_ONCE = 8


@dataclass(frozen=True)
class Sources:
    """Local paths, but for `weights`. `adapter` is None where none is to be loaded."""

    model: str
    weights: Folder
    dataset: str
    adapter: str | None


def gather(plan: Plan, scratch: Path) -> Sources:
    """Fetch what is not on this node, into `scratch`. Every process must call it.

    Raises StorageError for a bucket, ModelError for a hub that does not give what is asked for.
    """
    state, settings = PartialState(), plan.settings
    if state.is_local_main_process:
        _fetch_all(plan, scratch)
    state.wait_for_everyone()
    model = settings.model_id
    here = str(scratch / "model") if is_bucket(model) else _local_model(model, local_only=True)
    weights = open_folder(model) if is_bucket(model) else open_folder(here)
    dataset = settings.dataset or ""
    if is_bucket(dataset):
        dataset = str(_place_of_data(dataset, scratch))
    adapter = plan.adapter_path
    return Sources(here, weights, dataset, str(scratch / "adapter") if adapter and is_bucket(adapter) else adapter)


def _fetch_all(plan: Plan, scratch: Path) -> None:
    settings = plan.settings
    if is_bucket(settings.model_id):
        folder = open_folder(settings.model_id)
        names = [name for name in folder.files(deep=False) if not name.endswith(SUFFIX)]
        fetch(folder, names, scratch / "model")
    else:
        _local_model(settings.model_id, local_only=False)
    if settings.dataset and is_bucket(settings.dataset):
        _fetch_data(settings.dataset, scratch)
    if plan.adapter_path and is_bucket(plan.adapter_path):
        fetch_adapter(plan.adapter_path, scratch)


def fetch_adapter(place: str, scratch: Path) -> Path:
    """An adapter in a bucket, copied here."""
    folder = open_folder(place)
    fetch(folder, list(folder.files(deep=False)), scratch / "adapter")
    return scratch / "adapter"


def _local_model(model_id: str, local_only: bool) -> str:
    """A model's folder on this machine; one of the hub is downloaded, or found where that was done."""
    origin = source(model_id)
    if Path(origin).is_dir():
        return origin
    try:
        return snapshot_download(origin, ignore_patterns=IGNORED, tqdm_class=Lines, local_files_only=local_only)
    except (HTTPError, OSError, ValueError) as error:
        raise unreadable(model_id, error) from error


def _place_of_data(place: str, scratch: Path) -> Path:
    return scratch / "data" / place.rstrip("/").rpartition("/")[2]


def _fetch_data(place: str, scratch: Path) -> None:
    """A folder in a bucket, or one file, under its own name."""
    target, folder = _place_of_data(place, scratch), open_folder(place)
    names = list(folder.files())
    if names:
        fetch(folder, names, target)
    else:
        fetch(open_folder(parent(place)), [target.name], target.parent)


def fetch(folder: Folder, names: Sequence[str], target: Path) -> None:
    """Copy files of a folder to a local one, several at once, behind a bar. Raises StorageError.

    A name that leads out of `target` is refused: the folder may be anybody's.
    """
    sizes = folder.files()
    total = sum(sizes.get(name, 0) for name in names)
    target.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target).free
    if total > free:
        message = f"{folder.url}: {total / 1e9:.1f} GB are to be copied here, and {target} has {free / 1e9:.1f} GB free"
        raise StorageError(message, "mount the bucket, or set TMPDIR to a larger disk")
    seldom = 0.1 if sys.stderr.isatty() else 30.0  # seconds; a log collector keeps every redrawing
    with (
        tqdm(total=total, desc=f"copy {folder.url}", unit="B", unit_scale=True, mininterval=seldom, delay=2.0) as bar,
        ThreadPoolExecutor(FILES_AT_ONCE) as pool,
    ):
        for _ in pool.map(lambda name: _fetch_file(folder, name, target, bar), names):
            pass


def _fetch_file(folder: Folder, name: str, target: Path, bar: "tqdm[NoReturn]") -> None:
    path = target / name
    if not path.resolve().is_relative_to(target.resolve()):
        raise StorageError(f"{folder.url}: {name!r} would be written outside {target}", "remove that file")
    try:
        for chunk in copied(folder, name, path):
            bar.update(len(chunk))
    except FileNotFoundError as error:
        raise StorageError(f"{folder.url}/{name} is gone", "do not change it while a run begins") from error
