"""What has to be looked up before a run can be planned: the model's folder, the data's first rows, the outputs.

`gather` has these effects and no others: it reads small files, on disks and in the buckets that are named, and
nothing else of the network. What is wrong is returned, not raised, so that the plan can tell all mistakes of a
command together.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from finetune import earlier
from finetune.adapter_facts import look_at_adapter
from finetune.earlier import Earlier
from finetune.embedded import EMBEDDED, base_dir
from finetune.errors import StorageError
from finetune.gcs import IN_BUCKET
from finetune.hub_cache import hub_cache, hub_home, snapshot
from finetune.image_rows import Columns
from finetune.known_models import known_config
from finetune.model_facts import ModelFacts, look_in_folder
from finetune.samples import check_columns, check_images
from finetune.sampling import Sample, look
from finetune.settings import Trouble
from finetune.storage import is_bucket, is_url, open_folder, parent, whole
from finetune.tasks import TASKS
from finetune.tasks.base import Task

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
BUCKET_HINT = "write gs://BUCKET/PATH"
GRACE_S, GRACE_ON_CLOUD_RUN_S = 600, 10
"""What the manifests for GKE say, and what Cloud Run gives a task."""
T = TypeVar("T")


@dataclass(frozen=True)
class Facts:
    """All that was looked up. `dataset` is what the worker reads: a path from the root, gs://, a hub id or
    'embedded'."""

    model: ModelFacts
    dataset: str
    outputs: Mapping[str, str] = field(default_factory=dict)
    """output_dir, results_file and resume_from, with ~ written out."""
    earlier: Earlier = field(default_factory=Earlier)
    """What output_dir holds."""
    has_token: bool = False
    grace_seconds: int = GRACE_S
    """From SIGTERM to the end, where this runs."""
    adapter: str | None = None
    sample: Sample | None = None
    """Size and lengths of the data set, where it is here."""
    troubles: tuple[Trouble, ...] = ()
    notes: tuple[str, ...] = ()


def gather(values: Mapping[str, Any], adapter: str | None = None, environ: Mapping[str, str] = os.environ) -> Facts:
    """Look up what `values` (settings by name) speak of. Never raises for a user's mistake."""
    troubles: list[Trouble] = []
    notes: list[str] = []
    cache = hub_cache(environ)
    model = _look_at_model(values["model_id"], cache, troubles, notes)
    columns = Columns(values["image_column"], values["label_column"])
    dataset = _look_at_dataset(values["dataset"], TASKS[values["task"]], columns, troubles, notes)
    if adapter is not None:
        found = _look("adapter", adapter, troubles, lambda: look_at_adapter(open_folder(adapter)))
        troubles.extend([found] if found else [])
    written = {name: values[name] for name in ("output_dir", "results_file", "resume_from") if values[name]}
    outputs = {name: path if is_url(path) else str(Path(path).expanduser()) for name, path in written.items()}
    _look_at_outputs(outputs["output_dir"], outputs.get("results_file"), troubles)
    there = _look_at_earlier(outputs["output_dir"], outputs.get("resume_from"), troubles)
    token_file = Path(environ.get("HF_TOKEN_PATH") or hub_home(environ) / "token")
    return Facts(
        model,
        dataset,
        outputs,
        there,
        bool(environ.get("HF_TOKEN")) or (not _closed(token_file) and token_file.is_file()),
        GRACE_ON_CLOUD_RUN_S if environ.get("CLOUD_RUN_JOB") else GRACE_S,
        whole(adapter) if adapter is not None else None,
        look(TASKS[values["task"]], values, dataset, _tokenizer_at(model, cache)),
        tuple(troubles),
        tuple(notes),
    )


