"""doctor: each check finds what it is for, and the whole of it by the real command line."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from finetune import doctor
from finetune.doctor import (
    BEGIN,
    END,
    Check,
    check_machine,
    check_output,
    check_python,
    check_reading,
    check_space,
    table,
)
from finetune.errors import UsageError, UsageErrors
from finetune.facts import Facts
from finetune.known_models import GEMMA4_31B
from finetune.model_facts import ModelFacts
from finetune.plan import Plan
from finetune.request import Request
from finetune.resolve import resolve
from tests import bucket
from tests.conftest import ROOT
from tests.fuse_mount import mounted
from tests.machines import NO_GPU, disk, machine
from tests.test_resolve import ask

pytest_plugins = ("tests.command_line",)
B31 = ModelFacts("google/gemma-4-31B-it", "hub", GEMMA4_31B)


def planned(on: str, request: Request | None = None, **facts: Any) -> tuple[Plan, Facts]:
    found = replace(Facts(B31, "philschmid/gretel-synthetic-text-to-sql"), **facts)
    return resolve(request or Request(), machine(on), found), found


def test_versions_are_compared_with_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    python, packages = check_python()
    assert (python.state, packages.state) == ("ok", "ok"), packages
    known = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: "0.1" if name == "peft" else known(name))
    [_, packages] = check_python()
    assert packages.state == "warn" and packages.found.startswith("peft 0.1, locked 0.2")
    monkeypatch.setattr(doctor, "LOCK", Path("/nowhere"))
    assert [check.state for check in check_python()] == ["ok", "warn"]


def test_a_machine_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda place: disk(free_gib=8))
    found = {check.name: check for check in check_machine(machine("h100x8"))}
    assert {name: check.state for name, check in found.items()} == {"GPU": "ok", "driver": "ok", "shared memory": "ok"}
    old = {check.name: check for check in check_machine(replace(machine("h100x8"), driver="550.54.15"))}
    assert old["driver"].state == "warn" and "CUDA 13 wants 580 or later" in old["driver"].remedy
    assert next(iter(check_machine(machine("busy")))).state == "warn"
    assert next(iter(check_machine(NO_GPU))).found.startswith("no NVIDIA driver here")
    monkeypatch.setattr(shutil, "disk_usage", lambda place: disk(free_gib=1 / 32))
    [*_, small] = check_machine(machine("h100x8"))
    assert (small.state, small.found) == ("fail", "/dev/shm has 0.1 GiB")
    [*_, alone] = check_machine(machine("l4x1"))
    assert alone.state == "ok", "one GPU has nobody to talk to"


def test_a_disk_that_is_too_small_is_told_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    plan, found = planned("b200x8", ask(output_dir=str(tmp_path / "out"), merge="true"))
    monkeypatch.setattr(shutil, "disk_usage", lambda place: disk(free_gib=80))
    room, memory = check_space(plan, found, machine("b200x8"))
    told = f"{tmp_path}/hf/hub and {tmp_path}/out: 122.0 GiB wanted (58.3 + 63.7), 80.0 free"
    assert (room.state, room.found) == ("fail", told), "weights, and the merged model with checkpoints, on one disk"
    assert memory.state == "ok"
    assert doctor.quick(plan, found, machine("b200x8")) == [room]
    [*_, memory] = check_space(plan, found, replace(machine("b200x8"), ram_gib=64.0))
    assert memory.state == "warn"
    unheard = replace(found, model=ModelFacts("a/b", "hub"))
    assert "is not known here" in next(iter(check_space(plan, unheard, machine("b200x8")))).found


def test_a_node_that_does_not_lead_wants_room_for_the_weights_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    plan, found = planned("b200x8", ask(output_dir=str(tmp_path / "out"), merge="true"))
    monkeypatch.setattr(shutil, "disk_usage", lambda place: disk(free_gib=20))
    [room] = doctor.quick(plan, found, machine("b200x8"), leads=False)
    assert room.found == f"{tmp_path}/hf/hub: 58.3 GiB wanted, 20.0 free"
    blobs = tmp_path / "hf" / "hub" / "models--google--gemma-4-31B-it" / "blobs"
    blobs.mkdir(parents=True)
    with (blobs / "half").open("wb") as file:
        file.truncate(40 * 2**30)  # of no size on the disk
    assert doctor.quick(plan, found, machine("b200x8"), leads=False) == [], "what is there is not fetched again"
    with (blobs / "half").open("r+b") as file:
        file.truncate(60 * 2**30)
    assert "disk" not in {check.name for check in check_space(plan, found, machine("b200x8"), leads=False)}


@pytest.mark.parametrize("there", [True, False])
def test_the_output_is_really_written(there: bool, tmp_path: Path) -> None:
    place = tmp_path / "out"
    if there:
        place.mkdir()
    plan, _ = planned("b200x8", ask(output_dir=str(place)))
    [check] = check_output(plan)
    assert (check.state, check.found) == ("ok", f"{place if there else tmp_path}: written, read and deleted")
    assert not list(tmp_path.rglob(".doctor-*")) and place.exists() is there


def test_a_bucket_that_may_not_be_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = planned("b200x8", ask(output_dir="gs://closed/out"))
    with bucket.serve("closed") as storage:
        storage.closed = {"closed"}
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        [check] = check_output(plan)
    assert check.state == "fail" and "this machine's account may not do that" in check.found


def test_the_weights_are_really_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(2_000_000))
    (tmp_path / "config.json").write_text("{}")
    on_disk = check_reading(str(tmp_path))
    assert on_disk.state == "ok" and on_disk.found.startswith("4.0 MB of model.safetensors from the disk in ")
    with bucket.serve("models", "closed") as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        storage.keep("models/gemma/model.safetensors", bytes(3_000_000))
        in_bucket = check_reading("gs://models/gemma")
        storage.closed = {"closed"}
        closed = check_reading("gs://closed/gemma")
    assert in_bucket.state == "ok" and "6.0 MB of model.safetensors from the bucket" in in_bucket.found
    assert closed.state == "fail" and "this machine's account may not do that" in closed.found


def test_weights_on_a_mount_are_really_read(tmp_path: Path) -> None:
    source, mount = tmp_path / "bucket", tmp_path / "mount"
    (source / "gemma").mkdir(parents=True)
    (source / "gemma" / "model.safetensors").write_bytes(bytes(2_000_000))
    with mounted(source, mount):
        found = check_reading(str(mount / "gemma"))
    assert found.state == "ok" and "4.0 MB of model.safetensors from the mounted bucket" in found.found


def test_processes_really_add_up(tmp_path: Path) -> None:
    from finetune.doctor_group import check_group

    heard = check_group("NCCL", "gloo", 2, tmp_path, numbers=100_000)
    assert heard.state == "ok" and heard.found.startswith("2 processes added 0 MiB up in "), heard
    (tmp_path / "other").mkdir()
    lost = check_group("NCCL", "nccl" if not torch.cuda.is_available() else "mpi", 2, tmp_path / "other", numbers=10)
    assert lost.state == "fail" and lost.found and "did not hear" not in lost.found, lost


def test_offline_a_model_that_is_not_here_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, found = planned("b200x8")
    weights, token = doctor.check_model(plan, found)
    assert weights.state == "fail" and "HF_HUB_OFFLINE=1 is set" in weights.found
    assert token.state == "warn"
    assert [check.state for check in doctor.check_model(plan, replace(found, has_token=True))] == ["fail", "ok"]


def test_a_command_that_cannot_be_planned_is_part_of_the_table() -> None:
    problems = UsageErrors([UsageError("--dataset: x: no such file", "write y"), UsageError("--seed: z", "")])
    checks = doctor.examine(None, None, problems, NO_GPU)
    assert [check.found for check in checks if check.state == "fail"] == ["--dataset: x: no such file", "--seed: z"]
    text = table([*checks, Check("shown", "ok", f"a\nb {BEGIN}c{END}")], colour=True)
    assert "\x1b[32mc\x1b[0m" in text and text.endswith("2 to mend") and "-> write y" in text


@pytest.mark.parametrize(
    ("arch", "known", "runs"),
    [
        ("sm_90", ["sm_80", "sm_90"], True),
        ("sm_89", ["sm_80", "sm_86"], True),
        ("sm_120", ["sm_90", "sm_100"], False),
        ("sm_103", ["sm_100", "sm_120"], True),
        ("sm_75", ["sm_80"], False),
    ],
)
def test_a_card_runs_kernels_of_its_own_generation(arch: str, known: list[str], runs: bool) -> None:
    from finetune.doctor_worker import _runs

    assert _runs(arch, known) is runs


def test_each_answer_of_a_conversation_is_marked_and_nothing_else(
    tiny_model: Path, tmp_path: Path, write_jsonl: Callable[..., Path]
) -> None:
    from finetune.doctor_worker import check_rows

    said = [("system", "Be brief."), ("user", "Two?"), ("assistant", "Four."), ("user", "Six?"), ("assistant", "Nine.")]
    talk = {"messages": [{"role": role, "content": text} for role, text in said]}
    plan, _ = planned("none", ask(task="chat", max_length=200))
    files = {"model_id": str(tiny_model), "dataset": str(write_jsonl("talk.jsonl", [talk] * 4))}
    plan = replace(plan, settings=replace(plan.settings, **files))
    checks = {check.name: check for check in check_rows(plan, tmp_path)}
    assert "fail" not in {check.state for check in checks.values()}, checks
    text = checks["what is trained on"].found
    marked = [part.split(END)[0] for part in text.split(BEGIN)[1:]]
    assert marked == ["Four.<turn|>\n", "Nine.<turn|>\n"]
    assert all(word in text for word in ("Be brief.", "Two?", "Six?"))


@pytest.mark.slow
def test_the_whole_of_it(tiny_model: Path, tmp_path: Path, write_jsonl: Callable[..., Path]) -> None:
    row = {"sql_prompt": "How many?", "sql_context": "CREATE TABLE t (a INT)", "sql": "SELECT count(*) FROM t"}
    data = write_jsonl("rows.jsonl", [row] * 6 + [{**row, "sql": " "}])
    words = ["--model-id", str(tiny_model), "--dataset", str(data), "--output-dir", "out", "--json"]
    command = [sys.executable, str(ROOT / "entrypoint.py"), "doctor", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert {check["state"] for check in checks.values()} == {"ok", "warn"}
    assert checks["rows"]["state"] == "warn" and "sql is empty (1)" in checks["rows"]["found"]
    assert f"{BEGIN}SELECT count(*) FROM t<turn|>\n{END}" in checks["what is trained on"]["found"]
    assert "NF4" in checks and not (tmp_path / "out").exists()
