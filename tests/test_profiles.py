"""profiles.py and fit.py: which row for which machine, and which model fits."""

from typing import Any

import pytest

from finetune.fit import LADDER, SIZES, fit, needed_gib, size_of
from finetune.hardware import Gpu, Machine
from finetune.launch import ACCEL_CONFIGS
from finetune.profiles import (
    BY_NAME,
    EMBEDDED_DATA,
    EMBEDDED_MODEL,
    EMBEDDED_TASKS,
    PROFILES,
    Match,
    accepts,
    match,
    set_up,
)
from finetune.settings import OPTIONS, parse
from finetune.tasks import TASKS
from tests.machines import NO_GPU, machine

B31, E4B, E2B = LADDER
# machine, profile, quantization, model, processes, accumulation, words of the reason or note
CHOICES: list[tuple[str, str, str, str, int, int, str]] = [
    ("b200x8", "b200x8", "none", B31, 8, 32, "found 8 x NVIDIA B200"),
    ("b200x4", "multi-gpu", "none", B31, 4, 64, "profile b200x8 expects 8 of them, so a general one runs instead"),
    ("b200x1", "gpu", "none", B31, 1, 512, "profile b200x8 expects 8 of them"),
    ("gb200x8", "multi-gpu", "none", B31, 8, 32, "found 8 x NVIDIA GB200"),
    ("gb200x4", "multi-gpu", "none", B31, 4, 64, "found 4 x NVIDIA GB200"),
    ("rtx-pro-server", "rtx-pro-6000", "nf4", B31, 1, 16, "Server Edition"),
    ("rtx-pro-workstation", "rtx-pro-6000", "nf4", B31, 1, 16, "Workstation Edition"),
    ("rtx-pro-max-q", "rtx-pro-6000", "nf4", B31, 1, 16, "Max-Q Workstation Edition"),
    ("rtx-pro-x4", "multi-gpu", "none", B31, 4, 64, "profile rtx-pro-6000 expects 1 of them"),
    ("rtx-6000-ada", "gpu", "nf4", B31, 1, 16, "found 1 x NVIDIA RTX 6000 Ada Generation"),
    ("h100x8", "multi-gpu", "none", B31, 8, 32, "found 8 x NVIDIA H100 80GB HBM3"),
    ("h100x3", "multi-gpu", "none", B31, 3, 85, "found 3 x"),
    ("h200x1", "gpu", "none", B31, 1, 512, "found 1 x NVIDIA H200"),
    ("a100-40x2", "multi-gpu", "nf4", B31, 1, 16, "too large for these 2 GPUs: NF4 on one of them, 1 idle"),
    ("l4x1", "gpu", "nf4", E4B, 1, 16, "found 1 x NVIDIA L4"),
    ("l4x4", "multi-gpu", "none", E4B, 4, 64, "found 4 x NVIDIA L4"),
    ("t4x1", "gpu", "nf4", E2B, 1, 16, "may not fit"),
    ("mig", "gpu", "nf4", E2B, 1, 16, "GPU memory is unknown (split with MIG)"),
    ("unified", "gpu", "nf4", E2B, 1, 16, "GPU memory is unknown (not told by the driver)"),
    ("mixed", "multi-gpu", "none", B31, 2, 128, "GPUs differ: 1 x Tesla T4 left out"),
    ("none", "cpu", "none", "embedded", 0, 16, "no GPU to use"),
]


@pytest.mark.parametrize(("name", "profile", "quantization", "model", "processes", "accumulation", "words"), CHOICES)
def test_choice(
    name: str, profile: str, quantization: str, model: str, processes: int, accumulation: int, words: str
) -> None:
    matched = match(machine(name))
    setup = set_up(matched, None, None, None)
    assert matched.profile.name == profile
    assert setup.settings["quantization"] == quantization
    assert setup.settings["model_id"] == model
    assert len(setup.gpus) == processes
    assert setup.settings["gradient_accumulation_steps"] == accumulation
    assert words in f"{matched.reason} {setup.note}"


