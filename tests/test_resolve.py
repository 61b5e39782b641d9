"""resolve.py and checks.py: from what was asked and found to a plan, or to every problem of it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from finetune.describe import describe
from finetune.errors import UsageError, UsageErrors
from finetune.facts import Facts, ModelFacts, Trouble
from finetune.hardware import Machine
from finetune.known_models import known_config
from finetune.plan import Plan
from finetune.profiles import EMBEDDED, EMBEDDED_MODEL
from finetune.request import Raw, Request, merge
from finetune.resolve import draft, resolve
from finetune.settings import OPTIONS, flag
from tests.machines import NO_GPU, machine

B31 = "google/gemma-4-31B-it"
GRETEL = "philschmid/gretel-synthetic-text-to-sql"


def ask(**values: Any) -> Request:
    """A Request with these settings given as flags."""
    given, problems = merge({name: Raw(str(value), "flag", flag(name)) for name, value in values.items()})
    assert problems == []
    return Request(given=given)


def settle(request: Request, on: Machine, facts: Mapping[str, Any] | None = None) -> Plan:
    """Resolve, with facts that fit what was asked: the model is as named, and nothing is wrong."""
    values = draft(request, on)
    model = ModelFacts(values["model_id"], "hub", known_config(values["model_id"]))
    return resolve(request, on, replace(Facts(model, values["dataset"]), **(facts or {})))


def problems(request: Request, on: Machine, facts: Mapping[str, Any] | None = None) -> list[str]:
    with pytest.raises(UsageErrors) as raised:
        settle(request, on, facts)
    assert raised.value.exit_code == 2
    return [f"{error.message} -> {error.hint}" for error in raised.value.errors]


def test_eight_b200_run_the_published_recipe() -> None:
    plan = settle(Request(), machine("b200x8"))
    settings, launch = plan.settings, plan.launch
    assert (plan.profile, settings.task, settings.model_id, settings.dataset) == ("b200x8", "text-to-sql", B31, GRETEL)
    assert (settings.lora_r, settings.lora_alpha, settings.lora_dropout, settings.lora_targets) == (
        16,
        32,
        0.05,
        "text",
    )
    assert (settings.learning_rate, settings.lr_scheduler_type, settings.warmup_ratio) == (1e-5, "constant", 0.03)
    assert (settings.max_length, settings.num_train_epochs, settings.max_grad_norm) == (1024, 3.0, 0.3)
    assert plan.rows_per_step == 512
    assert (launch.accel_config, launch.num_processes, launch.fsdp, launch.bf16) == ("fsdp2.yaml", 8, True, True)
    assert (launch.use_cpu, launch.gpus, launch.threads_per_process) == (False, None, 4)
    assert launch.fsdp_layer_class == "Gemma4TextDecoderLayer"
    assert plan.adapter == {"modules": {"text": 410}, "parameters": {"text": 122_429_440}}


def test_one_rtx_pro_6000_runs_qlora() -> None:
    plan = settle(Request(), machine("rtx-pro-server"))
    settings = plan.settings
    assert (settings.quantization, settings.lora_r, settings.lora_alpha) == ("nf4", 64, 64)
    assert (settings.learning_rate, settings.lr_scheduler_type, settings.warmup_ratio) == (5e-5, "linear", 0.1)
    assert (settings.weight_decay, plan.rows_per_step, settings.num_train_epochs) == (0.01, 16, 3.0)
    assert (plan.launch.accel_config, plan.launch.num_processes, plan.launch.fsdp) == ("gpu1.yaml", 1, False)
    assert (settings.task, settings.dataset, settings.lora_targets) == ("pets", "timm/oxford-iiit-pet", "all-linear")
    assert (settings.max_new_tokens, settings.eval_size) == (24, 740)


def test_the_task_can_be_chosen_on_either_machine() -> None:
    sql = settle(ask(task="text-to-sql"), machine("rtx-pro-server")).settings
    assert (sql.task, sql.dataset, sql.quantization, sql.lora_r, sql.lora_targets) == (
        "text-to-sql", GRETEL, "nf4", 64, "text",
    )  # fmt: skip
    pets = settle(ask(task="pets"), machine("b200x8"))
    assert (pets.settings.quantization, pets.settings.lora_r, pets.settings.lora_targets) == ("none", 16, "all-linear")
    assert (pets.launch.num_processes, pets.launch.fsdp, pets.settings.dataset) == (8, True, "timm/oxford-iiit-pet")
    assert (pets.rows_per_step, pets.settings.learning_rate, pets.settings.lr_scheduler_type) == (16, 5e-5, "linear")
    own = settle(ask(task="pets", per_device_train_batch_size=1), machine("h100x3"))
    assert (own.rows_per_step, own.sources["gradient_accumulation_steps"]) == (15, "task")
    assert settle(Request(), machine("b200x8")).settings.task == "text-to-sql"


def test_a_cpu_runs_the_embedded_model_on_the_embedded_data() -> None:
    plan = settle(Request(), NO_GPU)
    settings = plan.settings
    assert (plan.profile, settings.model_id, settings.dataset, settings.train_size) == ("cpu", EMBEDDED, EMBEDDED, 2000)
    assert (plan.launch.accel_config, plan.launch.use_cpu, plan.launch.bf16) == ("cpu.yaml", True, False)
    assert plan.sources["learning_rate"] == plan.sources["dataset"] == "model"


def test_the_embedded_models_values_are_its_own() -> None:
    on_gpus = settle(ask(model_id=EMBEDDED), machine("b200x8")).settings
    assert (on_gpus.learning_rate, on_gpus.dataset) == (EMBEDDED_MODEL["learning_rate"], EMBEDDED)
    assert (on_gpus.train_size, on_gpus.max_length) == (2000, 512)
    own_data = settle(ask(dataset="a/b"), NO_GPU).settings
    assert own_data.max_length == 2048
    assert (own_data.learning_rate, own_data.train_size, own_data.dataset) == (
        EMBEDDED_MODEL["learning_rate"],
        None,
        "a/b",
    )
    on_a_cpu = settle(ask(model_id="google/gemma-4-E2B-it"), NO_GPU)
    assert (on_a_cpu.settings.learning_rate, on_a_cpu.settings.per_device_train_batch_size) == (1e-5, 1)
    assert on_a_cpu.settings.dataset == EMBEDDED, "a CPU is for trying out"
    assert any("write --dataset philschmid/gretel-synthetic-text-to-sql" in note for note in on_a_cpu.notes)


def test_the_cpu_try_out_of_recipe_b() -> None:
    request = ask(model_id="google/gemma-4-e2b-it", device="cpu", train_size=20, num_train_epochs=1)
    plan = settle(request, machine("rtx-pro-server"))
    assert (plan.profile, plan.reason, plan.launch.use_cpu) == ("cpu", "asked for by --device", True)
    assert (plan.settings.train_size, plan.settings.num_train_epochs, plan.settings.dataset) == (20, 1.0, EMBEDDED)


def test_each_value_has_its_source_and_a_users_wins() -> None:
    config = Raw("7", "config", "run.yaml:1: save_steps")
    given, _ = merge(
        {"lora_r": Raw("8", "flag", "--lora-r")}, {"seed": Raw("1", "env", "FINETUNE_SEED")}, {"save_steps": config}
    )
    plan = settle(Request(given=given), machine("b200x8"))
    assert set(plan.sources) == set(OPTIONS)
    named = {name: plan.sources[name] for name in ("lora_r", "seed", "save_steps", "lora_alpha", "dataset", "device")}
    assert named == {
        "lora_r": "flag",
        "seed": "env",
        "save_steps": "config",
        "lora_alpha": "profile",
        "dataset": "task",
        "device": "default",
    }
    assert (plan.settings.lora_r, plan.settings.seed, plan.settings.save_steps) == (8, 1, 7)


def test_a_subset_of_the_gpus_is_named_to_the_launcher() -> None:
    assert settle(Request(), machine("mixed")).launch.gpus == (0, 1)
    assert settle(ask(profile="gpu"), machine("b200x8", "5,6")).launch.gpus == (5,)
    assert settle(Request(), machine("b200x8", "5,6")).launch.gpus is None


def test_a_gpu_without_bf16_computes_in_fp32() -> None:
    assert not settle(Request(), machine("t4x1")).launch.bf16


def test_other_architectures_are_sharded_by_their_own_layers() -> None:
    assert (
        settle(ask(model_id="google/gemma-4-12B-it"), machine("h100x8")).launch.fsdp_layer_class
        == "Gemma4UnifiedTextDecoderLayer"
    )
    model = ModelFacts("/m", "folder", {"model_type": "gemma4_unified", "text_config": {}})
    assert (
        settle(ask(model_id="/m"), machine("h100x8"), {"model": model}).launch.fsdp_layer_class
        == "Gemma4UnifiedTextDecoderLayer"
    )


def test_a_profile_can_be_chosen_or_only_imagined() -> None:
    assert settle(ask(profile="multi-gpu"), machine("b200x8")).profile == "multi-gpu"
    [problem] = problems(ask(profile="b200x8"), NO_GPU)
    assert problem.startswith("--profile: b200x8 needs 8 x B200; this machine has no GPU -> leave it out (cpu fits")
    imagined = settle(replace(ask(profile="b200x8"), what_if=True), NO_GPU)
    assert imagined.reason == "asked for by --profile: what would run on 8 x NVIDIA B200; this machine has no GPU"
    assert imagined.launch.num_processes == 8


def test_a_low_max_length_lowers_the_answers_length_too() -> None:
    plan = settle(ask(max_length=128), machine("b200x8"))
    assert plan.settings.max_new_tokens == 64
    assert "max_new_tokens is lowered to 64, to fit into max_length 128" in plan.notes


CONTRADICTIONS: list[tuple[dict[str, Any], str, dict[str, Any], str]] = [
    ({"attn_implementation": "flash_attention_2"}, "b200x8", {}, "heads of 512 -> write --attn-implementation sdpa"),
    ({"quantization": "nf4"}, "b200x8", {}, "FSDP2 cannot shard its packed weights over 8 -> write --profile gpu"),
    ({"push_to_hub": "true"}, "b200x8", {}, "no token for the hub -> set HF_TOKEN=..."),
    ({"hub_repo": "a/b/c"}, "b200x8", {}, "'a/b/c' is no repository's name -> write NAME or ORG/NAME"),
    ({"gcs_output_path": "s3://a/b"}, "b200x8", {}, "'s3://a/b' is not a path in a bucket -> write gs://BUCKET/PATH"),
    ({"gcs_output_path": "gs://"}, "b200x8", {}, "'gs://' is not a path in a bucket"),
    ({"max_new_tokens": 1024}, "b200x8", {}, "1024 tokens does not fit into rows of 1024 -> write less than 1024"),
    ({"device": "cuda"}, "none", {}, "--device: no GPU to use"),
    ({"profile": "b200x8", "device": "cpu"}, "b200x8", {}, "b200x8 needs a GPU, but --device says cpu"),
    ({"profile": "rtx-pro-6000"}, "h100x8", {}, "needs 1 x RTX PRO 6000; this machine has 8 x NVIDIA H100 80GB HBM3"),
    ({"profile": "multi-gpu"}, "l4x1", {}, "multi-gpu needs 2 GPUs or more; this machine has 1 x NVIDIA L4"),
    (
        {"dataset": "x"},
        "none",
        {"troubles": (Trouble("dataset", "x: no such file", "write"),)},
        "--dataset: x: no such",
    ),
    ({}, "none", {"troubles": (Trouble("output_dir", "out is a file", "write"),)}, "--output-dir: out is a file"),
    (
        {},
        "none",
        {"troubles": (Trouble("adapter", "a: no such folder", "give"),)},
        "--adapter: a: no such folder -> give",
    ),
]


@pytest.mark.parametrize(("values", "on", "facts", "words"), CONTRADICTIONS)
def test_contradictions_are_refused_with_what_to_write(
    values: dict[str, Any], on: str, facts: dict[str, Any], words: str
) -> None:
    [problem] = problems(ask(**values), machine(on), facts)
    assert words in problem


def test_all_problems_are_told_at_once() -> None:
    request = ask(attn_implementation="flash_attention_2", push_to_hub="true", device="cuda", gcs_output_path="x")
    earlier = UsageError("--lora-r: 'x' is not a whole number", "write --lora-r 16")
    found = problems(replace(request, problems=(earlier,)), NO_GPU)
    assert len(found) == 5
    assert found[0].startswith("--lora-r")


def test_rows_longer_than_the_model_takes_are_refused() -> None:
    model = ModelFacts(EMBEDDED, "embedded", {"model_type": "gemma4", "text_config": {"max_position_embeddings": 2048}})
    [problem] = problems(ask(max_length=4096), NO_GPU, {"model": model})
    assert problem == "--max-length: 4096 is more than the model's 2048 -> write 2048 or less"


def test_evaluating_no_rows_is_refused() -> None:
    [problem] = problems(replace(ask(eval_size=0), command="evaluate"), NO_GPU)
    assert "0 rows leave nothing to evaluate" in problem


@pytest.mark.parametrize(
    ("values", "note"),
    [
        ({"use_fast": "true"}, "use_fast has no effect"),
        ({"save_strategy": "epoch", "save_steps": 5}, "save_steps has no effect with save_strategy epoch"),
        ({"max_steps": 5, "num_train_epochs": 1}, "max_steps 5 ends training"),
        ({"hub_repo": "a/b"}, "hub_repo has no effect without push_to_hub"),
        ({"trust_remote": "true"}, "code from the model's repository will run here"),
        ({"model_id": B31}, "the model needs about 117 GiB of RAM in fp32; there are 16.0"),
    ],
)
def test_what_has_no_effect_is_said(values: dict[str, Any], note: str) -> None:
    assert any(note in said for said in settle(ask(**values), NO_GPU).notes)


def test_evaluate_takes_the_adapters_own_base() -> None:
    request = Request(command="evaluate", adapter="/a", adapter_base=EMBEDDED, split="train")
    plan = settle(request, machine("l4x1"), {"adapter": "/a"})
    assert (plan.settings.model_id, plan.sources["model_id"]) == (EMBEDDED, "adapter")
    assert (plan.adapter_path, plan.split, plan.adapter) == ("/a", "train", None)
    other = replace(request, given=ask(model_id="a/b").given)
    assert "the adapter was trained on embedded, not on a/b" in settle(other, machine("l4x1")).notes


def test_a_saved_plan_is_repeated_with_what_is_changed() -> None:
    saved = settle(ask(lora_r=8), machine("b200x8"))
    plan = settle(replace(ask(seed=7), saved=saved), machine("b200x8"))
    assert plan.settings == replace(saved.settings, seed=7)
    assert plan.launch == saved.launch
    assert (plan.sources["lora_r"], plan.sources["seed"], plan.sources["lora_alpha"]) == ("flag", "flag", "profile")
    assert plan.notes == ("changed from the saved plan by --seed",)


def test_a_saved_plan_needs_the_gpus_that_it_was_made_for() -> None:
    saved = settle(Request(), machine("b200x8"))
    for on, found in (
        ("b200x4", "4 x NVIDIA B200 of 179 GiB"),
        ("h100x8", "8 x NVIDIA H100 80GB HBM3 of 80 GiB"),
        ("none", "no GPU"),
    ):
        [problem] = problems(Request(saved=saved), machine(on))
        assert problem.startswith(f"--plan: made for 8 x NVIDIA B200 of 179 GiB; this machine has {found} -> plan anew")
    assert settle(Request(saved=saved), machine("gb200x8")).launch == saved.launch
    [problem] = problems(replace(ask(device="cpu"), saved=saved), machine("b200x8"))
    assert "--device: cannot be changed with --plan" in problem


def test_a_saved_cpu_plan_runs_anywhere_and_as_before() -> None:
    saved = settle(Request(), NO_GPU)
    assert settle(Request(saved=saved), machine("b200x8")).launch.use_cpu


def test_the_plan_says_what_memory_is_wanted_and_what_would_make_it_fit() -> None:
    plan = settle(Request(), machine("b200x8"))
    assert plan.memory is not None and plan.memory["there_gib"] == 179.1
    assert set(plan.memory["stages_gib"]) == {"loading", "training", "measuring"}
    assert "memory        loading   [#######.............] 64." in describe(plan)
    assert not [note for note in plan.notes if "fit" in note]

    asked = ask(model_id=B31, quantization="none", max_length=512)
    tight = settle(replace(asked, what_if=True), machine("rtx-6000-ada"))
    [note] = [note for note in tight.notes if "does not fit" in note]
    assert "on each GPU while" in note and note.endswith("--quantization nf4 would make it fit")
    assert not tight.would_run and settle(Request(), machine("b200x8")).would_run
    [refused] = problems(asked, machine("rtx-6000-ada"))
    assert refused.startswith("--model-id: does not fit: ") and refused.endswith(
        "-> --quantization nf4 would make it fit"
    )
    scoring = settle(replace(ask(model_id=B31), command="evaluate"), machine("b200x8"))
    assert scoring.memory is not None and "training" not in scoring.memory["stages_gib"]
    [note] = [note for note in settle(Request(), machine("t4x1")).notes if "bf16" in note]
    assert note.startswith("Tesla T4 has no bf16 (compute capability 7.5; 8.0 and later have it): the model is in fp32")
    for there in (NO_GPU, machine("mig")):
        assert not [note for note in settle(Request(), there).notes if "not fit" in note]
