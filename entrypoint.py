"""Fine-tune Gemma 4 on whatever machine this is: look, plan, say why, run.

    entrypoint.py                                    # run what fits this machine
    entrypoint.py plan                               # only say what would run
    entrypoint.py run --model-id google/gemma-4-31B-it --dataset rows.jsonl --output-dir out
    entrypoint.py evaluate --adapter out/adapter
    entrypoint.py merge --output-dir out              # base + adapter of that run -> out/merged
    entrypoint.py doctor                              # check the machine, the model, the data, the output
    entrypoint.py stage --model-id google/gemma-4-31B-it --to gs://bucket/google/gemma-4-31B-it

Nothing that is imported here loads torch: `--help` and `plan` are instant. The run itself is
finetune/worker.py, in the processes that `run`, `evaluate` and `merge` start, and finetune/stage.py in that of `stage`.
"""

import os
import signal
import sys
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from tempfile import mkdtemp
from types import FrameType

import click

from finetune import __version__, facts, hardware, launch
from finetune.adapter_facts import adapter_base, adapter_settings
from finetune.checks import find_stage_problems
from finetune.cli import COMMANDS, SettingsCommand, flag_option
from finetune.describe import describe
from finetune.errors import FinetuneError, StorageError, UsageError, UsageErrors
from finetune.known_gpus import parse_gpus
from finetune.plan import Plan
from finetune.request import Request
from finetune.resolve import draft, resolve
from finetune.settings import DEFAULTS, markdown_table
from finetune.storage import is_bucket, open_folder

PLAN_FILES = {"run": "plan.json", "evaluate": "plan-evaluate.json", "merge": "plan-merge.json"}
"""Where a command leaves its plan in the run directory. Evaluating or merging a run keeps the run's own plan."""


class DefaultGroup(click.Group):
    """A group whose command is `run` when none is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        if first not in (*self.commands, "--help", "-h", "--version"):
            if first and not first.startswith("-"):
                near = get_close_matches(first, self.commands, 1)
                known = f"the commands are {', '.join(COMMANDS[:-1])} and {COMMANDS[-1]}"
                hint = f"did you mean {near[0]}?" if near else known
                raise UsageError(f"{first}: no such command", hint)
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=DefaultGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="gemma4-finetune %(version)s")
def cli() -> None:
    """Fine-tune Gemma 4 on this machine: look at it, plan, run, measure, report.

    Without a command, `run` is meant. Each setting is also read from the environment
    (FINETUNE_LEARNING_RATE=...) and from --config FILE. A flag wins over the environment, that over
    the file, and all of them over what the task and the machine's profile want.
    """


PLAN_FLAG = flag_option("plan", "Repeat a saved plan.json; further settings change it")
DRY_RUN = flag_option("dry-run", "Only say what would be done, like `plan`", is_flag=True)


@cli.command(cls=SettingsCommand, extra=[PLAN_FLAG, DRY_RUN])
def run(request: Request, hf_token: str | None, dry_run: bool) -> None:
    """Fine-tune: load, measure, train, measure again, save, report."""
    _start(request, hf_token, dry_run)


@cli.command(
    cls=SettingsCommand,
    short_help="Say what `run` would do here, and why; do nothing.",
    extra=[
        PLAN_FLAG,
        flag_option("machine", "Plan for other GPUs than this machine's, such as '8 x H100' or '4 x L4'"),
        flag_option("json", "Print plan.json, not prose", is_flag=True),
    ],
)
def plan(request: Request, hf_token: str | None, machine: str | None, json: bool) -> None:
    """Say what `run` would do here, and why. Does nothing. Exit code 0 if it would be started."""
    gpus, problems = _imagine(machine)
    asked = replace(request, what_if=True, problems=(*request.problems, *problems))
    settled = resolve(asked, *_look(asked, hf_token, gpus))
    click.echo(settled.to_json() if json else describe(settled, nodes=request.nodes), nl=False)
    _end_unless_it_would_run(settled)


@cli.command(
    cls=SettingsCommand,
    short_help="Score a model, with or without an adapter.",
    extra=[
        flag_option("adapter", "Adapter folder to put on the model, such as out/adapter"),
        flag_option("split", "Rows to score: test or train"),
        DRY_RUN,
    ],
)
def evaluate(request: Request, hf_token: str | None, dry_run: bool) -> None:
    """Score a model, with or without an adapter, on --eval-size rows of a split."""
    asked = replace(request, command="evaluate")
    _start(_as_trained(asked, request.adapter) if request.adapter else asked, hf_token, dry_run)


@cli.command(
    cls=SettingsCommand,
    short_help="Make one model of a run's base and adapter.",
    extra=[flag_option("adapter", "Adapter folder (default: the adapter of the run in --output-dir)"), DRY_RUN],
)
def merge(request: Request, hf_token: str | None, dry_run: bool) -> None:
    """Write base + adapter of an earlier run as one model to --output-dir/merged, check it, and hand it on.

    What the run was told holds here too: its model, task and hub repository.
    """
    given = request.given["output_dir"].value if "output_dir" in request.given else DEFAULTS["output_dir"]
    adapter = request.adapter or f"{given.rstrip('/')}/adapter"
    _start(_as_trained(replace(request, command="merge", adapter=adapter), adapter), hf_token, dry_run)


@cli.command(
    cls=SettingsCommand,
    plans=False,
    short_help="Copy a model from the hub into a bucket or a folder.",
    extra=[
        flag_option("model-id", "Hub id, such as google/gemma-4-31B-it"),
        flag_option("to", "Where to: gs://BUCKET/PATH, or a folder"),
    ],
)
def stage(request: Request, hf_token: str | None, model_id: str | None, to: str | None) -> None:
    """Copy a model from the hub into a bucket or a folder, compared with the hub's checksums.

    Said again after an interruption, it goes on where it stopped; of what is there already, nothing is copied.
    """
    problems = find_stage_problems(request, model_id, to, facts.look_at_target(to) if to else None)
    if problems or not model_id or not to:
        raise UsageErrors(problems)
    launch.execute_stage(model_id, to, hf_token)


@cli.command(
    cls=SettingsCommand,
    short_help="Check this machine, and what a run would use.",
    extra=[flag_option("json", "Print the checks for a program", is_flag=True)],
)
def doctor(request: Request, hf_token: str | None, json: bool) -> None:
    """Check this machine and what a run with these settings would use: really write, multiply, tokenise.

    Exit code 0 if nothing has to be mended.
    """
    from finetune.doctor import as_json, examine, table

    machine, found = _look(request, hf_token)
    settled, problems = None, None
    try:
        settled = resolve(replace(request, what_if=False), machine, found)
    except UsageErrors as error:
        problems = error
    checks = examine(settled, found, problems, machine)
    click.echo(as_json(checks) if json else table(checks, colour=sys.stdout.isatty()))
    if any(check.state == "fail" for check in checks):
        sys.exit(UsageError.exit_code)


@cli.command(hidden=True)
def flags() -> None:
    """Print the table of flags for README.md."""
    click.echo(markdown_table(), nl=False)


def _as_trained(request: Request, adapter: str) -> Request:
    """The request, with what the adapter's own run was told where its plan is still there."""
    settings = adapter_settings(adapter)
    base = settings.get("model_id") or adapter_base(adapter)
    return replace(request, adapter_base=base, adapter_settings=settings)


