"""entrypoint.py and cli.py: both recipes' command lines, every kind of mistake, and what is started."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finetune import hardware
from finetune.plan import Plan
from finetune.settings import GROUPS, OPTIONS, flag
from tests.conftest import ROOT
from tests.machines import machine

pytest_plugins = ("tests.command_line",)
Run = Callable[..., tuple[int, str, str]]
Planned = Callable[..., Plan]

COMMAND_A = (
    "--model_id google/gemma-4-31B-it --trust_remote True --use_fast True --dataset_name a/b --output_dir run "
    "--lora_r 16 --lora_alpha 32 --lora_dropout 0.05 --max_length 1024 --num_train_epochs 3 "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 32 --learning_rate 1e-5 --logging_steps 10 "
    "--save_strategy epoch --save_steps 50 --push_to_hub --hub_private_repo"
)
RECIPE_A = COMMAND_A.split()
COMMAND_B = (
    "--train-size 700 --eval-size 200 --num-epochs 3 --learning-rate 5e-5 --batch-size 1 "
    "--gradient-accumulation-steps 16 --eval-batch-size 4 --lora-r 64 --lora-alpha 64 --lora-dropout 0.05 "
    "--model-id google/gemma-4-31B-it --device cuda --output-dir run --results-file results.json "
    "--gcs-output-path gs://bucket/run --merge --checkpoint-strategy steps --save-steps 100 "
    "--save-total-limit 2"
)
RECIPE_B = COMMAND_B.split()


def test_recipe_a_s_command_line(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "detect", lambda: machine("b200x8"))
    monkeypatch.setenv("HF_TOKEN", "secret-value")
    plan = planned(*RECIPE_A)
    settings = plan.settings
    assert (settings.model_id, settings.dataset, settings.output_dir) == ("google/gemma-4-31B-it", "a/b", "run")
    assert (settings.push_to_hub, settings.hub_private_repo, settings.trust_remote) == (True, True, True)
    assert (settings.learning_rate, settings.save_strategy, plan.rows_per_step) == (1e-5, "epoch", 512)
    hyphens = [word.replace("_", "-") if word.startswith("--") else word for word in RECIPE_A]
    assert planned(*hyphens).settings == settings


def test_recipe_b_s_command_line(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "detect", lambda: machine("rtx-pro-server"))
    plan = planned(*RECIPE_B)
    settings = plan.settings
    assert (settings.train_size, settings.num_train_epochs, settings.per_device_train_batch_size) == (700, 3.0, 1)
    assert (settings.merge, settings.save_strategy, settings.quantization, plan.rows_per_step) == (
        True,
        "steps",
        "nf4",
        16,
    )
    assert (settings.results_file, settings.gcs_output_path) == ("results.json", "gs://bucket/run")
    underscores = [
        word.replace("-", "_").replace("__", "--", 1) if word.startswith("--") else word for word in RECIPE_B
    ]
    assert planned(*underscores).settings == settings


def test_recipe_b_s_cpu_try_out(planned: Planned) -> None:
    words = ["--model-id", "google/gemma-4-e2b-it", "--device", "cpu", "--train-size", "20", "--num-epochs", "1"]
    assert planned(*words).launch.use_cpu


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--merge"], True),
        (["--merge", "true"], True),
        (["--merge=yes"], True),
        (["--merge", "false"], False),
        (["--no-merge"], False),
        (["--no_merge"], False),
        (["--merge", "--seed", "1"], True),
        ([], False),
    ],
)
def test_yes_or_no(planned: Planned, words: list[str], value: bool) -> None:
    assert planned(*words).settings.merge is value


def test_flag_environment_config_in_this_order(
    planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.yaml").write_text("lora_r: 1\nlora_alpha: 1\nseed: 1\n")
    monkeypatch.setenv("FINETUNE_LORA_R", "2")
    monkeypatch.setenv("FINETUNE_LORA_ALPHA", "2")
    plan = planned("--config", "run.yaml", "--lora-r", "3")
    settings = plan.settings
    assert (settings.lora_r, settings.lora_alpha, settings.seed) == (3, 2, 1)
    assert [plan.sources[name] for name in ("lora_r", "lora_alpha", "seed")] == ["flag", "env", "config"]


def test_a_plan_is_saved_and_the_launcher_started(run: Run, started: list[Any], tmp_path: Path) -> None:
    code, out, err = run("--seed", "7")
    assert (code, err) == (0, "")
    assert "profile       cpu: no GPU to use" in out
    [(argv, environment)] = started
    assert argv[0] == sys.executable
    assert argv[-3:] == ["-m", "finetune.worker", "out/plan.json"]
    assert environment["PYTHONPATH"].startswith(str(ROOT))
    saved = Plan.from_json((tmp_path / "out" / "plan.json").read_text())
    assert (saved.settings.seed, saved.sources["seed"]) == (7, "flag")


def test_a_run_can_be_repeated_from_its_plan(run: Run, started: list[Any], tmp_path: Path) -> None:
    run("--seed", "7", "--output-dir", "first")
    run("run", "--plan", "first/plan.json")
    run("run", "--plan", "first/plan.json", "--output-dir", "second")
    assert len(started) == 3
    first = json.loads((tmp_path / "first" / "plan.json").read_text())
    second = json.loads((tmp_path / "second" / "plan.json").read_text())
    assert second["notes"] == ["changed from the saved plan by --output-dir"]
    assert {**first["settings"], "output_dir": "second"} == second["settings"]


@pytest.mark.parametrize("words", [["plan"], ["run", "--dry-run"], ["--dry_run"], ["evaluate", "--dry-run"]])
def test_a_plan_does_nothing(run: Run, started: list[Any], tmp_path: Path, words: list[str]) -> None:
    before = sorted(tmp_path.iterdir())
    code, out, _ = run(*words)
    assert (code, started) == (0, [])
    assert "finetune.launcher" in out
    assert sorted(tmp_path.iterdir()) == before


def test_a_plan_can_be_made_for_another_machine(run: Run, planned: Planned) -> None:
    assert planned("--profile", "b200x8").launch.num_processes == 8
    code, out, _ = run("--dry-run", "--profile", "b200x8")
    assert code == 0
    assert "what would run on 8 x NVIDIA B200; this machine has no GPU" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--machine", "8 x B200"], 0, ""),
        (["--machine", "1 x T4"], 0, ""),
        (
            ["--machine", "1 x T4", "--model-id", "google/gemma-4-31B-it"],
            2,
            "this would not run: see the note on memory\n",
        ),
    ],
)
def test_a_plan_ends_with_whether_it_would_run(run: Run, words: list[str], code: int, told: str) -> None:
    ended, out, err = run("plan", *words)
    assert (ended, err) == (code, told)
    assert out.startswith("gemma4-finetune: fine-tune") and "(assumed, not found)" in out
    assert ("does not fit: " in out) is bool(code)
    as_json = run("plan", "--json", *words)
    assert as_json[0] == code and Plan.from_json(as_json[1]).would_run is not bool(code)


def test_an_imagined_machine_is_planned_for_with_time_and_money(run: Run) -> None:
    _, out, _ = run("plan", "--machine", "4xL4", "--price-per-hour", "2.5")
    text = " ".join(out.split())
    assert "4 x NVIDIA L4 (22.5 GiB each) (assumed, not found)" in text
    assert "multi-gpu: assumed 4 x NVIDIA L4" in text and "CPU cores" not in text
    assert "M tokens: about" in text and "assuming 50% of 121 TFLOP/s a GPU; the first steps correct it" in text
    assert "at $2.50 an hour (by --price-per-hour)" in text


def test_evaluate_leaves_the_runs_own_plan_alone(run: Run, started: list[Any], tmp_path: Path) -> None:
    adapter = tmp_path / "out" / "adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "google/gemma-4-E2B-it"}')
    (adapter / "adapter_model.safetensors").write_bytes(b"\2" + bytes(7) + b"{}")  # with no tensor in it
    code, out, _ = run("evaluate", "--adapter", "out/adapter", "--split", "train")
    assert code == 0
    plan = Plan.from_json((tmp_path / "out" / "plan-evaluate.json").read_text())
    assert (plan.command, plan.split, plan.adapter_path) == ("evaluate", "train", str(adapter))
    assert plan.settings.model_id == "google/gemma-4-E2B-it"
    assert not (tmp_path / "out" / "plan.json").exists()
    assert f"with the adapter {adapter}" in " ".join(out.split())


def test_a_token_given_as_a_flag_goes_to_the_child_and_nowhere_else(
    run: Run, started: list[Any], tmp_path: Path
) -> None:
    code, out, err = run("--hf_token", "secret-value", "--push-to-hub")
    assert code == 0
    assert err == "warning: --hf-token can be read in the machine's list of processes; set HF_TOKEN instead\n"
    [(argv, environment)] = started
    assert environment["HF_TOKEN"] == "secret-value"
    kept = out + err + " ".join(argv) + "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "secret-value" not in kept


def test_help_shows_every_flag_in_groups_of_a_screen(run: Run) -> None:
    code, out, _ = run("run", "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 100
    for name in OPTIONS:
        assert flag(name)[2:] in out
    places = [out.index(f"\n{title}:\n") for title in GROUPS.values()]
    assert places == sorted(places)
    groups = [out[start:end] for start, end in zip(places, [*places[1:], len(out)], strict=True)]
    assert max(group.count("\n") for group in groups) <= 50


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["plan", "--help"], ["evaluate", "--help"]])
def test_help_of_all_commands(run: Run, words: list[str]) -> None:
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert out.startswith("Usage: entrypoint.py")


def test_version_and_flags(run: Run) -> None:
    assert run("--version")[1].startswith("gemma4-finetune 0.")
    assert "| `--learning-rate` |" in run("flags")[1]
