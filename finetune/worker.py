"""One rank of a run, top to bottom: load -> measure -> train -> save -> measure -> report.

Started by launch.py as `accelerate launch ... -m finetune.worker PLAN.json`. Everything was decided in the plan.
"""

import os
import platform
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from finetune import checkpoint, data, evaluate, export, model, report, report_html, report_text, train
from finetune.errors import FinetuneError, LaunchError
from finetune.plan import Plan
from finetune.tasks import TASKS
from finetune.tasks.base import Score, Task

LEFT_BY_A_RUN = ("adapter", "checkpoints", "logs", "merged", "metrics.json", "report.html", "run.json")
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
        evaluate_only(plan) if plan.command == "evaluate" else run(plan)
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


def run(plan: Plan) -> None:
    """The whole job of one rank."""
    clock, task, run_dir = Clock(), TASKS[plan.settings.task], plan.run_dir
    with clock.stage("load", f"loading {plan.settings.model_id} and {plan.settings.dataset}"):
        tokenizer = model.load_tokenizer(plan.settings)
        prepared = prepare(plan, task, tokenizer)
        base = model.load_base(plan, PartialState().device)
    if PartialState().is_main_process:
        clear(run_dir)
    before = after = None
    if prepared.prompts:
        with clock.stage("before", f"measuring the base model on {len(prepared.prompts)} held-out rows"):
            before = measure(plan, task, base, tokenizer, prepared, "before")

    net = model.add_lora(base, plan.settings)
    described = model.describe(net)
    modules = f"{described.adapted_modules} modules"
    say(f"  {described.trainable:,} of {described.parameters:,} parameters train, in {modules}")
    with clock.stage("train", f"training on {len(prepared.train)} rows"):
        trainer, progress = train.build(plan, net, tokenizer, prepared.train)
        trainer.train()
    with clock.stage("save", f"saving the adapter to {run_dir / 'adapter'}"):
        checkpoint.save_adapter(trainer.model, run_dir / "adapter", tokenizer)
    if prepared.prompts:
        with clock.stage("after", f"measuring the tuned model on the same {len(prepared.prompts)} rows"):
            after = measure(plan, task, trainer.model, tokenizer, prepared, "after")

    if PartialState().is_main_process:
        training = train.record(trainer, progress, clock.seconds["train"])
        report.write_json(run_dir / "metrics.json", report.metrics_record(task.NAME, "test", before, after))
        report.write_run(run_dir, record(plan, clock, prepared, described, training))
        report_text.write_card(run_dir)
        report_html.write_html(run_dir)
        export.deliver(plan, run_dir, say)
        say(report_text.markdown_summary(run_dir))


def evaluate_only(plan: Plan) -> None:
    """Score a model, with or without an adapter, on one split."""
    clock, task, run_dir = Clock(), TASKS[plan.settings.task], plan.run_dir
    run_dir.mkdir(parents=True, exist_ok=True)
    with clock.stage("load", f"loading {plan.settings.model_id} and {plan.settings.dataset}"):
        tokenizer = model.load_tokenizer(plan.settings)
        prepared = prepare(plan, task, tokenizer)
        net = model.load_base(plan, PartialState().device)
        if plan.adapter_path:
            net = model.load_adapter(net, plan.adapter_path)
    name = "after" if plan.adapter_path else "before"
    with clock.stage(name, f"measuring on {len(prepared.prompts)} {plan.split} rows"):
        score = measure(plan, task, net, tokenizer, prepared, name)
    if PartialState().is_main_process:
        before, after = (None, score) if plan.adapter_path else (score, None)
        report.write_json(run_dir / "metrics.json", report.metrics_record(task.NAME, plan.split, before, after))
        report.write_run(run_dir, record(plan, clock, prepared, model.describe(net), None))
        report_html.write_html(run_dir)
        say(report_text.markdown_summary(run_dir))


def clear(run_dir: Path) -> None:
    """Remove an earlier run's results: the plan has --overwrite, or there are none. What is not a result stays."""
    for path in (*(run_dir / name for name in LEFT_BY_A_RUN), *run_dir.glob("predictions-*.jsonl")):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def prepare(plan: Plan, task: Task, tokenizer: Any) -> data.Prepared:
    """Tokenised data on every rank. One rank a node reads and tokenises; the others load what it wrote."""
    state = PartialState()
    # The ranks of a node share a parent, the launcher; other runs on the machine have another.
    folder = Path(tempfile.gettempdir()) / f"gemma4-finetune-{os.getppid()}"
    if state.is_local_main_process:
        prepared = data.prepare(task, plan.settings, tokenizer, train=plan.command == "run", split=plan.split)
        for note in prepared.record["notes"]:
            say(f"  {note}")
        if state.num_processes > 1:
            data.save(prepared, folder)
    state.wait_for_everyone()
    if not state.is_local_main_process:
        rows, prompts = data.load(folder)
        prepared = data.Prepared(rows, prompts, [], {})
    state.wait_for_everyone()
    if state.is_local_main_process:
        shutil.rmtree(folder, ignore_errors=True)  # the others have it open, which is enough
    return prepared


def measure(plan: Plan, task: Task, net: Any, tokenizer: Any, prepared: data.Prepared, name: str) -> Score | None:
    """Generate on all ranks; score and write predictions-NAME.jsonl on the main one (None on the others)."""
    completions = evaluate.generate(
        net,
        tokenizer,
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