def test_rows_of_a_step_stay_near_512_on_any_number_of_gpus() -> None:
    for count in range(2, 17):
        gpus = BY_NAME["b200x8"].assumes[:1] * count
        settings = set_up(Match(BY_NAME["multi-gpu"], gpus, ""), None, None, None).settings
        rows = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"] * count
        assert abs(rows - 512) <= count


def test_hidden_gpus_are_not_counted() -> None:
    matched = match(machine("b200x8", "0,1,2,3"))
    assert matched.profile.name == "multi-gpu"
    assert "CUDA_VISIBLE_DEVICES=0,1,2,3 shows 4 of 8 GPUs" in matched.reason
    assert match(machine("b200x8", "")).profile.name == "cpu"


def test_the_reason_for_the_cpu_is_why_there_is_no_gpu() -> None:
    assert match(NO_GPU).reason == "no GPU to use: no NVIDIA driver here (nvidia-smi is not installed)"
    assert match(Machine()).reason == "no GPU to use"


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_rows_of_the_table_hold_together(profile: Any) -> None:
    assert (ACCEL_CONFIGS / profile.accel_config).is_file()
    setup = set_up(Match(profile, profile.assumes, ""), None, None, None)
    tables = [setup.settings, EMBEDDED_MODEL, *EMBEDDED_TASKS.values(), *EMBEDDED_DATA.values()]
    for name, value in (item for table in tables for item in table.items()):
        assert name in OPTIONS
        assert parse(name, str(value)) == value
    assert EMBEDDED_DATA.keys() == TASKS.keys() >= EMBEDDED_TASKS.keys()
    if profile.assumes:
        assert match(Machine(profile.assumes)).profile is profile
        assert accepts(profile, profile.assumes)
    assert len(setup.gpus) <= (profile.max_gpus if profile.max_gpus is not None else 99)


def test_there_are_profiles_for_the_published_machines_and_for_all_others() -> None:
    assert [profile.name for profile in PROFILES] == ["b200x8", "rtx-pro-6000", "multi-gpu", "gpu", "cpu"]


@pytest.mark.parametrize(
    ("gpus", "model", "weights_gib", "quantization", "expected", "processes"),
    [
        ("h100x8", E2B, None, None, "none", 8),
        ("l4x1", B31.lower(), None, None, "nf4", 1),
        ("l4x1", "/models/own", 3.0, None, "none", 1),
        ("l4x1", "/models/own", 20.0, None, "nf4", 1),
        ("h100x8", B31, None, "nf4", "nf4", 1),
        ("rtx-pro-server", B31, None, "none", "none", 1),
        ("h100x8", "someone/unheard-of", None, None, "none", 8),
    ],
)
def test_fit_of_a_users_model(
    gpus: str, model: str, weights_gib: float | None, quantization: str | None, expected: str, processes: int
) -> None:
    chosen = fit(machine(gpus).gpus, model, weights_gib, quantization)
    assert (chosen.model_id, chosen.quantization, chosen.gpus) == (model, expected, processes)


def test_an_unknown_size_is_said() -> None:
    assert "is not known here" in fit(machine("h100x8").gpus, "someone/unheard-of").note


def test_more_gpus_need_less_memory_each() -> None:
    size = SIZES[B31]
    needs = [needed_gib(size, "none", count) for count in (1, 2, 4, 8)]
    assert needs == sorted(needs, reverse=True)
    assert needed_gib(size, "nf4", 1) < needs[0]
    assert needed_gib(size, "none", 1, bf16=False) > needs[0]
    assert size_of("GOOGLE/gemma-4-31b-it", None) == size
    assert size_of("someone/unheard-of", None) is None


def test_weights_are_loaded_whole_before_they_are_sharded() -> None:
    size = SIZES["google/gemma-4-31B-it"]
    assert needed_gib(size, "none", 64) > size.bf16_gib
    small = [Gpu(index, "NVIDIA A100-SXM4-40GB", 40.0, 8.0) for index in range(8)]
    assert fit(small, "google/gemma-4-31B-it").quantization == "nf4", "on one of them"
