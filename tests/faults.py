"""Runs that are cut short at a given point, and started again: `python -m tests.faults` does all of them (a table).

A point is a function of the product; the run is killed (SIGKILL) or told to stop (SIGTERM) as it is called for the
n-th time, or half-way through writing a file. The same plan is then started again, to its end. What is left must be
what a run leaves that nobody cut short: the adapter byte for byte, and metrics.json.
"""

import argparse
import contextlib
import importlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from finetune import launch
from finetune.commits import find
from finetune.earlier import AFTER, BEFORE, CHECKPOINTS, STEP, decide, look
from finetune.plan import Launch, Plan
from finetune.settings import Settings
from finetune.storage import open_folder
from tests.fault_points import FILES, MARKER, POINTS, WRITING, inject

SIGNALS = ("KILL", "TERM")
KINDS = ("fp32", "nf4", "two ranks")
STORES = ("disk", "mount", "bucket")
KEPT = {"loading": "", "adapter": BEFORE, "before": BEFORE, "after": AFTER, "writing answers.json": BEFORE}
"""What a run that is told to stop there must keep; elsewhere a step."""
NOT_THERE = {"upload": ("disk", "mount"), "between files": ("bucket",)}


@dataclass(frozen=True)
class Case:
    """One run to cut short: where, by which signal, of what kind, with its results kept where."""

    point: str
    signal: str
    kind: str
    store: str


def all_cases() -> list[Case]:
    """Every point x signal x kind x store that there is."""
    points = [*POINTS, *(f"{WRITING}{name}" for name in (*FILES, MARKER))]
    found = itertools.starmap(Case, itertools.product(points, SIGNALS, KINDS, STORES))
    return [case for case in found if case.store not in NOT_THERE.get(case.point, ())]


def plan_of(kind: str, place: str, folder: Path, **changes: Any) -> Plan:
    """A run of two epochs over a few rows, with a checkpoint every second step."""
    settings = Settings(
        model_id="embedded", dataset="embedded", train_size=21, eval_size=8, eval_batch_size=2, max_new_tokens=8,
        lora_dropout=0.1, learning_rate=1e-3, num_train_epochs=2, per_device_train_batch_size=2, logging_steps=3,
        gradient_accumulation_steps=4, save_steps=2, save_total_limit=1, output_dir=place, grace_seconds=60,
        quantization="nf4" if kind == "nf4" else "none",
    )  # fmt: skip
    shape = Launch("cpu.yaml", 1, fsdp=False, use_cpu=True, bf16=False)
    if kind == "two ranks":
        from tests.test_fsdp2 import two_ranks

        shape = two_ranks(folder)
        settings = replace(settings, gradient_accumulation_steps=2)
    machine = {"gpus": [], "driver": None, "cpu_cores": 2, "ram_gib": None, "note": ""}
    plan = Plan("run", replace(settings, **changes), {}, kind, "a test", shape, machine)
    return replace(plan, start=decide(plan, look(place)).start)


def run(plan: Plan, folder: Path, fault: str = "") -> tuple[int, str]:
    """Do what a plan says, with a fault in it (POINT:SIGNAL). Its exit code and its log."""
    if plan.start == "nothing":
        return 0, "nothing to do"
    path = folder / "plan.json"
    path.write_text(plan.to_json())
    return (_launch if plan.launch.num_processes > 1 else _fork)(path, folder / "log", fault)


def _fork(plan: Path, log: Path, fault: str) -> tuple[int, str]:
    """In a copy of this process, which has everything imported already: seconds less a run."""
    importlib.import_module("finetune.worker")  # the runs are copies of this process
    child = get_context("fork").Process(target=_work, args=(plan, log, fault))
    child.start()
    child.join()
    return child.exitcode or 0, log.read_text()


def _work(plan: Path, log: Path, fault: str) -> None:
    from finetune.worker import start

    sys.stdout = sys.stderr = log.open("w", buffering=1)  # a test's own are pytest's
    os.dup2(sys.stderr.fileno(), 1)
    os.dup2(sys.stderr.fileno(), 2)
    inject(fault)
    start(str(plan))


def _launch(plan: Path, log: Path, fault: str) -> tuple[int, str]:
    """By accelerate launch, on two ranks of FSDP2. A killed rank's launcher ends the other."""
    known = Plan.from_json(plan.read_text())
    argv = ["tests.faults" if word == launch.WORKER else word for word in launch.command(known, plan)]
    environment = {**launch.environment(known, os.environ), "FAULT": fault}
    with log.open("w") as file:
        done = subprocess.run(argv, env=environment, stdout=file, stderr=file, timeout=300, check=False)
    return done.returncode, log.read_text()


