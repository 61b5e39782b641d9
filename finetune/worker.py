"""One rank of a run, top to bottom: load -> measure -> train -> save -> measure -> report.

Started by launch.py as `accelerate launch ... -m finetune.worker PLAN.json`. Everything was decided in the plan.
What an earlier start of the same run has behind it (journal.py) is not done again.
"""

import gc
import os
import sys
import warnings
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from finetune import checkpoint, export, model, report, report_html, report_text, sources, train
from finetune.errors import FinetuneError, Interrupted, LaunchError
from finetune.journal import Journal, Recalled, Side
from finetune.plan import Plan
from finetune.reader import load_reader
from finetune.run_stages import Clock, illustrate, measure, prepare, record, say
from finetune.sources import Sources
from finetune.stopping import Stop
from finetune.tasks import TASKS
from finetune.workplace import Workplace, open_workplace

LONGEST_WAIT = timedelta(hours=3)
"""Of one rank for the others, while one downloads a model, reads it from a bucket, or looks at 100,000 images."""


def main(plan_path: str) -> int:
    """Do what the plan says. Returns the exit code."""
    # TRL and PEFT call what transformers 6 will drop; nothing a user could do about it.
    warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
    stop = place = None
    try:
        plan = Plan.from_json(Path(plan_path).read_text())
        stop = Stop(plan.settings.grace_seconds or 600)
        stop.listen()
        join(plan)
        place = open_workplace(plan)
        {"run": run, "evaluate": evaluate_only, "merge": merge_only}[plan.command](plan, place, stop)
    except FinetuneError as error:
        if not isinstance(error, Interrupted) or PartialState().is_main_process:  # all ranks stop, and one says so
            print(error, file=sys.stderr, flush=True)
        return error.exit_code
    finally:
        if stop:
            stop.flush()  # from the scratch folder, which goes
            stop.leave()
        if place and PartialState().is_local_main_process:
            place.close()
        PartialState().destroy_process_group()
    return 0


def join(plan: Plan) -> None:
    """Join the group of all ranks. Raises LaunchError unless it is the one that the plan says."""
    state = PartialState(cpu=plan.launch.use_cpu, timeout=LONGEST_WAIT)
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


def run(plan: Plan, place: Workplace, stop: Stop) -> None:
    """The whole job of one rank."""
    (begin,) = broadcast_object_list([plan.start])  # the first node's: the others may not see its files
    if begin == "deliver":
        leave()
        if PartialState().is_main_process:
            place.fetch()
            deliver(plan, place)
        return
    clock, task = Clock(), TASKS[plan.settings.task]
    journal = Journal(plan, place.scratch, say, clock.about)
    stop.flush = journal.finish
    with clock.stage("load", f"loading {plan.settings.model_id} and {plan.settings.dataset}"):
        origin = sources.gather(plan, place.scratch)
        local = here(plan, origin)
        inputs = load_reader(local.settings, task.IMAGES, plan.launch.bf16)
        recalled = journal.recall() if begin == "resume" else Recalled()
        prepared = prepare(local, task, inputs, place.scratch)
        if PartialState().is_main_process:
            journal.check_data(prepared.record["fingerprint"])
        base = model.load_base(plan, PartialState().device, origin)
    if PartialState().is_main_process and not recalled.starts:
        place.clear()
        journal.forget()
    clock.go_on(recalled, prepared)
    before = after = None
    if prepared.prompts:
        with clock.stage("before", f"measuring the base model on {len(prepared.prompts)} held-out rows"):
            before = measure(local, task, base, inputs, prepared, "before", place.run_dir, stop, journal)

    trainer, progress = train.build(plan, model.add_lora(base, plan.settings), inputs, prepared, journal, place.logs)
    described = model.describe(trainer.model)  # as it will be trained: the trainer may have changed dtypes
    modules = f"{described.adapted_modules} modules"
    say(f"  {described.trainable:,} of {described.parameters:,} parameters train, in {modules}")
    since = f", on from {recalled.step}" if recalled.step else ""
    with clock.stage("train", f"training on {len(prepared.train)} rows{since}"), stop.orderly():
        train.train(trainer, recalled, stop, plan)
    with clock.stage("save", f"saving the adapter to {plan.place}/adapter"):
        checkpoint.save_adapter(trainer.model, place.scratch / "adapter", inputs)
        if PartialState().is_main_process:
            if task.STRATIFIED:
                report.write_json(place.scratch / "adapter" / report.CLASSES, prepared.survey)
            checkpoint.place_adapter(place.scratch / "adapter", place.run_dir / "adapter")
            place.publish()
    if prepared.prompts:
        with clock.stage("after", f"measuring the tuned model on the same {len(prepared.prompts)} rows"):
            after = measure(local, task, trainer.model, inputs, prepared, "after", place.run_dir, stop, journal)

    if PartialState().is_main_process:
        journal.wait()
        training = train.record(trainer, progress, clock.seconds["train"])
        report.write_json(place.run_dir / "metrics.json", report.metrics_record(task.NAME, "test", before, after))
        result = record(plan, clock, prepared, described, training)
        report.write_run(place.run_dir, {**result, "delivered": False})
        report_text.write_card(place.run_dir)
        illustrate(place.run_dir, prepared.test)
        report_html.write_html(place.run_dir)
        place.publish()
    del base, trainer
    leave()
    if PartialState().is_main_process:
        deliver(plan, place)


