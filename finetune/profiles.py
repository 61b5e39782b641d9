"""The table of hardware profiles: what runs where. A new GPU is one row here (and at most one accel config).

`match` picks the row for a machine and says why. Rows are tried from the top, most specific first.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from finetune.embedded import EMBEDDED
from finetune.fit import fit
from finetune.hardware import ASSUMED, Gpu, Machine
from finetune.known_gpus import assumed
from finetune.settings import DEFAULTS

ROWS_PER_STEP = 512
"""Rows of an optimizer step in the published text-to-SQL recipe: 2 a GPU x 32 micro-batches x 8 GPUs."""

LORA: Mapping[str, Any] = {
    "quantization": "none",
    "lora_r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.05,
    "lora_targets": "text",
    "max_length": 1024,
    "num_train_epochs": 3.0,
    "learning_rate": 1e-5,
    "lr_scheduler_type": "constant",
    "warmup_ratio": 0.03,
    "weight_decay": 0.0,
    "max_grad_norm": 0.3,
}
"""bf16 LoRA, as published for 8 x B200."""
LONG_STEPS: Mapping[str, Any] = {"logging_steps": 1, "save_steps": 10}
"""Steps of 512 rows take minutes: 58 of them are the published 2 h 30 min."""
QLORA: Mapping[str, Any] = {
    **LORA,
    "quantization": "nf4",
    "lora_r": 64,
    "lora_alpha": 64,
    "lora_targets": "all-linear",
    "learning_rate": 5e-5,
    "lr_scheduler_type": "linear",
    "warmup_ratio": 0.1,
    "weight_decay": 0.01,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 16,
    "logging_steps": 1,
    "save_steps": 25,
}
"""NF4 QLoRA, as published for one RTX PRO 6000."""

EMBEDDED_MODEL: Mapping[str, Any] = {
    "quantization": "none",
    "lora_dropout": 0.0,
    "learning_rate": 3e-3,
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.05,
    "max_grad_norm": 1.0,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "num_train_epochs": 1.0,
    "max_length": 2048,
    "max_new_tokens": 96,
    "eval_batch_size": 50,
    "eval_size": 200,
    "activation_checkpointing": False,
    "logging_steps": 20,
}
"""What the embedded toy model is trained with, on any machine: it has a thousandth of a real one's parameters."""
EMBEDDED_TASKS: Mapping[str, Mapping[str, Any]] = {
    "pets": {
        "lora_r": 64,
        "lora_alpha": 64,
        "learning_rate": 2e-3,
        "per_device_train_batch_size": 8,
        "max_new_tokens": 16,
        "logging_steps": 10,
    }
}
"""What is different for a task: the toy's vision tower is random, and has everything to learn."""
EMBEDDED_DATA: Mapping[str, Mapping[str, Any]] = {
    "text-to-sql": {"train_size": 2000, "max_length": 512},
    "pets": {"train_size": 900, "max_length": 512, "eval_size": 120},
    "chat": {"train_size": 1000, "max_length": 512},
}
"""The embedded data sets are generated: they have as many rows as are asked for."""


@dataclass(frozen=True)
class Profile:
    """One row. It matches `min_gpus` to `max_gpus` GPUs of which `gpu` are whole words of the name.

    `sized` rows choose model and quantization by memory (fit.py). `assumes` is planned for when a user asks
    "what if" by --profile on another machine.
    """

    name: str
    says: str
    accel_config: str
    settings: Mapping[str, Any]
    gpu: str = ""
    min_gpus: int = 0
    max_gpus: int | None = None
    sized: bool = False
    published: str = ""
    """What is known of the recipe on this very machine, from those who ran it."""
    assumes: tuple[Gpu, ...] = field(default=(), repr=False)


PROFILES: tuple[Profile, ...] = (
    Profile(
        "b200x8",
        "8 x B200: bf16 LoRA of the 31B, sharded over all GPUs with FSDP2",
        "fsdp2.yaml",
        {
            **LORA,
            "model_id": "google/gemma-4-31B-it",
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 32,
            "eval_batch_size": 16,
            **LONG_STEPS,
        },
        gpu="B200",
        min_gpus=8,
        max_gpus=8,
        published="those who published this recipe told of about 2 h 30 min on this machine, with other code",
        assumes=assumed(8, "B200"),
    ),
    Profile(
        "rtx-pro-6000",
        "1 x RTX PRO 6000: NF4 QLoRA of the 31B on one GPU, on photos of pets",
        "gpu1.yaml",
        {**QLORA, "task": "pets", "model_id": "google/gemma-4-31B-it"},
        gpu="RTX PRO 6000",
        min_gpus=1,
        max_gpus=1,
        assumes=assumed(1, "RTX PRO 6000"),
    ),
    Profile(
        "multi-gpu",
        "several GPUs: bf16 LoRA sharded with FSDP2, the model by memory",
        "fsdp2.yaml",
        {"per_device_train_batch_size": 2, **LONG_STEPS},
        min_gpus=2,
        sized=True,
        assumes=assumed(8, "H100"),
    ),
    Profile(
        "gpu",
        "one GPU: bf16 LoRA or NF4 QLoRA, the model by memory",
        "gpu1.yaml",
        {"per_device_train_batch_size": 1},
        min_gpus=1,
        max_gpus=1,
        sized=True,
        assumes=assumed(1, "L4"),
    ),
    Profile(
        "cpu",
        "no GPU: the embedded toy model, or a small model of yours",
        "cpu.yaml",
        {
            **LORA,
            "model_id": EMBEDDED,
            "dataset": EMBEDDED,
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 16,
            "eval_size": 20,
            "eval_batch_size": 4,
            "logging_steps": 1,
        },
        max_gpus=0,
    ),
)
BY_NAME: Mapping[str, Profile] = {profile.name: profile for profile in PROFILES}