def _look_at_model(name: str, cache: Path, troubles: list[Trouble], notes: list[str]) -> ModelFacts:
    if name == EMBEDDED:
        return _told(look_in_folder(EMBEDDED, "embedded", open_folder(base_dir())), EMBEDDED, troubles)
    if is_bucket(name):
        found = _in_bucket("model_id", name, troubles, lambda: look_in_folder(whole(name), "folder", open_folder(name)))
        return _told(found, name, troubles) if found else ModelFacts(name, "folder")
    path = Path(name).expanduser()
    if _closed(path):
        troubles.append(Trouble("model_id", *_may_not_read(path)))
        return ModelFacts(name, "folder")
    if path.is_dir():
        if HUB_ID.fullmatch(name):
            notes.append(f"model {name}: the local folder of that name is used, not the hub's model")
        return _told(look_in_folder(whole(name), "folder", open_folder(path)), whole(name), troubles)
    if path.is_file():
        found_file, hint = "is a file", "give the folder that holds config.json, the weights and the tokenizer"
        troubles.append(Trouble("model_id", f"{name} {found_file}; expected a model's folder or a hub id", hint))
    elif not HUB_ID.fullmatch(name.rstrip("/") if name.count("/") > 1 else name):
        found_none = "no such folder, and not a hub id either"
        hint = "write a folder, gs://BUCKET/PATH, or org/name such as google/gemma-4-31B-it"
        troubles.append(Trouble("model_id", f"{name}: {found_none}", hint))
    return ModelFacts(name.rstrip("/"), "hub", _hub_config(name.rstrip("/"), cache))


def _told(found: ModelFacts | Trouble, name: str, troubles: list[Trouble]) -> ModelFacts:
    if isinstance(found, ModelFacts):
        return found
    troubles.append(found)
    return ModelFacts(name, "embedded" if name == EMBEDDED else "folder")


def _in_bucket(setting: str, place: str, troubles: list[Trouble], look: Callable[[], T]) -> T | None:
    """Look at something in a bucket. What is wrong with the path or the bucket is a trouble, and gives None."""
    if not IN_BUCKET.fullmatch(place):
        troubles.append(Trouble(setting, f"{place!r} is not a path in a bucket", BUCKET_HINT))
        return None
    try:
        return look()
    except StorageError as error:
        troubles.append(Trouble(setting, error.message, error.hint))
        return None


def _hub_config(name: str, cache: Path) -> Mapping[str, Any] | None:
    """The shape of a hub model: from the table, else from an earlier download."""
    known = known_config(name)
    if known is not None:
        return known
    try:
        config = json.loads((snapshot(name, cache) / "config.json").read_text())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def _tokenizer_at(model: ModelFacts, cache: Path) -> Path | None:
    """A folder on this machine with the model's tokenizer."""
    if model.kind == "embedded":
        return base_dir()
    if model.kind == "folder":
        return None if is_bucket(model.name) else Path(model.name)
    try:
        return snapshot(model.name, cache)
    except OSError:
        return None


def _look_at_dataset(name: str, task: Task, columns: Columns, troubles: list[Trouble], notes: list[str]) -> str:
    path = Path(name).expanduser()
    if name == EMBEDDED:
        return name
    if not name:
        what = f"{task.NAME} has no data set of its own"
        hint = (
            "write --dataset FILE.jsonl with a row a line: "
            + '{"messages": [...]} or {"prompt": ..., "completion": ...}'
        )
        troubles.append(Trouble("dataset", what, hint))
        return name
    if is_bucket(name):
        if _in_bucket("dataset", name, troubles, lambda: _files_at(name)) == {}:
            hint = "see that the path is right: a folder with train and test files, or one file"
            troubles.append(Trouble("dataset", f"{name}: there is nothing there", hint))
        return whole(name)
    if _closed(path):
        troubles.append(Trouble("dataset", *_may_not_read(path)))
        return name
    if path.exists():
        if HUB_ID.fullmatch(name):
            notes.append(f"data set {name}: the local one of that name is used, not the hub's")
        problem = _problem(path, task, columns)
        if problem:
            other = next((known.NAME for known in TASKS.values() if not _problem(path, known, columns)), None)
            hint = f"the data fits another task: write --task {other}" if other else problem[1]
            troubles.append(Trouble("dataset", problem[0], hint))
        return str(path.resolve())
    if not HUB_ID.fullmatch(name):
        hint = (
            "write a folder with train and test files, a .jsonl, .csv, .json or .parquet file, either also as "
            "gs://BUCKET/PATH, or a hub id (org/name)"
        )
        troubles.append(Trouble("dataset", f"{name}: no such file or folder", hint))
    return name


