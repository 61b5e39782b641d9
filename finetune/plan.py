"""The plan of a run: every value, resolved, with its source. Made by resolve.py, saved as plan.json.

It is all that the worker knows: the worker decides nothing a second time, so ranks cannot disagree.
Secrets never enter it.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from finetune.errors import UsageError
from finetune.hardware import Gpu, Machine
from finetune.settings import Settings

Source = Literal["default", "profile", "task", "model", "adapter", "config", "env", "flag"]
"""Where a value comes from. `model`: what the embedded toy model wants; `adapter`: what it was trained with."""
BY_USER: tuple[Source, ...] = ("flag", "env", "config")
"""The sources of a value that was asked for: it is never changed to fit."""
Start = Literal["new", "resume", "deliver", "nothing"]
"""`resume`: there are checkpoints. `deliver`: all is measured and saved; results may not be where they should go."""
FORMAT = 1
"""Version of plan.json."""


@dataclass(frozen=True)
class Launch:
    """How the processes are started. `accel_config` is a file name in accel_configs/, or an absolute path.

    `num_processes` are those of all `num_nodes` machines, as many on each.
    `gpus` are the indices of the GPUs to show, in nvidia-smi's order; None shows all that this process sees.
    `fsdp_layer_class` is the module class that FSDP2 shards by.
    """

    accel_config: str
    num_processes: int
    fsdp: bool
    use_cpu: bool
    bf16: bool
    fsdp_layer_class: str | None = None
    gpus: tuple[int, ...] | None = None
    threads_per_process: int = 1
    num_nodes: int = 1

    @property
    def processes_per_node(self) -> int:
        return self.num_processes // self.num_nodes


@dataclass(frozen=True)
class Plan:
    """Everything the worker needs. `adapter` and `machine` are for people and for run.json."""

    command: Literal["run", "evaluate", "merge"]
    settings: Settings
    sources: Mapping[str, Source]
    profile: str
    reason: str
    launch: Launch
    machine: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    """What a user should know: fallbacks, scaled values, ignored flags."""
    adapter: Mapping[str, Any] | None = None
    """What LoRA adds: `modules` and `parameters`, each by part of the model. None where that is not known yet."""
    memory: Mapping[str, Any] | None = None
    """GiB on each GPU that are there, and that are wanted, by stage and by what; whether that fits, so that it is worth
    a try. None without GPUs, or where the model's shape is not known yet."""
    data: Mapping[str, Any] | None = None
    """Rows to train on and to measure on, and tokens of a mean one. None where nothing is known of them yet."""
    time: Mapping[str, Any] | None = None
    """Steps, tokens, seconds by stage and dollars, estimated, with what was assumed. None where that cannot be."""
    adapter_path: str | None = None
    """evaluate and merge: the adapter to load on top of the model."""
    split: Literal["train", "test"] = "test"
    """evaluate only: the rows to score."""
    start: Start = "new"
    """run only: what an earlier start of it has left to do."""
    format: int = FORMAT

    @property
    def would_run(self) -> bool:
        """Whether the run would be started at all."""
        return self.memory is None or bool(self.memory.get("fits", True))

    @property
    def rows_per_step(self) -> int:
        """Rows of one optimizer step, over all processes."""
        settings = self.settings
        rows = settings.per_device_train_batch_size * settings.gradient_accumulation_steps
        return rows * self.launch.num_processes

    @property
    def place(self) -> str:
        """Where the results go, as a user would write it. An evaluation keeps to a folder of its own, so that a run's
        results survive it."""
        out = self.settings.output_dir.rstrip("/") or "/"
        return f"{out}/evaluation-{self.split}" if self.command == "evaluate" else out

    @property
    def run_dir(self) -> Path:
        """`place`, where it is no bucket."""
        return Path(self.place)

    def to_json(self) -> str:
        """The text of plan.json."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> "Plan":
        """Read plan.json, strictly: raises UsageError naming the key that is unknown, missing or of a wrong type."""
        try:
            data = json.loads(text)
        except json.JSONDecodeError as error:
            raise UsageError(f"the plan is not JSON: line {error.lineno}: {error.msg}", _HINT) from error
        if not isinstance(data, dict):
            raise UsageError(f"the plan is not a JSON object but {type(data).__name__}", _HINT)
        if data.get("format") != FORMAT:
            raise UsageError(f"the plan has format {data.get('format')}; this version reads format {FORMAT}", _HINT)
        _check_keys(Plan, data, "the plan")
        for key, cls in (("settings", Settings), ("launch", Launch), ("machine", Machine)):
            _check_keys(cls, data[key], f"the plan's {key}")
        for gpu in _list(data["machine"].get("gpus", [])):
            _check_keys(Gpu, gpu, "a GPU of the plan")
        gpus = data["launch"].get("gpus")
        data["launch"] = Launch(**{**data["launch"], "gpus": None if gpus is None else tuple(_list(gpus))})
        data["settings"] = Settings(**data["settings"])
        data["notes"] = tuple(_list(data.get("notes", [])))
        return Plan(**data)


_HINT = "make a new one: entrypoint.py plan --json > plan.json"


def _check_keys(cls: type, data: Any, what: str) -> None:
    """Raise UsageError unless `data` has the fields of `cls` and no others, each of its type.

    A plan has every setting: one that is left out would be decided by whatever version reads it.
    """
    if not isinstance(data, dict):
        raise UsageError(f"{what} is not a JSON object but {type(data).__name__}", _HINT)
    kinds = get_type_hints(cls)
    for key, value in data.items():
        if key not in kinds:
            near = get_close_matches(key, kinds, 1)
            raise UsageError(f"{what} has an unknown key {key!r}", f"did you mean {near[0]}?" if near else _HINT)
        _check_type(f"{what}: {key}", value, kinds[key])
    needed = [item.name for item in fields(cls) if item.default is MISSING or cls is Settings]
    missing = [name for name in needed if name not in data]
    if missing:
        raise UsageError(f"{what} lacks {', '.join(missing)}", _HINT)


def _check_type(what: str, value: Any, hint: Any) -> None:
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise UsageError(f"{what} is {value!r}; expected {' or '.join(get_args(hint))}", _HINT)
        return
    allowed = set(get_args(hint) if get_origin(hint) is UnionType else (hint,))
    if not allowed <= {str, int, float, bool, NoneType}:
        return  # a block of its own, checked as such
    if type(value) not in allowed | ({int} if float in allowed else set()):
        names = " or ".join(sorted(kind.__name__ for kind in allowed if kind is not NoneType))
        raise UsageError(f"{what} is {value!r}; expected {names}", _HINT)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise UsageError(f"the plan has {value!r} where a list is expected", _HINT)
    return value
