"""A run in words: the lines on the terminal at its end, and the model card in adapter/README.md."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape

from finetune.data_report import bars
from finetune.embedded import EMBEDDED
from finetune.forecast import spoken
from finetune.report import SIDES, Results, read_results, write_text
from finetune.report_numbers import (
    NO_VALUE,
    amount,
    change,
    day,
    duration,
    label,
    machine,
    percent,
    signed,
    span,
    value,
)
from finetune.tasks import TASKS
from finetune.tasks.base import Example, Task

HYPER_PARAMETERS = (
    "quantization",
    "lora_r",
    "lora_alpha",
    "lora_dropout",
    "lora_targets",
    "max_length",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_ratio",
    "weight_decay",
    "max_grad_norm",
    "batching",
    "seed",
)
"""The settings that made the adapter what it is, for the card."""
PLANNED_AS = {"load": "loading", "before": "measuring", "train": "training", "after": "measuring"}
"""A run's stages, as the plan calls them."""
WEAKEST = 5


@dataclass(frozen=True)
class Measure:
    """One side of a metric, with its 95 % interval, and the examples or tokens they are over. Without a unit: shares
    from 0 to 1."""

    value: float
    low: float
    high: float
    total: int
    unit: str = ""


@dataclass(frozen=True)
class Comparison:
    """One metric, before and after. None = not measured."""

    name: str
    before: Measure | None
    after: Measure | None

    @property
    def unit(self) -> str:
        side = self.after or self.before
        return side.unit if side else ""

    @property
    def points(self) -> float | None:
        """Change of a share in percentage points, of another number in its unit."""
        factor = 1 if self.unit else 100
        return (self.after.value - self.before.value) * factor if self.before and self.after else None

    @property
    def change(self) -> str:
        """The same as text: +68.3 points, −0.812."""
        if self.points is None or not self.unit:
            return change(self.points)
        return signed(round(self.points, 3))


def compare(metrics: Mapping[str, Any]) -> list[Comparison]:
    """metrics.json -> its metrics, the task's headline first."""
    sides = [metrics[side] or {} for side in SIDES]
    names = list(dict.fromkeys(name for side in sides for name in side))
    return [Comparison(name, *(Measure(**side[name]) if name in side else None for side in sides)) for name in names]


def markdown_summary(run_dir: Path, place: str) -> str:
    """What a run came to: before and after, seconds a stage, and where everything is: below `place`, which a user
    knows `run_dir` by."""
    results = read_results(run_dir)
    places = (("report", "report.html"), ("metrics", "metrics.json"), ("adapter", "adapter"))
    parts = [
        metrics_table(results.metrics),
        weakest_classes(results.metrics),
        " · ".join(f"{stage} {duration(seconds)}" for stage, seconds in results.run["seconds"].items()),
        planned_time(results.run.get("time") or {}),
        memory(results.run.get("memory") or {}),
        "\n".join(f"{name:<8} {place}/{file}" for name, file in places if (run_dir / file).exists()),
    ]
    return "\n\n".join(part for part in parts if part)


def memory(record: Mapping[str, Any]) -> str:
    """The most of a GPU that each stage used, and what the plan said; "" without a GPU."""
    planned = (record.get("planned") or {}).get("stages_gib", {})
    parts = []
    for name, used in record.get("measured_gib", {}).items():
        wanted = sum(planned.get(PLANNED_AS.get(name, name), {}).values())
        parts.append(f"{name} {used:.1f} GiB" + (f" of {wanted:.1f} planned" if wanted else ""))
    return f"GPU memory: {', '.join(parts)}" if parts else ""


def planned_time(record: Mapping[str, Any]) -> str:
    """How long it took against the plan, and what that cost; "" where nothing was planned."""
    planned, measured = record.get("planned"), record.get("measured")
    if not planned or not measured:
        return ""
    took = f"took {duration(measured['seconds']['total'])}, planned {spoken(planned['seconds']['total'])}"
    used = f"; MFU {measured['mfu']:.1%}" if measured["mfu"] is not None else ""
    cost = (
        f"; ${measured['dollars']:,.2f}, planned ${planned['dollars']:,.2f}" if measured["dollars"] is not None else ""
    )
    return f"{took}{used}{cost}"


def metrics_table(metrics: Mapping[str, Any]) -> str:
    """metrics.json as a Markdown table, aligned so that it also reads well as it is, and what it is over."""
    comparisons = compare(metrics)
    if not comparisons:
        return "Not measured."
    lines = [("metric", "before", "after", "change")]
    lines += [(label(item.name), measure(item.before), measure(item.after), item.change) for item in comparisons]
    first, *others = (max(len(line[column]) for line in lines) for column in range(4))
    table = ["| " + " | ".join([line[0].ljust(first), *map(str.rjust, line[1:], others)]) + " |" for line in lines]
    rule = "| " + " | ".join(["-" * first, *("-" * (width - 1) + ":" for width in others)]) + " |"
    units = "".join(f" {label(item.name)} is in {item.unit}: less is better." for item in comparisons if item.unit)
    note = f"Over {over(metrics)}. In brackets: 95 % intervals (Wilson).{units}"
    return "\n".join([table[0], rule, *table[1:], "", note])


