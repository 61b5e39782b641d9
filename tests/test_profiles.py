"""profiles.py and fit.py: which row for which machine, and which model fits."""

from typing import Any

import pytest

from finetune.fit import LADDER, fit
from finetune.hardware import Gpu, Machine
from finetune.known_models import known_config
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
from finetune.settings import DEFAULTS, OPTIONS, parse
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
    ("l4x1", "gpu", "none", E4B, 1, 512, f"{B31} would want 28.8 GiB of each GPU at least, not 22.5: {E4B} is taken"),
    ("l4x4", "multi-gpu", "none", E4B, 4, 64, "found 4 x NVIDIA L4"),
    ("t4x1", "gpu", "nf4", E2B, 1, 16, f"lora_r is 16, not 64, so that {E2B} fits"),
    ("mig", "gpu", "nf4", B31, 1, 16, "MIG 3g.40gb; a process has one slice"),
    ("busy", "gpu", "nf4", B31, 1, 16, "42.0 of 79.6 GiB are in use already"),
    ("a100-80x1", "gpu", "none", B31, 1, 512, "found 1 x NVIDIA A100"),
    ("b300x8", "multi-gpu", "none", B31, 8, 32, "found 8 x NVIDIA B300"),
    ("gb300x4", "multi-gpu", "none", B31, 4, 64, "found 4 x NVIDIA GB300"),
    ("rtx-4090", "gpu", "none", E4B, 1, 512, "found 1 x NVIDIA GeForce RTX 4090"),
    ("rtx-5090", "gpu", "nf4", B31, 1, 16, "found 1 x NVIDIA GeForce RTX 5090"),
    ("v100x8", "multi-gpu", "nf4", E2B, 1, 16, "found 8 x Tesla V100"),
    ("unified", "gpu", "nf4", E2B, 1, 16, "GPU memory is unknown (not told by the driver)"),
    ("mixed", "multi-gpu", "none", B31, 2, 128, "GPUs differ: 1 x Tesla T4 left out"),
    ("none", "cpu", "none", "embedded", 0, 16, "no GPU to use"),
]


@pytest.mark.parametrize(("name", "profile", "quantization", "model", "processes", "accumulation", "words"), CHOICES)
def test_choice(
    name: str, profile: str, quantization: str, model: str, processes: int, accumulation: int, words: str
) -> None:
    matched = match(machine(name))
    setup = set_up(matched, {}, {})
    assert matched.profile.name == profile
    assert setup.settings["quantization"] == quantization
    assert setup.settings["model_id"] == model
    assert len(setup.gpus) == processes
    assert setup.settings["gradient_accumulation_steps"] == accumulation
    assert words in f"{matched.reason} {setup.note}"


def test_rows_of_a_step_stay_near_512_on_any_number_of_gpus() -> None:
    for count in range(2, 17):
        gpus = BY_NAME["b200x8"].assumes[:1] * count
        settings = set_up(Match(BY_NAME["multi-gpu"], gpus, ""), {}, {}).settings
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
    setup = set_up(Match(profile, profile.assumes, ""), {}, {})
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


def setup(gpus: str, **given: Any) -> Any:
    return set_up(match(machine(gpus)), given, {})


@pytest.mark.parametrize(
    ("gpus", "given", "expected", "processes"),
    [
        ("h100x8", {"model_id": E2B}, "none", 8),
        ("l4x1", {"model_id": B31.lower()}, "nf4", 1),
        ("h100x8", {"model_id": B31, "quantization": "nf4"}, "nf4", 1),
        ("b200x1", {"model_id": B31, "quantization": "none"}, "none", 1),
        ("h100x8", {"model_id": "someone/unheard-of"}, "none", 8),
        ("l4x1", {"model_id": E4B, "max_length": 8192}, "nf4", 1),
    ],
)
def test_fit_of_a_users_model(gpus: str, given: dict[str, Any], expected: str, processes: int) -> None:
    chosen = setup(gpus, **given)
    assert (chosen.settings["model_id"], chosen.settings["quantization"]) == (given["model_id"], expected)
    assert len(chosen.gpus) == processes


def test_the_adapter_is_smaller_where_nothing_else_helps() -> None:
    chosen = setup("l4x1", model_id=B31)
    assert (chosen.settings["lora_r"], chosen.settings["lora_alpha"]) == (8, 8)
    assert chosen.note == f"lora_r is 8, not 64, so that {B31} fits"
    assert setup("l4x1", model_id=B31, lora_r=64).settings["lora_r"] == 64, "a user's own value stays"


def test_a_users_folder_is_judged_by_its_own_shape() -> None:
    given = {"model_id": "/models/own"}
    small = set_up(match(machine("l4x1")), given, {}, config=known_config(E2B))
    large = set_up(match(machine("l4x1")), given, {}, config=known_config("google/gemma-4-12B-it"))
    assert [one.settings["quantization"] for one in (small, large)] == ["none", "nf4"]


def test_an_unknown_size_is_said() -> None:
    assert "is not known here" in setup("h100x8", model_id="someone/unheard-of").note


def test_rows_and_answers_at_a_time_are_fewer_where_memory_is_short() -> None:
    """And the rows of a step stay: fewer at a time, more micro-batches."""
    roomy, tight = setup("h100x8"), setup("h100x8", max_length=8192)
    assert tight.settings["eval_batch_size"] < roomy.settings["eval_batch_size"] == 8
    for chosen in (roomy, tight, setup("l4x4"), setup("h100x8", max_length=4096, activation_checkpointing=False)):
        rows = chosen.settings["per_device_train_batch_size"] * chosen.settings["gradient_accumulation_steps"]
        assert rows * len(chosen.gpus) == 512


def test_weights_are_loaded_whole_before_they_are_sharded() -> None:
    small = [Gpu(index, "NVIDIA A100-SXM4-40GB", 40.0, 8.0) for index in range(8)]
    values = {**DEFAULTS, "per_device_train_batch_size": 1}
    chosen = fit(small, lambda kind: {**values, "quantization": kind}, False, {"model_id": B31})
    assert (chosen.quantization, chosen.gpus) == ("nf4", 1), "on one of them"