@dataclass(frozen=True)
class Match:
    """The row for a machine, the GPUs that it uses, and why."""

    profile: Profile
    gpus: tuple[Gpu, ...]
    reason: str


def match(machine: Machine) -> Match:
    """The first row that fits the machine's GPUs; of mixed GPUs, the kind with most memory together is used."""
    gpus, left_out = alike(machine.gpus)
    if not gpus:
        return Match(BY_NAME["cpu"], (), f"no GPU to use: {machine.note}" if machine.note else "no GPU to use")
    missed = ""
    for profile in PROFILES:
        if not _has_words(gpus[0].name, profile.gpu) or (profile.gpu and gpus[0].mig):
            continue  # a slice of a GPU is none
        if profile.min_gpus <= len(gpus) and (profile.max_gpus is None or len(gpus) <= profile.max_gpus):
            found = f"assumed {count(gpus)}" if machine.note == ASSUMED else f"found {count(gpus)}"
            note = "" if machine.note == ASSUMED else machine.note
            reason = "; ".join(part for part in (found, missed, left_out, note) if part)
            return Match(profile, gpus, reason)
        if profile.gpu:
            missed = f"profile {profile.name} expects {profile.min_gpus} of them, so a general one runs instead"
    raise AssertionError("the general rows match any GPU")


def alike(gpus: tuple[Gpu, ...]) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs of one kind with most memory together, and a note on those left out."""
    kinds: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        kinds.setdefault(gpu.name, []).append(gpu)
    if not kinds:
        return (), ""
    chosen = max(kinds.values(), key=lambda kind: sum(gpu.memory_gib or 0.0 for gpu in kind))
    others = [count(tuple(kind)) for kind in kinds.values() if kind is not chosen]
    note = f"GPUs differ: {', '.join(others)} left out" if others else ""
    return tuple(chosen), note


@dataclass(frozen=True)
class Setup:
    """A profile, worked out for its GPUs and the model: settings, accel config, the GPUs that get a process each."""

    settings: Mapping[str, Any]
    accel_config: str
    gpus: tuple[Gpu, ...]
    note: str = ""


def set_up(
    matched: Match,
    given: Mapping[str, Any],
    task: Mapping[str, Any],
    images: bool = False,
    config: Mapping[str, Any] | None = None,
) -> Setup:
    """Work out a profile. `given` is what the user chose, `task` what its task wants, by setting; `config` the shape
    of the user's model, where it is known."""
    profile = matched.profile
    gpus = matched.gpus[: profile.max_gpus] if profile.max_gpus is not None else matched.gpus
    if not profile.sized:
        return Setup(profile.settings, profile.accel_config, gpus)
    if given.get("model_id") == EMBEDDED:
        return Setup({**LORA, **profile.settings}, profile.accel_config, gpus)
    by_kind: Mapping[str, Mapping[str, Any]] = {
        "none": {**LORA, **profile.settings},
        "nf4": {**QLORA, "lora_targets": "text"},
    }
    chosen = fit(gpus, lambda kind: {**DEFAULTS, **by_kind[kind], **task, **given}, images, given, config)
    settings = {**by_kind[chosen.quantization], "model_id": chosen.model_id}
    settings |= {"per_device_train_batch_size": chosen.rows, "eval_batch_size": chosen.answers}
    if chosen.lora_r:
        settings["lora_alpha"] = settings["lora_alpha"] * chosen.lora_r // settings["lora_r"]
        settings["lora_r"] = chosen.lora_r
    if chosen.quantization == "none":
        settings["gradient_accumulation_steps"] = max(1, round(ROWS_PER_STEP / (chosen.rows * chosen.gpus)))
    return Setup(settings, profile.accel_config if chosen.gpus > 1 else "gpu1.yaml", gpus[: chosen.gpus], chosen.note)


def accepts(profile: Profile, gpus: tuple[Gpu, ...]) -> bool:
    """Whether a machine with these GPUs (of one kind) can run the profile: one-GPU rows take the first of several."""
    return len(gpus) >= profile.min_gpus and (not profile.gpu or (bool(gpus) and _has_words(gpus[0].name, profile.gpu)))


def count(gpus: tuple[Gpu, ...]) -> str:
    """`8 x NVIDIA B200`, or `no GPU`."""
    return f"{len(gpus)} x {gpus[0].name}" if gpus else "no GPU"


def _has_words(name: str, words: str) -> bool:
    """Whether `words` stand in `name` as whole words: B200 is not in `NVIDIA GB200`. No words stand in any name."""
    return not words or re.search(rf"(?<!\w){re.escape(words)}(?!\w)", name) is not None