def weakest_classes(metrics: Mapping[str, Any]) -> str:
    """The few classes told least well at the last measurement, "" where there are no classes or all are perfect."""
    sides = metrics.get("per_class", {})
    last = sides.get("after") or sides.get("before") or []
    weak = sorted((one for one in last if one["f1"] is not None and one["f1"] < 1), key=lambda one: float(one["f1"]))
    shown = ", ".join(f"{one['class']} {percent(one['f1'])}" for one in weak[:WEAKEST])
    return f"Weakest of {len(last)} classes (F1): {shown}" if weak else ""


def over(metrics: Mapping[str, Any]) -> str:
    """What the numbers are over: 200 rows of the test split, 8 of them unscorable."""
    counts = [side.get(metrics["unscorable"], 0) for side in metrics["verdicts"].values() if side]
    left_out = f", {max(counts):,} of them unscorable" if any(counts) else ""
    return f"{metrics['rows']:,} rows of the {metrics['split']} split{left_out}"


def write_card(run_dir: Path) -> None:
    """Write adapter/README.md, a Hugging Face model card, from the files in `run_dir`."""
    write_text(run_dir / "adapter" / "README.md", card(read_results(run_dir)))


def card(results: Results) -> str:
    """The model card of a run's adapter. No row of the data set is in it: a card may be published."""
    run, settings = results.run, results.run["plan"]["settings"]
    task, base, dataset = TASKS[settings["task"]], settings["model_id"], run["data"]["source"]
    is_toy = base == EMBEDDED
    front_matter = {
        # The hub refuses a card that names a folder as its base model, and a folder's path is private.
        "base_model": base if is_hub_id(base) else None,
        "base_model_relation": "adapter" if is_hub_id(base) else None,
        "library_name": "peft",
        "pipeline_tag": "image-text-to-text" if task.IMAGES else "text-generation",
        "datasets": [dataset] if is_hub_id(dataset) else None,
        "tags": ["gemma4", "lora", "transformers", task.NAME],
    }
    known = {key: entry for key, entry in front_matter.items() if entry is not None}
    return template("card.md.j2").render(
        front_matter=yaml.safe_dump(known, sort_keys=False, allow_unicode=True).strip(),
        task=task,
        is_toy=is_toy,
        base_text=f"`{base}`" if is_toy or is_hub_id(base) else "a Gemma 4 kept in a folder",
        base_code="str(base_dir())" if is_toy else json.dumps(base if is_hub_id(base) else "path/to/the/base/model"),
        dataset_text=f"`{dataset}`" if dataset == EMBEDDED or is_hub_id(dataset) else "local files",
        metrics=metrics_table(results.metrics),
        measured=bool(compare(results.metrics)),
        trained_text=_trained_text(run),
        settings=[(label(name), value(settings[name])) for name in HYPER_PARAMETERS if settings[name] is not None],
        processes=run["plan"]["launch"]["num_processes"],
        reader="AutoProcessor" if task.IMAGES else "AutoTokenizer",
        messages=_messages(task, results.classes),
        max_new_tokens=settings["max_new_tokens"],
        versions=", ".join(f"{name} {number}" for name, number in run["versions"].items()),
    )


def _trained_text(run: Mapping[str, Any]) -> str:
    """What the training consisted of, in two or three sentences."""
    training, model = run["training"], run["model"]
    epochs = f"{training['epochs']:.3g}"
    return (
        f"{value(run['data']['train']['used'])} rows, {value(training['steps'])} optimizer steps"
        f" ({epochs} {'epoch' if epochs == '1' else 'epochs'}), {value(training['tokens'])} tokens,"
        f" {duration(run['seconds']['train'])} on {machine(run['machine'])}."
        f" {value(model['trainable'])} of {value(model['parameters'])} parameters were trained,"
        " with the loss on the answers alone."
    )


def _messages(task: Task, classes: tuple[str, ...]) -> str:
    """The task's prompt as Python code, its columns' names in place of their values: exactly the form trained on."""
    row = dict(task.PLACEHOLDERS)
    if task.STRATIFIED:
        classes = classes or ("[the classes, one a line]",)
        row["label"] = classes[0]
    example = task.to_example(row, 0, classes)
    assert isinstance(example, Example), "every task takes rows of text"
    messages: list[dict[str, Any]] = [asdict(message) for message in example.prompt]
    if task.IMAGES:
        text = {"type": "text", "text": messages[-1]["content"]}
        messages[-1]["content"] = [{"type": "image", "image": "IMAGE"}, text]
    return json.dumps(messages, indent=4, ensure_ascii=False).replace('"IMAGE"', "image")


def is_hub_id(name: str | None) -> bool:
    """Is this `owner/name` on the hub, and not a folder on this machine?"""
    return bool(name and re.fullmatch(r"[\w.-]+/[\w.-]+", name)) and not Path(name or "").exists()


@cache
def template(name: str) -> Template:
    """A template of templates/. In those named *.html.j2 every value is escaped."""
    environment = Environment(
        loader=PackageLoader("finetune"),
        autoescape=select_autoescape(enabled_extensions=("html.j2",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        percent=percent,
        amount=amount,
        bars=bars,
        span=span,
        change=change,
        duration=duration,
        label=label,
        value=value,
        day=day,
        signed=signed,
    )
    return environment.get_template(name)


def measure(side: Measure | None) -> str:
    """71.4 % (64.6–77.3)."""
    return f"{amount(side.value, side.unit)} ({span(side.low, side.high, side.unit)})" if side else NO_VALUE
