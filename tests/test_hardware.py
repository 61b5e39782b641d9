"""hardware.py: nvidia-smi's text -> Machine, and what CUDA_VISIBLE_DEVICES leaves of it."""

import stat
from pathlib import Path

import pytest

from finetune import hardware
from finetune.hardware import Gpu, detect, one_slice, parse_gpus, parse_slices, visible
from tests.machines import MIG_LIST, SMI, machine

DRIVER_ERROR = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
    "NVIDIA driver is installed and running."
)


def test_every_field_of_a_line_is_read() -> None:
    [listed] = parse_gpus(SMI["rtx-pro-server"])
    assert listed.gpu == Gpu(0, "NVIDIA RTX PRO 6000 Blackwell Server Edition", 95.6, 12.0)
    assert listed.driver == "580.95.05"
    assert listed.uuid.startswith("GPU-00000000")


@pytest.mark.parametrize(
    ("name", "count", "memory_gib", "bf16"),
    [
        ("b200x8", 8, 179.1, True),
        ("b200x4", 4, 179.1, True),
        ("gb200x4", 4, 185.0, True),
        ("h100x8", 8, 79.6, True),
        ("l4x1", 1, 22.5, True),
        ("t4x1", 1, 15.0, False),
        ("unified", 1, None, True),
        ("mixed", 3, 79.6, True),
    ],
)
def test_recorded_machines(name: str, count: int, memory_gib: float | None, bf16: bool) -> None:
    gpus = [item.gpu for item in parse_gpus(SMI[name])]
    assert (len(gpus), gpus[0].memory_gib, gpus[0].bf16) == (count, memory_gib, bf16)


def test_a_gpu_split_with_mig_is_marked() -> None:
    assert [item.gpu.mig for item in parse_gpus(SMI["mig"])] == [True]
    first, second = parse_slices(MIG_LIST)
    assert (first.gpu, first.profile, first.memory_gib) == (0, "3g.40gb", 38.8)
    assert (second.uuid, second.memory_gib) == ("MIG-1a2b3c4d-0000-5000-8000-000000000001", 19.4)
    assert parse_slices("GPU 0: NVIDIA L4 (UUID: GPU-1)\n") == parse_slices("") == []


@pytest.mark.parametrize(
    ("shown", "memory_gib"),
    [(None, 38.8), ("0", 38.8), ("MIG-1a2b3c4d-0000-5000-8000-000000000001", 19.4), ("MIG-unknown", 38.8)],
)
def test_of_a_split_gpu_a_process_has_one_slice(shown: str | None, memory_gib: float) -> None:
    [gpu] = machine("mig", shown).gpus
    assert (gpu.memory_gib, gpu.mig) == (memory_gib, True)
    assert gpu.name.startswith("NVIDIA H100 80GB HBM3 MIG ")
    assert "a process has one slice, 1 others are not used" in machine("mig", shown).note


def test_whole_gpus_are_taken_before_slices() -> None:
    gpus = (Gpu(0, "A", 80.0, 9.0, mig=True), Gpu(1, "A", 80.0, 9.0))
    assert one_slice(gpus, parse_slices(MIG_LIST), None) == (gpus[1:], "1 GPU(s) split with MIG are left out")
    alone, note = one_slice(gpus[:1], [], None)
    assert (alone, note) == (gpus[:1], "split with MIG, and its slices are not listed")


def test_what_another_process_uses_is_not_planned_with() -> None:
    [gpu] = machine("busy").gpus
    assert (gpu.memory_gib, gpu.used_gib, gpu.free_gib) == (79.6, 42.0, 37.6)
    assert machine("busy").note == "GPU 0: 42.0 of 79.6 GiB are in use already"
    assert {gpu.free_gib for gpu in machine("h100x8").gpus} == {79.6}, "a few MiB are the driver's"


@pytest.mark.parametrize("text", ["", "No devices were found\n", DRIVER_ERROR, "garbage, with, commas", "\n\n"])
def test_what_is_no_gpu_line_gives_no_gpu(text: str) -> None:
    assert parse_gpus(text) == []


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("0,1,2,3", [0, 1, 2, 3]),
        ("2", [2]),
        ("3, 1", [3, 1]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,-1,2", [0]),
        ("1,7", [1]),
        ("GPU-00000002", [2]),
        ("GPU-00000002-5c1d-9a3b-7f21-0d5e8c4b9a10,0", [2, 0]),
        ("0,0", [0]),
    ],
)
def test_cuda_visible_devices(value: str | None, indices: list[int]) -> None:
    gpus, note = visible(parse_gpus(SMI["b200x4"]), value)
    assert [gpu.index for gpu in gpus] == indices
    assert (note == "") == (len(indices) == 4)
    if note:
        assert note == f"CUDA_VISIBLE_DEVICES={value} shows {len(indices)} of 4 GPUs"


def fake_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("script", "note"),
    [
        (f'echo "{DRIVER_ERROR}"; exit 9', "nvidia-smi failed: NVIDIA-SMI has failed because"),
        ("exit 3", "nvidia-smi failed: exit code 3, no output"),
        ("echo No devices were found", "nvidia-smi lists no GPU: No devices were found"),
        ("echo No devices were found >&2; exit 6", "nvidia-smi failed: No devices were found"),
        ("sleep 5", "nvidia-smi did not answer within 0.2 s"),
    ],
)
def test_a_failing_driver_means_cpu_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, note: str
) -> None:
    fake_smi(tmp_path, monkeypatch, script)
    monkeypatch.setattr(hardware, "TIMEOUT_S", 0.2 if "sleep" in script else 30)
    found = detect({})
    assert found.gpus == ()
    assert found.note.startswith(note)


def test_no_nvidia_smi_means_cpu_and_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = detect({})
    assert (found.gpus, found.driver) == ((), None)
    assert found.note == "no NVIDIA driver here (nvidia-smi is not installed)"


def test_slices_are_asked_for_where_a_gpu_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpus").write_text(SMI["mig"])
    (tmp_path / "slices").write_text(MIG_LIST)
    fake_smi(tmp_path, monkeypatch, f'if [ "$1" = -L ]; then cat {tmp_path}/slices; else cat {tmp_path}/gpus; fi')
    assert detect({}).gpus == machine("mig").gpus


def test_one_call_asks_for_all_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "answer").write_text(SMI["h100x3"])
    fake_smi(tmp_path, monkeypatch, f'echo "$@" >> {tmp_path}/calls; cat {tmp_path}/answer')
    found = detect({"CUDA_VISIBLE_DEVICES": "1,2"})
    assert [gpu.index for gpu in found.gpus] == [1, 2]
    assert found.driver == "580.95.05"
    assert len((tmp_path / "calls").read_text().splitlines()) == 1


def test_limits_of_the_control_group_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text(str(3 * 1024**3) + "\n")
    monkeypatch.setattr(hardware, "CGROUP", tmp_path)
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda pid: set(range(64)))
    found = detect({})
    assert (found.cpu_cores, found.ram_gib) == (2, 3.0)


def test_this_machine_has_cores_and_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hardware, "CGROUP", tmp_path)  # no limits
    found = detect({})
    assert found.cpu_cores >= 1
    assert found.ram_gib is not None and found.ram_gib > 0