def _files_at(place: str) -> dict[str, int]:
    """The files below a path in a bucket, or the one that it is."""
    name = place.rstrip("/").rpartition("/")[2]
    return open_folder(place).files() or {
        file: size for file, size in open_folder(parent(place)).files(deep=False).items() if file == name
    }


def _problem(path: Path, task: Task, columns: Columns) -> tuple[str, str] | None:
    """Why a data set is not what a task needs, as far as a glance can tell."""
    return check_images(path, columns) if task.IMAGES else check_columns(path, task)


def _look_at_outputs(out: str, results: str | None, troubles: list[Trouble]) -> None:
    if is_url(out):
        if not IN_BUCKET.fullmatch(out):
            troubles.append(Trouble("output_dir", f"{out!r} is not a path in a bucket", f"{BUCKET_HINT}, or a folder"))
    else:
        nearest = _nearest_existing(Path(out))
        if not nearest.is_dir():
            troubles.append(Trouble("output_dir", f"{nearest} is a file; expected a folder", "write another folder"))
        elif not os.access(nearest, os.W_OK | os.X_OK):
            user = os.getuid()
            hint = f"write another folder, or make it user {user}'s; a bucket: mount it with uid={user} and gid={user}"
            troubles.append(Trouble("output_dir", f"{nearest} cannot be written to by user {user}", hint))
    if results and is_url(results):
        if not IN_BUCKET.fullmatch(results) or results.endswith("/"):
            trouble = Trouble("results_file", f"{results!r} is not a file in a bucket", f"{BUCKET_HINT}/metrics.json")
            troubles.append(trouble)
    elif results:
        nearest = _nearest_existing(Path(results).parent)
        if Path(results).is_dir():
            hint = f"write a file name, such as {results.rstrip('/')}/metrics.json"
            troubles.append(Trouble("results_file", f"{results} is a folder; expected a file", hint))
        elif not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            troubles.append(Trouble("results_file", f"{nearest} cannot be written to", "write another path"))


def _look_at_earlier(out: str, resume_from: str | None, troubles: list[Trouble]) -> Earlier:
    """What the output folder holds, or where it holds nothing what --resume-from names."""
    wrong = any(trouble.setting == "output_dir" for trouble in troubles)
    found = Earlier() if wrong else _look("output_dir", out, troubles, lambda: earlier.look(out)) or Earlier()
    if resume_from is None or found.state != "nothing":
        return found
    commits = _look("resume_from", resume_from, troubles, lambda: earlier.commits_at(resume_from)[1])
    if commits and commits.commits:
        return earlier.begun(commits)
    if commits:
        why = "".join(f"; {name}: {reason}" for name, reason in commits.skipped.items())
        hint = "give the folder of a run that was interrupted, or checkpoints/step-N in it"
        troubles.append(Trouble("resume_from", f"{resume_from}: no checkpoint is there{why}", hint))
    return found


def _look(setting: str, place: str, troubles: list[Trouble], look: Callable[[], T]) -> T | None:
    """Look into a folder wherever it is; None where it cannot be."""
    if is_url(place):
        return _in_bucket(setting, place, troubles, look)
    if _closed(Path(place)):
        troubles.append(Trouble(setting, *_may_not_read(Path(place))))
        return None
    return look()


def look_at_target(to: str) -> Trouble | None:
    """What is wrong with the folder that a model is to be copied into, as far as it is there."""
    folder = Path(to).expanduser()
    if not is_url(to) and not _closed(folder) and folder.is_file():
        return Trouble("to", f"{to} is a file; expected a folder", "write another folder")
    return None


def _nearest_existing(path: Path) -> Path:
    """The path itself, or the closest folder above it that exists, as far as this user may look."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if not _closed(place.parent) and place.exists())


def _closed(path: Path) -> bool:
    """Whether this user may not look for a path, or into it: in a container it is often not the one who owns it."""
    try:
        return path.exists() and not os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK)
    except PermissionError:
        return True


def _may_not_read(path: Path) -> tuple[str, str]:
    user = os.getuid()
    return f"{path}: user {user} may not read it", f"make it readable for user {user}, or run as the user who owns it"
