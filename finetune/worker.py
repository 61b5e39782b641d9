"""One rank of a run, top to bottom: load -> measure -> train -> save -> measure -> report.

Started by launch.py as `accelerate launch ... -m finetune.worker PLAN.json`. Everything was decided in the plan.
"""

import gc
import json
import os
import platform
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object

from finetune import checkpoint, data, evaluate, export, model, report, report_html, report_images, report_text, train
from finetune.errors import FinetuneError, LaunchError
from finetune.pictures import as_seen
from finetune.plan import Plan
from finetune.reader import Reader, load_reader
from finetune.tasks import TASKS
from finetune.tasks.base import Example, Score, Task

LEFT_BY_A_RUN = ("adapter", "checkpoints", "logs", "merged", "metrics.json", "report.html", "run.json", "thumbnails")
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes", "evaluate")


class Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.started = datetime.now(UTC)
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, doing: str) -> Iterator[None]:
        """Time a stage, and say what is being done."""
        say(f"> {doing}")
        since = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - since, 2)


def say(text: str) -> None:
    """A line to the user, once, whatever the number of ranks."""
    if PartialState().is_main_process:
        print(text, file=sys.stderr, flush=True)


def main(plan_path: str) -> int:
    """Do what the plan says. Returns the exit code."""
    # TRL and PEFT call what transformers 6 will drop; nothing a user could do about it.
    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
    try:
        plan = Plan.from_json(Path(plan_path).read_text())
        join(plan)
        {"run": run, "evaluate": evaluate_only, "merge": merge_only}[plan.command](plan)
    except FinetuneError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    finally:
        PartialState().destroy_process_group()
    return 0


def join(plan: Plan) -> None:
    """Join the group of all ranks. Raises LaunchError unless it is the one that the plan says."""
    state = PartialState(cpu=plan.launch.use_cpu)
    met = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    if not state.num_processes == met == plan.launch.num_processes:
        raise LaunchError(
            f"the plan has {plan.launch.num_processes} processes, and {met} of them form one group",
            "start the run through entrypoint.py, or accelerate launch with the plan's own config file",
        )
    if plan.launch.num_nodes > 1:
        told = [{**asdict(plan.settings), "output_dir": ""}]
        differ = sorted({name for other in gather_object(told) for name in other if other[name] != told[0][name]})
        if differ:
            raise LaunchError(
                f"the nodes were told different things: {', '.join(differ)}",
                "give every node the same flags, environment and files",
            )


def run(plan: Plan) -> None:
    """The whole job of one rank."""
    clock, task, run_dir = Clock(), TASKS[plan.settings.task], plan.run_dir
    with clock.stage("load", f"loading {plan.settings.model_id} and {plan.settings.dataset}"):
        inputs = load_reader(plan.settings, task.IMAGES, plan.launch.bf16)
        prepared = prepare(plan, task, inputs)
        base = model.load_base(plan, PartialState().device)
    if PartialState().is_main_process:
        clear(run_dir)
    before = after = None
    if prepared.prompts:
        with clock.stage("before", f"measuring the base model on {len(prepared.prompts)} held-out rows"):
            before = measure(plan, task, base, inputs, prepared, "before")

    trainer, progress = train.build(plan, model.add_lora(base, plan.settings), inputs, prepared)
    described = model.describe(trainer.model)  # as it will be trained: the trainer may have changed dtypes
    modules = f"{described.adapted_modules} modules"
    say(f"  {described.trainable:,} of {described.parameters:,} parameters train, in {modules}")
    with clock.stage("train", f"training on {len(prepared.train)} rows"):
        trainer.train()
    with clock.stage("save", f"saving the adapter to {run_dir / 'adapter'}"):
        checkpoint.save_adapter(trainer.model, run_dir / "adapter", inputs)
        if task.STRATIFIED and PartialState().is_main_process:
            report.write_json(run_dir / "adapter" / report.CLASSES, prepared.survey)
    if prepared.prompts:
        with clock.stage("after", f"measuring the tuned model on the same {len(prepared.prompts)} rows"):
            after = measure(plan, task, trainer.model, inputs, prepared, "after")

    if PartialState().is_main_process:
        training = train.record(trainer, progress, clock.seconds["train"])
        report.write_json(run_dir / "metrics.json", report.metrics_record(task.NAME, "test", before, after))
        report.write_run(run_dir, record(plan, clock, prepared, described, training))
        report_text.write_card(run_dir)
        illustrate(run_dir, prepared.test)
        report_html.write_html(run_dir)
    del base, trainer
    leave()
    if PartialState().is_main_process:
        export.deliver(plan, run_dir, say)
        say(report_text.markdown_summary(run_dir))


