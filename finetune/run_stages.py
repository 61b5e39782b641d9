"""The stages of a run that are neither training nor loading: rows, measuring, and the record of what was done."""

import json
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from finetune import data, data_report, evaluate, forecast, model, report, report_html, report_images, token_loss
from finetune.errors import Interrupted
from finetune.hardware import GIB
from finetune.journal import Answers, Journal, Recalled, Side
from finetune.pictures import as_seen
from finetune.plan import Plan
from finetune.reader import Reader
from finetune.stopping import Stop
from finetune.tasks.base import Example, Score, Task

PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes", "evaluate")


class Clock:
    """Seconds by stage, over all starts of a run, and what else goes with all that is kept."""

    def __init__(self) -> None:
        self.started = datetime.now(UTC)
        self.seconds: dict[str, float] = {}
        self.starts: list[Mapping[str, Any]] = []
        self.fingerprint = ""
        self.memory: dict[str, float] = {}
        """GiB of this process's GPU in use at most, by stage. Of this start alone."""
        self._stage, self._since = "", 0.0

    @contextmanager
    def stage(self, name: str, doing: str) -> Iterator[None]:
        """Time a stage, and say what is being done."""
        say(f"> {doing}")
        self._stage, self._since = name, time.monotonic()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        yield
        self.seconds, self._stage = self._so_far(), ""
        if torch.cuda.is_available():
            self.memory[name] = _used_at_most()

    def go_on(self, recalled: Recalled, prepared: data.Prepared) -> None:
        """Count from where an earlier start left off."""
        for name, seconds in recalled.seconds.items():
            self.seconds[name] = round(self.seconds.get(name, 0.0) + seconds, 2)
        began = {"at": self.started.isoformat(timespec="seconds"), "from": recalled.step}
        self.starts = [*recalled.starts, began]
        self.fingerprint = prepared.record.get("fingerprint", "")

    def about(self) -> Mapping[str, Any]:
        """What is noted with all that is kept."""
        return {"seconds": self._so_far(), "starts": self.starts, "data": self.fingerprint}

    def _so_far(self) -> dict[str, float]:
        if not self._stage:
            return self.seconds
        spent = self.seconds.get(self._stage, 0.0) + time.monotonic() - self._since
        return {**self.seconds, self._stage: round(spent, 2)}


def _used_at_most() -> float:
    """GiB of the GPU since the last reset: what torch had taken, and what is taken besides (CUDA, NCCL, others)."""
    free, there = torch.cuda.mem_get_info()
    besides = there - free - torch.cuda.memory_reserved()
    return round((torch.cuda.max_memory_reserved() + besides) / GIB, 1)


def say(text: str) -> None:
    """A line to the user, once, whatever the number of ranks."""
    if PartialState().is_main_process:
        print(text, file=sys.stderr, flush=True)


def prepare(plan: Plan, task: Task, inputs: Reader, scratch: Path) -> data.Prepared:
    """Tokenised data on every rank. One rank a node reads and tokenises; the others load what it wrote."""
    state, folder = PartialState(), scratch / "rows"
    if state.is_local_main_process:
        known = classes_of(plan.adapter_path) if plan.adapter_path and task.STRATIFIED else None
        train_rows = plan.command == "run"
        prepared = data.prepare(task, plan.settings, inputs, train=train_rows, split=plan.split, survey=known)
        report_lines = data_report.lines(prepared.record["report"]) if prepared.record["report"] else []
        for line in (*prepared.record["notes"], *report_lines):
            say(f"  {line}")
        if state.num_processes > 1:
            data.save(prepared, folder)
    state.wait_for_everyone()
    if not state.is_local_main_process:
        prepared = data.load(folder)
    return prepared


def classes_of(adapter: str) -> tuple[str, ...] | None:
    """The classes that an adapter was trained to tell apart, in the prompt's order; None where it does not say."""
    path = Path(adapter) / report.CLASSES
    return tuple(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def measure(
    plan: Plan,
    task: Task,
    net: Any,
    inputs: Reader,
    prepared: data.Prepared,
    name: Side,
    run_dir: Path,
    stop: Stop,
    journal: Journal | None = None,
) -> Score | None:
    """Generate on all ranks; score and write predictions-NAME.jsonl on the main one (None on the others).

    With a journal it goes on from what was answered before, keeps what is answered, and stops when it is told to.
    """
    kept = journal.recalled.answers.get(name, Answers()) if journal else Answers()
    if kept.texts:
        say(f"  {len(kept.texts)} of them were answered before")
    last = time.monotonic()

    def pause() -> tuple[bool, bool]:
        nonlocal last
        told, due = stop.agreed(time.monotonic() - last > 60 * plan.settings.save_minutes)
        last = time.monotonic() if due else last
        return told, due

    if prepared.held_out and not kept.losses:
        kept = replace(kept, losses=token_loss.measure_losses(net, inputs, prepared.held_out))
    with _interruptible(stop, journal) if journal else nullcontext():
        completions = evaluate.generate(
            net,
            inputs,
            prepared.prompts,
            batch_size=plan.settings.eval_batch_size,
            max_new_tokens=plan.settings.max_new_tokens,
            label=name,
            kept=kept,
            keep=partial(journal.keep_answers, name) if journal else evaluate.keep_nothing,
            pause=pause if journal else evaluate.never,
        )
    if not PartialState().is_main_process:
        return None
    score = task.score(prepared.test, completions)
    if kept.losses:
        score = replace(score, metrics=(token_loss.token_loss(kept.losses), *score.metrics))
    path = run_dir / f"predictions-{name}.jsonl"
    report.write_predictions(path, prepared.test, completions, score)
    for metric in score.metrics:
        shown = f"{metric.value:.4f} {metric.unit}, over" if metric.unit else f"{metric.value:.1%} of"
        say(f"  {metric.name}: {shown} {metric.total:,}")
    return score


@contextmanager
def _interruptible(stop: Stop, journal: Journal) -> Iterator[None]:
    """In the block the run may be told to stop. What it keeps then is durable before it says so."""
    with stop.orderly():
        try:
            yield
        except Interrupted:
            if PartialState().is_main_process:
                journal.wait()
            PartialState().wait_for_everyone()
            raise


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
        "starts": clock.starts,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "machine": plan.machine,
        "plan": asdict(plan),
        "seed": plan.settings.seed,
        "data": prepared.record,
        "model": asdict(described),
        "time": _time_record(plan, clock.seconds, training),
        "memory": {"planned": plan.memory, "measured_gib": clock.memory},
        "seconds": {**clock.seconds, "total": round(sum(clock.seconds.values()), 2)},
        "training": training,
    }


def _time_record(plan: Plan, seconds: Mapping[str, float], training: Mapping[str, Any] | None) -> dict[str, Any]:
    """What was planned, and what came of it: seconds of training, share of the GPUs' peak, money."""
    cost = forecast.dollars(plan.time, sum(seconds.values()))
    return {
        "planned": plan.time,
        "measured": {
            "seconds": {**seconds, "total": round(sum(seconds.values()), 2)},
            "mfu": forecast.mfu(plan.time, training["tokens_per_second"]) if training else None,
            "dollars": None if cost is None else round(cost, 2),
        },
    }
