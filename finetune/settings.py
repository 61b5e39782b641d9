"""Every setting of a run: one frozen dataclass, one field a setting. The single table behind the
command line, the environment (FINETUNE_<FIELD>), --config files, plan.json and the README's table.

Defaults here are the last resort: a profile (hardware) and a task override them, and a user
overrides all of those (plan.py). `None` means that the value is worked out in plan.resolve.
"""

from dataclasses import dataclass, field, fields
from math import isfinite
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints

Group = Literal["job", "data", "adapter", "training", "evaluation", "checkpoints", "results"]
GROUPS: dict[Group, str] = {
    "job": "Job",
    "data": "Data",
    "adapter": "Model and adapter",
    "training": "Training",
    "evaluation": "Evaluation",
    "checkpoints": "Checkpoints",
    "results": "Results",
}


@dataclass(frozen=True)
class Option:
    """How a setting is said and checked.

    `aliases` are further flag names, without dashes and with hyphens (underscores work too): the
    names under which published recipes know the setting. `minimum` and `maximum` are inclusive.
    """

    group: Group
    help: str
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    """Exclusive lower bound."""


@dataclass(frozen=True)
class Trouble:
    """Something wrong with the value of a setting: what was found and expected, and what to write."""

    setting: str
    message: str
    hint: str = ""


def option(
    default: Any,
    group: Group,
    text: str,
    *aliases: str,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
) -> Any:
    """A dataclass field that carries its Option."""
    return field(default=default, metadata={"option": Option(group, text, aliases, choices, minimum, maximum, above)})


@dataclass(frozen=True)
class Settings:
    """A run's settings, resolved. Types: str, int, float, bool, or one of these | None."""

    task: str = option("text-to-sql", "job", "What to teach")
    model_id: str = option("embedded", "job", "Base model: folder, gs://, hub id, or 'embedded' (a toy)", "model")
    output_dir: str = option("out", "job", "Run directory: everything the run leaves (a folder, or gs://)")
    overwrite: bool = option(False, "job", "Replace the results that an earlier run left in --output-dir")
    device: str = option("auto", "job", "Where to run", choices=("auto", "cuda", "cpu"))
    price_per_hour: float | None = option(
        None, "job", "Dollars that a machine costs an hour (default: the list price, where it is known)", minimum=0
    )
    seed: int = option(42, "job", "Seed of the split, the data order and the adapter", minimum=0)

    dataset: str | None = option(
        None, "data", "Folder, .jsonl/.json/.csv/.parquet file, gs://, hub id, or 'embedded'", "dataset-name"
    )
    image_column: str | None = option(None, "data", "Column of the images (default: image, or file_name)")
    label_column: str | None = option(None, "data", "Column of the classes (default: label)")
    train_size: int | None = option(None, "data", "Rows to train on (default: the task's)", minimum=1)
    max_length: int = option(1024, "data", "Longest row in tokens; longer rows are dropped and counted", minimum=16)

    quantization: str = option("none", "adapter", "Base weights: bf16, or NF4 (QLoRA)", choices=("none", "nf4"))
    lora_r: int = option(16, "adapter", "LoRA rank", minimum=1)
    lora_alpha: int = option(32, "adapter", "LoRA alpha; the update is scaled by alpha / rank", minimum=1)
    lora_dropout: float = option(0.05, "adapter", "Dropout before the LoRA layers", minimum=0, maximum=0.9)
    lora_targets: str = option(
        "text",
        "adapter",
        "Modules to adapt: the text projections, or every linear layer",
        choices=("text", "all-linear"),
    )
    attn_implementation: str = option(
        "sdpa", "adapter", "Attention kernel", choices=("sdpa", "eager", "flash_attention_2")
    )
    trust_remote: bool = option(False, "adapter", "Run code from the model's repository", "trust-remote-code")
    use_fast: bool = option(True, "adapter", "Fast tokenizer (transformers 5 has no other)")

    num_train_epochs: float = option(3.0, "training", "Passes over the training rows", "num-epochs", "epochs", above=0)
    max_steps: int | None = option(None, "training", "Stop after so many optimizer steps", minimum=1)
    per_device_train_batch_size: int = option(1, "training", "Rows per GPU in a micro-batch", "batch-size", minimum=1)
    gradient_accumulation_steps: int = option(1, "training", "Micro-batches per optimizer step", minimum=1)
    learning_rate: float = option(1e-5, "training", "Peak learning rate", above=0, maximum=1)
    lr_scheduler_type: str = option(
        "constant", "training", "Learning rate after warm-up", choices=("constant", "linear", "cosine")
    )
    warmup_ratio: float = option(0.03, "training", "Share of the steps spent warming up", minimum=0, maximum=1)
    weight_decay: float = option(0.0, "training", "AdamW weight decay", minimum=0, maximum=1)
    max_grad_norm: float = option(0.3, "training", "Gradient norm is clipped to this", above=0)
    batching: str = option(
        "length-grouped",
        "training",
        "Rows of like length together, or plainly shuffled",
        choices=("length-grouped", "shuffled"),
    )
    activation_checkpointing: bool = option(True, "training", "Recompute activations: less memory, more time")
    logging_steps: int = option(10, "training", "A line of progress every so many steps", minimum=1)

    eval_size: int = option(200, "evaluation", "Rows to measure on before and after; 0 skips both", minimum=0)
    eval_batch_size: int = option(8, "evaluation", "Rows per GPU in a generation batch", minimum=1)
    max_new_tokens: int = option(256, "evaluation", "Longest answer in tokens", minimum=1)

    save_strategy: str = option(
        "steps", "checkpoints", "When to save", "checkpoint-strategy", choices=("no", "steps", "epoch")
    )
    save_steps: int = option(100, "checkpoints", "Steps between checkpoints", minimum=1)
    save_minutes: float = option(10.0, "checkpoints", "Minutes between checkpoints, at most", above=0)
    save_total_limit: int = option(2, "checkpoints", "Checkpoints to keep", minimum=1)
    resume_from: str | None = option(
        None, "checkpoints", "Run or checkpoint to go on from, where --output-dir has none of its own"
    )
    resume_anyway: bool = option(False, "checkpoints", "Go on from a checkpoint that was made with other settings")
    restart: bool = option(False, "checkpoints", "Begin anew, whatever --output-dir holds")
    grace_seconds: int | None = option(
        None,
        "checkpoints",
        "From SIGTERM to the end: time to finish a step and save (default: 10 on Cloud Run, else 600)",
        minimum=1,
    )

    results_file: str | None = option(None, "results", "Also write metrics.json here (a file, or gs://)")
    merge: bool = option(False, "results", "Also save base + adapter as one model")
    push_to_hub: bool = option(False, "results", "Upload the adapter to the hub when done")
    hub_repo: str | None = option(
        None, "results", "Hub repository to push to (default: named after the run)", "hub-model-id"
    )
    hub_private_repo: bool = option(True, "results", "Make that repository private")
    gcs_output_path: str | None = option(None, "results", "Copy the run directory to this gs:// path when done")