def leave() -> None:
    """Leave the group of ranks, and give back the model's memory: what comes is one process's work, and may be long."""
    PartialState().destroy_process_group()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def evaluate_only(plan: Plan) -> None:
    """Score a model, with or without an adapter, on one split."""
    clock, task, run_dir = Clock(), TASKS[plan.settings.task], plan.run_dir
    run_dir.mkdir(parents=True, exist_ok=True)
    with clock.stage("load", f"loading {plan.settings.model_id} and {plan.settings.dataset}"):
        inputs = load_reader(plan.settings, task.IMAGES, plan.launch.bf16)
        prepared = prepare(plan, task, inputs)
        net = model.load_base(plan, PartialState().device)
        if plan.adapter_path:
            net = model.load_adapter(net, plan.adapter_path)
    name = "after" if plan.adapter_path else "before"
    with clock.stage(name, f"measuring on {len(prepared.prompts)} {plan.split} rows"):
        score = measure(plan, task, net, inputs, prepared, name)
    if PartialState().is_main_process:
        before, after = (None, score) if plan.adapter_path else (score, None)
        report.write_json(run_dir / "metrics.json", report.metrics_record(task.NAME, plan.split, before, after))
        report.write_run(run_dir, record(plan, clock, prepared, model.describe(net), None))
        illustrate(run_dir, prepared.test)
        report_html.write_html(run_dir)
        say(report_text.markdown_summary(run_dir))


def merge_only(plan: Plan) -> None:
    """Make one model of an earlier run's base and adapter."""
    export.merge_run(plan, say)


def clear(run_dir: Path) -> None:
    """Remove an earlier run's results: the plan has --overwrite, or there are none. What is not a result stays."""
    for path in (*(run_dir / name for name in LEFT_BY_A_RUN), *run_dir.glob("predictions-*.jsonl")):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def prepare(plan: Plan, task: Task, inputs: Reader) -> data.Prepared:
    """Tokenised data on every rank. One rank a node reads and tokenises; the others load what it wrote."""
    state = PartialState()
    # The ranks of a node share a parent, the launcher; other runs on the machine have another.
    folder = Path(tempfile.gettempdir()) / f"gemma4-finetune-{os.getppid()}"
    if state.is_local_main_process:
        known = classes_of(plan.adapter_path) if plan.adapter_path and task.STRATIFIED else None
        train_rows = plan.command == "run"
        prepared = data.prepare(task, plan.settings, inputs, train=train_rows, split=plan.split, survey=known)
        for note in prepared.record["notes"]:
            say(f"  {note}")
        if state.num_processes > 1:
            data.save(prepared, folder)
    state.wait_for_everyone()
    if not state.is_local_main_process:
        prepared = data.load(folder)
    state.wait_for_everyone()
    if state.is_local_main_process:
        shutil.rmtree(folder, ignore_errors=True)  # the others have it open, which is enough
    return prepared


def classes_of(adapter: str) -> tuple[str, ...] | None:
    """The classes that an adapter was trained to tell apart, in the prompt's order; None where it does not say."""
    path = Path(adapter) / report.CLASSES
    return tuple(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def measure(plan: Plan, task: Task, net: Any, inputs: Reader, prepared: data.Prepared, name: str) -> Score | None:
    """Generate on all ranks; score and write predictions-NAME.jsonl on the main one (None on the others)."""
    completions = evaluate.generate(
        net,
        inputs,
        prepared.prompts,
        batch_size=plan.settings.eval_batch_size,
        max_new_tokens=plan.settings.max_new_tokens,
        label=name,
    )
    if not PartialState().is_main_process:
        return None
    score = task.score(prepared.test, completions)
    path = plan.run_dir / f"predictions-{name}.jsonl"
    report.write_predictions(path, prepared.test, completions, score)
    for metric in score.metrics:
        say(f"  {metric.name}: {metric.value:.1%} of {metric.total}")
    return score


def illustrate(run_dir: Path, examples: Sequence[Example]) -> None:
    """Make the small images of the rows that the report is going to show."""
    shown = set(report_html.shown_rows(report.read_results(run_dir)))
    pictures = {example.row: partial(as_seen, example.images[0]) for example in examples if example.row in shown}
    if pictures:
        report_images.write_thumbnails(run_dir, pictures)


def record(
    plan: Plan, clock: Clock, prepared: data.Prepared, described: model.ModelRecord, training: dict[str, Any] | None
) -> dict[str, Any]:
    """run.json: what ran, on what, how long, with which versions."""
    finished = datetime.now(UTC)
    return {
        "format": 1,
        "command": plan.command,
        "status": "finished",
        "started": clock.started.isoformat(timespec="seconds"),
        "finished": finished.isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "machine": plan.machine,
        "plan": asdict(plan),
        "seed": plan.settings.seed,
        "data": prepared.record,
        "model": asdict(described),
        "seconds": {**clock.seconds, "total": round((finished - clock.started).total_seconds(), 2)},
        "training": training,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
