"""Runs that are cut short and started again end as if nothing had happened. All of them: `make test-faults`."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finetune import commits
from finetune.earlier import CHECKPOINTS
from finetune.storage import LocalFolder
from tests import faults
from tests.conftest import ROOT
from tests.fault_points import WRITING
from tests.faults import Case

pytestmark = pytest.mark.slow
TOKEN = "hf_MARKERTOKENthatMustNotLeak"
SOME = [
    Case("before", "TERM", "fp32", "disk"),
    Case("fifth step", "KILL", "fp32", "bucket"),
    Case("fifth step", "TERM", "nf4", "mount"),
    Case(f"{WRITING}COMMITTED", "KILL", "fp32", "disk"),
    Case(f"{WRITING}optimizer.safetensors", "KILL", "nf4", "disk"),
    Case("saving", "KILL", "fp32", "mount"),
    Case("after", "TERM", "fp32", "bucket"),
    Case("delivery", "KILL", "fp32", "disk"),
    Case("fifth step", "KILL", "two ranks", "disk"),
    Case("fifth step", "TERM", "two ranks", "disk"),
]


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, bytes]]]:
    """What each kind of run leaves when nobody cuts it short, made when it is first asked for."""
    yield {}


@pytest.mark.parametrize("case", SOME, ids=lambda case: f"{case.point}-{case.signal}-{case.kind}-{case.store}")
def test_a_run_that_is_cut_short_ends_as_one_that_is_not(
    case: Case, wholes: dict[str, dict[str, bytes]], tmp_path: Path
) -> None:
    if case.kind not in wholes:
        wholes[case.kind] = faults.whole(case.kind, tmp_path)[0]
    (tmp_path / "cut").mkdir()
    problem, _ = faults.check(case, wholes[case.kind], tmp_path / "cut")
    assert not problem


def test_a_bucket_that_refuses_in_mid_run_ends_it_and_what_was_kept_stays(tmp_path: Path) -> None:
    with faults.store("bucket", tmp_path) as place:
        code, log = faults.run(faults.plan_of("fp32", place, tmp_path), tmp_path, "refused:NONE")
        assert code == 8, log
        assert "error: checkpoint step-4 could not be kept: the bucket is gone" in log and "Traceback" not in log
        assert log.count("trying again in") == 2
        code, log = faults.run(faults.plan_of("fp32", place, tmp_path), tmp_path)
        assert code == 0 and "training on 21 rows, on from step-2" in log


def test_a_step_that_takes_too_long_for_the_grace_period_is_given_up(tmp_path: Path) -> None:
    run = faults.plan_of("fp32", str(tmp_path / "out"), tmp_path, grace_seconds=2)
    since = time.monotonic()
    code, log = faults.run(run, tmp_path, "slow step:TERM")
    assert code == 75 and time.monotonic() - since < 25
    assert "the step in hand took longer than the 2 s there were; the same command goes on from the last" in log
    code, log = faults.run(faults.plan_of("fp32", str(tmp_path / "out"), tmp_path), tmp_path)
    assert code == 0 and "on from step-4" in log


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    code, log = faults.run(faults.plan_of("fp32", str(tmp_path / "out"), tmp_path), tmp_path, "slow step:TWICE")
    assert code == 128 + signal.SIGTERM
    assert "stopped at once: it was told a second time" in log


def test_the_clock_keeps_checkpoints_too(tmp_path: Path) -> None:
    run = faults.plan_of("fp32", str(tmp_path / "out"), tmp_path, save_steps=100, save_minutes=1e-6, save_total_limit=9)
    assert faults.run(run, tmp_path)[0] == 0
    found = commits.find(LocalFolder(tmp_path / "out" / CHECKPOINTS))
    assert [commit.number for commit in found.of("step")] == [6, 5, 4, 3, 2, 1]
    assert [commit.name for commit in found.of("before")] == ["before-4"], "after each batch, and only the last is left"


def test_more_processes_go_on_with_the_same_rows(tmp_path: Path) -> None:
    """From one process to two ranks of FSDP2: the losses stay, but for what dropout draws; here it draws nothing."""
    one = faults.plan_of("fp32", str(tmp_path / "one"), tmp_path, lora_dropout=0.0)
    assert faults.run(one, tmp_path)[0] == 0
    place = str(tmp_path / "out")
    assert faults.run(faults.plan_of("fp32", place, tmp_path, lora_dropout=0.0), tmp_path, "fifth step:TERM")[0] == 75
    two = faults.plan_of("two ranks", place, tmp_path, lora_dropout=0.0)
    code, log = faults.run(two, tmp_path)
    assert code == 0, log
    histories = [json.loads((tmp_path / of / "run.json").read_text())["training"]["history"] for of in ("one", "out")]
    assert [entry["loss"] for entry in histories[1]] == pytest.approx([e["loss"] for e in histories[0]], rel=1e-3)


WORDS = (
    *("run", "--train-size", "120", "--eval-size", "24", "--eval-batch-size", "8", "--save-steps", "5"),
    *("--output-dir", "out", "--max-new-tokens", "16", "--num-epochs", "2"),
)


def start(folder: Path, *more: str) -> "subprocess.Popen[str]":
    """As a user does."""
    environment = {**os.environ, "HF_TOKEN": TOKEN}
    argv = [sys.executable, str(ROOT / "entrypoint.py"), *WORDS, *more]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=pipe, text=True)


def finish(folder: Path, *more: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "entrypoint.py"), *WORDS, *more], cwd=folder, capture_output=True, text=True,
        timeout=300, env={**os.environ, "HF_TOKEN": TOKEN},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_the_command_line_from_preemption_to_the_end(tmp_path: Path) -> None:
    for name in ("whole", "cut"):
        (tmp_path / name).mkdir()
    assert finish(tmp_path / "whole")[0] == 0
    process, seen = start(tmp_path / "cut"), ""
    assert process.stderr
    for line in process.stderr:
        seen += line
        if line.startswith("step 20/"):
            process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75
    assert re.search(r"stopped: after step \d+ of 60, which is kept in out/checkpoints\n", seen)

    code, log = finish(tmp_path / "cut", "--learning-rate", "0.5")
    assert code == 2
    assert re.search(r"step-\d+ in out is that of another run: --learning-rate 0.5, then 0.003", log)
    assert "write --restart to begin anew, --resume-anyway to go on from it all the same" in log

    code, log = finish(tmp_path / "cut")
    assert code == 0 and re.search(r"note +goes on from step-\d+", log)
    for name in ("adapter/adapter_model.safetensors", "metrics.json"):
        assert (tmp_path / "cut" / "out" / name).read_bytes() == (tmp_path / "whole" / "out" / name).read_bytes(), name
    runs: list[dict[str, Any]] = [
        json.loads((tmp_path / of / "out" / "run.json").read_text()) for of in ("whole", "cut")
    ]
    told = [
        [(entry["step"], entry["loss"], entry["grad_norm"]) for entry in run["training"]["history"]] for run in runs
    ]
    assert told[0] == told[1]
    assert runs[0]["training"]["tokens"] == runs[1]["training"]["tokens"]
    assert [begun["from"] is None for begun in runs[1]["starts"]] == [True, False]

    before = (tmp_path / "cut" / "out" / "run.json").read_bytes()
    code, log = finish(tmp_path / "cut")
    assert code == 0 and "holds this very run, finished: there is nothing to do" in log
    assert (tmp_path / "cut" / "out" / "run.json").read_bytes() == before
    files = [path for path in (tmp_path / "cut").rglob("*") if path.is_file()]
    assert any("COMMITTED" in path.name for path in files)
    assert TOKEN not in seen + log and not [path for path in files if TOKEN.encode() in path.read_bytes()]
    assert not [path for path in files if path.suffix in (".bin", ".pt", ".pth", ".pickle", ".pkl")]


def test_scratch_is_cleared_after_runs_that_were_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = faults.plan_of("fp32", str(tmp_path / "out"), tmp_path)
    (tmp_path / "gemma4-finetune-999999999").mkdir()
    assert faults.run(replace(run), tmp_path)[0] == 0
    assert not list(tmp_path.glob("gemma4-finetune-*"))
