"""What has to be looked up before a run can be planned: the model's folder, the data's first rows, the outputs.

`gather` has these effects and no others: it reads small local files, and never the network. What is wrong
is returned, not raised, so that the plan can tell all mistakes of a command together.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from finetune.embedded import EMBEDDED, base_dir
from finetune.hardware import GIB
from finetune.image_rows import Columns
from finetune.samples import check_columns, check_images
from finetune.shapes import KNOWN_CONFIGS, TEXT_LAYER_CLASS
from finetune.tasks import TASKS
from finetune.tasks.base import Task

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")
WEIGHTS = "*.safetensors"
RESULTS = ("run.json", "adapter/adapter_model.safetensors")
"""What tells a run directory that is in use."""
AS_TRAINED = ("task", "model_id", "max_length", "max_new_tokens", "hub_repo", "hub_private_repo")
"""Settings of a run that matter still when its adapter is evaluated or merged. Trust in code is given anew."""
WEIGHT_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Trouble:
    """Something wrong with the value of a setting: what was found and expected, and what to write."""

    setting: str
    message: str
    hint: str = ""


@dataclass(frozen=True)
class ModelFacts:
    """`name` is what the worker loads: a folder's absolute path, a hub id or 'embedded'."""

    name: str
    kind: Literal["embedded", "folder", "hub"]
    config: Mapping[str, Any] | None = None
    """The model's config.json, if it is known."""
    weights_gib: float | None = None


@dataclass(frozen=True)
class Facts:
    """All that was looked up. `dataset` is what the worker reads: an absolute path, a hub id or 'embedded'."""

    model: ModelFacts
    dataset: str
    outputs: Mapping[str, str] = field(default_factory=dict)
    """output_dir and results_file, with ~ written out."""
    has_results: bool = False
    """Whether output_dir holds what an earlier run left."""
    has_merged: bool = False
    """Whether it holds a merged model."""
    has_token: bool = False
    adapter: str | None = None
    troubles: tuple[Trouble, ...] = ()
    notes: tuple[str, ...] = ()