OPTIONS: dict[str, Option] = {item.name: item.metadata["option"] for item in fields(Settings)}
DEFAULTS: dict[str, Any] = {item.name: item.default for item in fields(Settings)}
FLAGS: dict[str, str] = {
    spelling: name for name, item in OPTIONS.items() for spelling in (name.replace("_", "-"), *item.aliases)
}
"""Flag name without its dashes, with hyphens -> field name."""

_KINDS: dict[str, type] = {
    name: next(kind for kind in (get_args(hint) or (hint,)) if kind is not NoneType)
    for name, hint in get_type_hints(Settings).items()
}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def flag(name: str) -> str:
    """A setting's flag: `learning_rate` -> `--learning-rate`."""
    return "--" + name.replace("_", "-")


def kind(name: str) -> type:
    """The type of a setting's value: str, int, float or bool."""
    return _KINDS[name]


def expected(name: str) -> str:
    """What may be written for a setting: `a number, above 0, at most 1`."""
    option = OPTIONS[name]
    what = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind(name)]
    if option.choices:
        return ", ".join(option.choices[:-1]) + f" or {option.choices[-1]}"
    bounds = (("above", option.above), ("at least", option.minimum), ("at most", option.maximum))
    return ", ".join([what, *(f"{word} {bound:g}" for word, bound in bounds if bound is not None)])


def parse(name: str, text: str) -> Any:
    """Read a setting's value as a user writes it. Raises ValueError saying what was expected."""
    option, text = OPTIONS[name], text.strip()
    value: Any = text
    if kind(name) is bool:
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(f"{text!r} is not {expected(name)}")
        return text.lower() in _TRUE
    if option.choices and text not in option.choices:
        raise ValueError(f"{text!r} is not known; expected {expected(name)}")
    if kind(name) in (int, float):
        try:
            value = kind(name)(text)
        except ValueError:
            raise ValueError(f"{text!r} is not {expected(name)}") from None
        if not isfinite(value):
            raise ValueError(f"{text!r} is not {expected(name)}")
    low, high, above = option.minimum, option.maximum, option.above
    if (
        (low is not None and value < low)
        or (high is not None and value > high)
        or (above is not None and value <= above)
    ):
        raise ValueError(f"{text} is out of range; expected {expected(name)}")
    return value


def markdown_table() -> str:
    """The README's table of flags, by group."""
    lines = []
    for group, title in GROUPS.items():
        lines += [f"**{title}**", "", "| flag | also | what | default |", "| --- | --- | --- | --- |"]
        for name, option in OPTIONS.items():
            if option.group != group:
                continue
            also = ", ".join(f"`--{alias}`" for alias in option.aliases)
            choices = f" ({', '.join(option.choices)})" if option.choices else ""
            default = "" if DEFAULTS[name] is None else f"`{str(DEFAULTS[name]).lower()}`"
            lines.append(f"| `{flag(name)}` | {also} | {option.help}{choices} | {default} |")
        lines.append("")
    return "\n".join(lines)