def _imagine(text: str | None) -> tuple[tuple[hardware.Gpu, ...], list[FinetuneError]]:
    """The GPUs of --machine, none if there is no such flag, and what is wrong with it."""
    try:
        return parse_gpus(text) if text else (), []
    except UsageError as error:
        return (), [error]


def _look(
    request: Request, hf_token: str | None, imagined: tuple[hardware.Gpu, ...] = ()
) -> tuple[hardware.Machine, facts.Facts]:
    machine = hardware.detect()
    if imagined:
        machine = replace(machine, gpus=imagined, driver=None, note=hardware.ASSUMED)
    environ = {**os.environ, **({"HF_TOKEN": hf_token} if hf_token else {})}
    return machine, facts.gather(draft(request, machine), request.adapter, environ)


def _start(request: Request, hf_token: str | None, dry_run: bool) -> None:
    asked = replace(request, what_if=dry_run)
    machine, found = _look(asked, hf_token)
    settled = resolve(asked, machine, found)
    out, name = settled.settings.output_dir, PLAN_FILES[settled.command]
    # Only the first node writes the results; what the others need of the plan is of this moment. So is what a bucket's
    # run is started with.
    shared = request.nodes.leads or dry_run
    home = Path(out if shared and not is_bucket(out) else mkdtemp(prefix="gemma4-plan-"))
    click.echo(describe(settled, f"{out}/{name}" if shared else str(home / name), request.nodes), nl=False)
    if settled.start == "nothing" and not dry_run:
        click.echo(f"{out} holds this very run, finished: there is nothing to do (--overwrite runs it again)")
        return
    if dry_run:
        _end_unless_it_would_run(settled)
        return
    _check(settled, found, machine, request.nodes.leads)
    text = settled.to_json()
    try:
        home.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text, encoding="utf-8")
        if shared and is_bucket(out):
            open_folder(out).write(name, text.encode())
    except (OSError, StorageError) as error:
        reason = error.message if isinstance(error, StorageError) else f"cannot be written: {error.strerror}"
        raise UsageError(f"{out}/{name}: {reason}", "write another --output-dir") from error
    launch.execute(settled, home / name, hf_token, request.nodes)


def _end_unless_it_would_run(settled: Plan) -> None:
    if not settled.would_run:
        click.echo("this would not run: see the note on memory", err=True)
        sys.exit(UsageError.exit_code)


def _check(settled: Plan, found: facts.Facts, machine: hardware.Machine, leads: bool) -> None:
    """The quick checks of `doctor`. Raises UsageErrors for a disk that is too small, or that does not take files."""
    from finetune.doctor import SHARED_MEMORY, quick

    failed = quick(settled, found, machine, leads)
    for check in failed:
        if check.name == SHARED_MEMORY:  # some machines do without
            click.echo(f"warning: {check.name}: {check.found}\n  hint: {check.remedy}", err=True)
    wrong: list[FinetuneError] = [
        UsageError(f"{check.name}: {check.found}", check.remedy) for check in failed if check.name != SHARED_MEMORY
    ]
    if wrong:
        raise UsageErrors(wrong)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. A user's mistake is told in a line and a hint, and gives its exit code."""
    signal.signal(signal.SIGTERM, _stop)  # as PID 1 of a container, which the signal's default does not end
    try:
        cli.main(arguments, prog_name="entrypoint.py")
    except FinetuneError as error:
        click.echo(error, err=True)
        sys.exit(error.exit_code)


def _stop(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