@contextmanager
def store(kind: str, folder: Path) -> Iterator[str]:
    """A place for results, for as long as the block lasts."""
    if kind == "disk":
        yield str(folder / "out")
    elif kind == "mount":
        from tests.fuse_mount import mounted

        (folder / "bucket").mkdir()
        with mounted(folder / "bucket", folder / "mnt"):
            yield str(folder / "mnt" / "out")
    else:
        from tests import bucket, cloud_storage

        with cloud_storage.serve("runs") as (url, _):
            os.environ.update(bucket.environment(url))
            yield f"gs://runs/{folder.name}/out"


def results(place: str) -> dict[str, bytes]:
    """What has to be equal."""
    return {name: open_folder(place).read(name) for name in ("adapter/adapter_model.safetensors", "metrics.json")}


def check(case: Case, expected: dict[str, bytes], folder: Path) -> tuple[str, float]:
    """Cut a run short and start it again. What is wrong ("" if nothing is), and the seconds that both took."""
    since = time.monotonic()
    with store(case.store, folder) as place:
        code, log = run(plan_of(case.kind, place, folder), folder, f"{case.point}:{case.signal}")
        if code not in {"KILL": (-signal.SIGKILL, 128 + signal.SIGKILL), "TERM": (75,)}[case.signal]:
            return f"exit code {code}: {log[-1500:]}", 0.0
        there = find(open_folder(f"{place}/{CHECKPOINTS}"))
        wanted = KEPT.get(case.point, STEP)
        if case.signal == "TERM" and (there.skipped or (wanted and not there.of(wanted))):
            return f"told to stop, it left {there}", 0.0
        code, log = run(plan_of(case.kind, place, folder), folder)
        if code:
            return f"started again: exit code {code}: {log[-1500:]}", 0.0
        took = time.monotonic() - since
        if plan_of(case.kind, place, folder).start != "nothing":
            return "not finished", took
        found = results(place)
    different = [name for name in expected if found[name] != expected[name]]
    return f"different: {', '.join(different)}" if different else "", took


def whole(kind: str, folder: Path) -> tuple[dict[str, bytes], float]:
    """What a run leaves that nobody cuts short, and its seconds."""
    since = time.monotonic()
    code, log = run(plan_of(kind, str(folder / "whole"), folder), folder)
    assert code == 0, log
    return results(str(folder / "whole")), time.monotonic() - since


def sweep(cases: Sequence[Case]) -> int:
    """All cases, and a line a case. The number that went wrong."""
    wrong, known = 0, {}
    importlib.import_module("finetune.worker")  # before the clock runs
    print(f"{'stage':<34}{'signal':<8}{'run':<11}{'storage':<9}{'equal':<7}seconds more than uninterrupted")
    with tempfile.TemporaryDirectory() as top:
        for number, case in enumerate(cases):
            if case.kind not in known:
                known[case.kind] = whole(case.kind, Path(tempfile.mkdtemp(dir=top)))
            expected, seconds = known[case.kind]
            folder = Path(top, str(number))
            folder.mkdir()
            problem, took = check(case, expected, folder)
            wrong += bool(problem)
            equal = "NO" if problem else "yes"
            line = f"{case.point:<34}{case.signal:<8}{case.kind:<11}{case.store:<9}{equal:<7}{took - seconds:5.1f}"
            print(f"{line}  {problem}", flush=True)
    print(f"{len(cases)} cases, {wrong} wrong")
    return wrong


def main() -> int:
    """As a worker, one rank with a fault in it; else the sweep."""
    if len(sys.argv) == 2 and sys.argv[1].endswith("plan.json"):
        from tests import two_cpu_ranks

        two_cpu_ranks.patch()
        inject(os.environ["FAULT"])
        from finetune.worker import start

        start(sys.argv[1])
    parser = argparse.ArgumentParser(description=__doc__)
    for name, known in (("kind", KINDS), ("store", STORES), ("signal", SIGNALS)):
        parser.add_argument(f"--{name}", choices=known, action="append")
    parser.add_argument("--point", action="append")
    parser.add_argument("--part", default="1/1", help="of how many, to share the work out: 2/4")
    asked = parser.parse_args()
    cases = [
        case
        for case in all_cases()
        if all(not wanted or getattr(case, name) in wanted for name, wanted in vars(asked).items() if name != "part")
    ]
    part, parts = map(int, asked.part.split("/"))
    with contextlib.suppress(KeyboardInterrupt):
        return min(1, sweep(cases[part - 1 :: parts]))
    return 1


if __name__ == "__main__":
    sys.exit(main())