def here(plan: Plan, origin: Sources) -> Plan:
    """The plan with what it reads and writes where this machine has it."""
    given = plan.settings
    model_id = origin.model if given.model_id.startswith("gs://") else given.model_id
    settings = replace(given, model_id=model_id, dataset=origin.dataset or given.dataset)
    return replace(plan, settings=settings, adapter_path=origin.adapter)


def deliver(plan: Plan, place: Workplace) -> None:
    """Hand the results on, and note whether that was done: what could not be is tried again by the next start."""
    delivered = export.deliver(plan, place.run_dir, place.scratch, say)
    report.mark_delivered(place.run_dir, delivered)
    place.publish()
    say(report_text.markdown_summary(place.run_dir, plan.place))


def leave() -> None:
    """Leave the group of ranks, and give back the model's memory: what comes is one process's work, and may be long."""
    PartialState().destroy_process_group()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def evaluate_only(plan: Plan, place: Workplace, stop: Stop) -> None:
    """Score a model, with or without an adapter, on one split."""
    clock, task = Clock(), TASKS[plan.settings.task]
    with clock.stage("load", f"loading {plan.settings.model_id} and {plan.settings.dataset}"):
        origin = sources.gather(plan, place.scratch)
        local = here(plan, origin)
        inputs = load_reader(local.settings, task.IMAGES, plan.launch.bf16)
        prepared = prepare(local, task, inputs, place.scratch)
        net: Any = model.load_base(plan, PartialState().device, origin)
        if local.adapter_path:
            net = model.load_adapter(net, local.adapter_path)
    name: Side = "after" if plan.adapter_path else "before"
    with clock.stage(name, f"measuring on {len(prepared.prompts)} {plan.split} rows"):
        score = measure(local, task, net, inputs, prepared, name, place.run_dir, stop)
    if PartialState().is_main_process:
        before, after = (None, score) if plan.adapter_path else (score, None)
        metrics = report.metrics_record(task.NAME, plan.split, before, after)
        report.write_json(place.run_dir / "metrics.json", metrics)
        report.write_run(place.run_dir, record(plan, clock, prepared, model.describe(net), None))
        illustrate(place.run_dir, prepared.test)
        report_html.write_html(place.run_dir)
        place.publish()
        say(report_text.markdown_summary(place.run_dir, plan.place))


def merge_only(plan: Plan, place: Workplace, stop: Stop) -> None:
    """Make one model of an earlier run's base and adapter."""
    place.fetch()
    export.merge_run(plan, place.run_dir, place.scratch, say)
    place.publish()


def start(plan_path: str) -> NoReturn:
    """Do what the plan says, and end the process there. At the interpreter's own end, threads of torch that are still
    at work abort it now and then, and the exit code would be that of a crash."""
    code = main(plan_path)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    start(sys.argv[1])