def gather(values: Mapping[str, Any], adapter: str | None = None, environ: Mapping[str, str] = os.environ) -> Facts:
    """Look up what `values` (settings by name) speak of. Never raises for a user's mistake."""
    troubles: list[Trouble] = []
    notes: list[str] = []
    hub = Path(environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface").expanduser()
    model = _look_at_model(values["model_id"], hub / "hub", troubles, notes)
    columns = Columns(values["image_column"], values["label_column"])
    dataset = _look_at_dataset(values["dataset"], TASKS[values["task"]], columns, troubles, notes)
    if adapter is not None:
        _look_at_adapter(Path(adapter), troubles)
    written = {name: values[name] for name in ("output_dir", "results_file") if values[name]}
    outputs = {name: path if "://" in path else str(Path(path).expanduser()) for name, path in written.items()}
    _look_at_outputs(outputs["output_dir"], outputs.get("results_file"), troubles)
    out = Path(outputs["output_dir"])
    has_results = not _closed(out) and any((out / name).exists() for name in RESULTS)
    has_merged = not _closed(out / "merged") and (out / "merged" / "config.json").exists()
    token_file = Path(environ.get("HF_TOKEN_PATH") or hub / "token")
    return Facts(
        model,
        dataset,
        outputs,
        has_results,
        has_merged,
        bool(environ.get("HF_TOKEN")) or (not _closed(token_file) and token_file.is_file()),
        str(Path(adapter).resolve()) if adapter is not None else None,
        tuple(troubles),
        tuple(notes),
    )


def _look_at_model(name: str, hub_cache: Path, troubles: list[Trouble], notes: list[str]) -> ModelFacts:
    if name == EMBEDDED:
        return _look_in_folder(EMBEDDED, "embedded", base_dir(), troubles)
    path = Path(name).expanduser()
    if _closed(path):
        troubles.append(Trouble("model_id", *_may_not_read(path)))
        return ModelFacts(name, "folder")
    if path.is_dir():
        if HUB_ID.fullmatch(name):
            notes.append(f"model {name}: the local folder of that name is used, not the hub's model")
        return _look_in_folder(str(path.resolve()), "folder", path, troubles)
    if path.is_file():
        found, hint = "is a file", "give the folder that holds config.json, the weights and the tokenizer"
        troubles.append(Trouble("model_id", f"{name} {found}; expected a model's folder or a hub id", hint))
    elif not HUB_ID.fullmatch(name):
        found = "no such folder, and not a hub id either"
        troubles.append(
            Trouble("model_id", f"{name}: {found}", "write a folder, or org/name such as google/gemma-4-31B-it")
        )
    return ModelFacts(name, "hub", _hub_config(name, hub_cache))


def _hub_config(name: str, hub_cache: Path) -> Mapping[str, Any] | None:
    """The shape of a hub model: from the table, else from an earlier download."""
    known = {key.lower(): config for key, config in KNOWN_CONFIGS.items()}.get(name.lower())
    if known is not None:
        return known
    repository = hub_cache / f"models--{name.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text().strip()
        config = json.loads((repository / "snapshots" / revision / "config.json").read_text())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def _look_in_folder(
    name: str, kind: Literal["embedded", "folder"], folder: Path, troubles: list[Trouble]
) -> ModelFacts:
    def wrong(message: str, hint: str = "") -> ModelFacts:
        troubles.append(Trouble("model_id", f"{folder}: {message}", hint))
        return ModelFacts(name, kind)

    if not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            base = adapter_base(folder) or "the base model"
            return wrong(
                "is a LoRA adapter, not a model",
                f"write --model-id {base}; to score the adapter: evaluate --model-id {base} --adapter {folder}",
            )
        return wrong("has no config.json", "give the folder that save_pretrained or the hub download made")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return wrong(f"config.json cannot be read: {error}", "download the model again")
    kind_found = config.get("model_type") if isinstance(config, dict) else None
    if kind_found not in TEXT_LAYER_CLASS:
        return wrong(
            f"config.json says model_type {kind_found!r}; expected a Gemma 4 ({' or '.join(TEXT_LAYER_CLASS)})",
            "give a Gemma 4 such as google/gemma-4-31B-it",
        )
    weights = list(folder.glob(WEIGHTS))
    missing = _missing_shards(folder)
    if missing or not weights:
        what = f"{len(missing)} weight files are missing, such as {missing[0]}" if missing else f"has no {WEIGHTS}"
        return wrong(what, "download the model again")
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return wrong(f"has no tokenizer ({' or '.join(TOKENIZER_FILES)})", "copy the tokenizer's files into the folder")
    return ModelFacts(name, kind, config, sum(path.stat().st_size for path in weights) / GIB)


def _missing_shards(folder: Path) -> list[str]:
    try:
        shards = set(json.loads((folder / WEIGHT_INDEX).read_text())["weight_map"].values())
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [WEIGHT_INDEX]
    return sorted(name for name in shards if not (folder / name).is_file())


def adapter_base(folder: Path) -> str | None:
    """The model that an adapter was trained on, as a user would write it. None where the folder does not tell."""
    try:
        base = json.loads((folder / "adapter_config.json").read_text()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        return None
    if not base:
        return None
    return EMBEDDED if Path(base) == base_dir() else str(base)


def adapter_settings(folder: Path) -> dict[str, Any]:
    """What the run that left an adapter was told, of the settings in AS_TRAINED. Empty where there is no plan.json."""
    try:
        settings = json.loads((folder.parent / "plan.json").read_text(encoding="utf-8"))["settings"]
        known = {name: settings[name] for name in AS_TRAINED}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return known if known["task"] in TASKS else {}


def _look_at_adapter(folder: Path, troubles: list[Trouble]) -> None:
    if _closed(folder):
        troubles.append(Trouble("adapter", *_may_not_read(folder)))
    elif not (folder / "adapter_config.json").is_file():
        found = "has no adapter_config.json" if folder.is_dir() else "no such folder"
        troubles.append(
            Trouble("adapter", f"{folder}: {found}", "give the adapter folder of a run, such as out/adapter")
        )
    elif not (folder / "adapter_model.safetensors").is_file():
        troubles.append(
            Trouble("adapter", f"{folder}: has no adapter_model.safetensors", "the save was cut short: run again")
        )


def _look_at_dataset(name: str, task: Task, columns: Columns, troubles: list[Trouble], notes: list[str]) -> str:
    path = Path(name).expanduser()
    if name == EMBEDDED:
        return name
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
            "write a folder with train and test files, a .jsonl, .csv, .json or .parquet file, or a hub id (org/name)"
        )
        troubles.append(Trouble("dataset", f"{name}: no such file or folder", hint))
    return name


def _problem(path: Path, task: Task, columns: Columns) -> tuple[str, str] | None:
    """Why a data set is not what a task needs, as far as a glance can tell."""
    return check_images(path, columns) if task.IMAGES else check_columns(path, task)


def _look_at_outputs(out: str, results: str | None, troubles: list[Trouble]) -> None:
    if "://" not in out:
        nearest = _nearest_existing(Path(out))
        if not nearest.is_dir():
            troubles.append(Trouble("output_dir", f"{nearest} is a file; expected a folder", "write another folder"))
        elif not os.access(nearest, os.W_OK | os.X_OK):
            user = os.getuid()
            hint = f"write another folder, or make it user {user}'s; a bucket: mount it with uid={user} and gid={user}"
            troubles.append(Trouble("output_dir", f"{nearest} cannot be written to by user {user}", hint))
    if results and "://" not in results:
        nearest = _nearest_existing(Path(results).parent)
        if Path(results).is_dir():
            hint = f"write a file name, such as {results.rstrip('/')}/metrics.json"
            troubles.append(Trouble("results_file", f"{results} is a folder; expected a file", hint))
        elif not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
            troubles.append(Trouble("results_file", f"{nearest} cannot be written to", "write another path"))


def look_at_target(to: str) -> Trouble | None:
    """What is wrong with the folder that a model is to be copied into, as far as it is there."""
    folder = Path(to).expanduser()
    if "://" not in to and not _closed(folder) and folder.is_file():
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
