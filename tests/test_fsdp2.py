"""FSDP2 for real, on CPU ranks: shard, train, generate, gather, save, and equal one process.

Also over several nodes: launchers that meet on loopback, with a rank each (FSDP2), or two each (HSDP).
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from finetune import launch
from finetune.hardware import Machine
from finetune.nodes import ALONE, Nodes, from_environment
from finetune.plan import Launch, Plan
from finetune.settings import Settings
from tests.loopback import free_port

ROOT = Path(__file__).parent.parent
Process = subprocess.Popen[str]
MACHINE = asdict(Machine(cpu_cores=2))


def two_ranks(tmp_path: Path, mixed_precision: str = "no") -> Launch:
    """The shipped FSDP2 config, on the CPU: gloo, two processes."""
    config = yaml.safe_load((launch.ACCEL_CONFIGS / "fsdp2.yaml").read_text())
    config |= {"num_processes": 2, "mixed_precision": mixed_precision}
    path = tmp_path / "fsdp2.yaml"
    path.write_text(yaml.safe_dump(config))
    return Launch(str(path), 2, fsdp=True, use_cpu=False, bf16=False, fsdp_layer_class="Gemma4TextDecoderLayer")


def popen(plan: Plan, folder: Path, nodes: Nodes = ALONE, module: str = "tests.two_cpu_ranks") -> Process:
    """Launch one node's part of the plan as entrypoint.py would, with the worker that is patched for CPU ranks."""
    plan_path = folder / f"plan-{nodes.rank or 0}.json"
    plan_path.write_text(plan.to_json())
    argv = [module if word == launch.WORKER else word for word in launch.command(plan, plan_path, nodes=nodes)]
    environment = launch.environment(plan, os.environ)
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=environment, cwd=folder, stdout=pipe, stderr=pipe, text=True)


def start(plan: Plan, folder: Path, module: str = "tests.two_cpu_ranks") -> subprocess.CompletedProcess[str]:
    """`popen`, and wait."""
    with popen(plan, folder, module=module) as process:
        out, err = process.communicate(timeout=600)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start_nodes(plans: Sequence[Plan], folder: Path) -> list[tuple[int, str]]:
    """Launch each node's plan at once, told its place by the environment of a pod; exit codes and logs."""
    common = {"NUM_NODES": str(len(plans)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    places = [from_environment({**common, "JOB_COMPLETION_INDEX": str(rank)})[0] for rank in range(len(plans))]
    processes = [popen(plan, folder, nodes) for plan, nodes in zip(plans, places, strict=True)]
    logs = [process.communicate(timeout=600)[1] for process in processes]
    return [(process.returncode, log) for process, log in zip(processes, logs, strict=True)]


def adapter(run_dir: Path) -> dict[str, torch.Tensor]:
    return dict(load_file(run_dir / "adapter" / "adapter_model.safetensors"))


def results(run_dir: Path, name: str) -> Any:
    return json.loads((run_dir / name).read_text())


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """How far apart two adapters are, as a share of the size of their B matrices, which start at zero.

    Not element by element: Adam turns the rounding noise of a near-zero gradient into a whole step.
    """
    assert one.keys() == other.keys()
    moved = [name for name in other if "lora_B" in name]
    apart = sum((one[name] - other[name]).square().sum().item() for name in moved)
    return (apart / sum(other[name].square().sum().item() for name in moved)) ** 0.5


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same global batches, by one process, by two ranks, by two nodes of one rank and of two. 70 rows do not
    divide by 4: fillers are used."""
    common = Settings(
        model_id="embedded", dataset="embedded", train_size=70, eval_size=13, eval_batch_size=4, max_new_tokens=64,
        lora_dropout=0.0, learning_rate=1e-4, num_train_epochs=2, per_device_train_batch_size=2,
        save_strategy="steps", save_steps=4, logging_steps=1, max_grad_norm=1.0,
    )  # fmt: skip
    made = {}
    for name, ranks, accumulation in (("one", 1, 8), ("two", 2, 4)):
        folder = tmp_path_factory.mktemp(name)
        settings = replace(common, output_dir=str(folder / "out"), gradient_accumulation_steps=accumulation)
        cpu = Launch("cpu.yaml", 1, fsdp=False, use_cpu=True, bf16=False)
        plan = Plan("run", settings, {}, name, "a test", two_ranks(folder) if ranks == 2 else cpu, MACHINE)
        done = start(plan, folder)
        assert done.returncode == 0, done.stderr[-4000:]
        made[name] = folder / "out"
    for name, ranks, accumulation in (("two nodes", 1, 4), ("hsdp", 2, 2)):
        folder = tmp_path_factory.mktemp(name.replace(" ", "-"))
        settings = replace(common, output_dir=str(folder / "out"), gradient_accumulation_steps=accumulation)
        shape = replace(two_ranks(folder), num_processes=2 * ranks, num_nodes=2)
        for code, log in start_nodes([Plan("run", settings, {}, name, "a test", shape, MACHINE)] * 2, folder):
            assert code == 0, log[-4000:]
        made[name] = folder / "out"
    return made


pytestmark = pytest.mark.slow


SEVERAL = pytest.mark.parametrize("name", ["two", "two nodes", "hsdp"])


@SEVERAL
def test_the_adapters_are_equal(runs: dict[str, Path], name: str) -> None:
    assert distance(adapter(runs[name]), adapter(runs["one"])) < 1e-2
    assert results(runs[name], "run.json")["training"]["steps"] == 10


def test_two_launchers_with_a_rank_each_are_one_with_two(runs: dict[str, Path]) -> None:
    assert distance(adapter(runs["two nodes"]), adapter(runs["two"])) < 1e-6


@SEVERAL
def test_nothing_is_lost_on_save(runs: dict[str, Path], name: str) -> None:
    one, two = adapter(runs["one"]), adapter(runs[name])
    assert {name: value.shape for name, value in one.items()} == {name: value.shape for name, value in two.items()}
    assert all(value.abs().sum() > 0 for value in two.values()), "every module was trained and saved"


@SEVERAL
def test_losses_and_gradient_norms_are_equal(runs: dict[str, Path], name: str) -> None:
    histories = [results(runs[of], "run.json")["training"]["history"] for of in ("one", name)]
    for one, two in zip(*histories, strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-3)
        assert two["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-2)


@SEVERAL
@pytest.mark.parametrize("when", ["before", "after"])
def test_generation_is_sharded_and_gathered_in_order(runs: dict[str, Path], when: str, name: str) -> None:
    one, two = (
        [json.loads(line) for line in (runs[of] / f"predictions-{when}.jsonl").read_text().splitlines()]
        for of in ("one", name)
    )
    assert len(one) == len(two) == 13
    assert [row["row"] for row in one] == [row["row"] for row in two]
    assert sum(a["completion"] == b["completion"] for a, b in zip(one, two, strict=True)) >= 12
    # Answers of many lengths: the ranks finish their batches at different steps, and must still keep together.
    assert len({len(row["completion"]) for row in two}) >= 5


def test_bf16_ranks_sum_their_gradients_in_fp32(tiny_model: Path, tmp_path: Path) -> None:
    """Weights are gathered and multiplied in bf16, the adapter and what is added up over 32 micro-batches is not."""
    settings = Settings(
        model_id=str(tiny_model), dataset="embedded", train_size=8, eval_size=0, lora_dropout=0.0, save_strategy="no",
        num_train_epochs=1, gradient_accumulation_steps=4, logging_steps=1, output_dir=str(tmp_path / "out"),
    )  # fmt: skip
    bf16 = replace(two_ranks(tmp_path, "bf16"), bf16=True)
    done = start(Plan("run", settings, {}, "two", "a test", bf16, MACHINE), tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    policies = {line for line in done.stderr.splitlines() if line.startswith("precision:")}
    assert len(policies) == 1
    assert "param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=None" in policies.pop()
    run = results(tmp_path / "out", "run.json")
    assert run["model"]["dtypes"]["float32"]["bytes"] == 4 * run["model"]["trainable"]
    assert set(run["model"]["dtypes"]) == {"bfloat16", "float32"}
    assert all(value.dtype == torch.float32 and value.isfinite().all() for value in adapter(tmp_path / "out").values())


def test_nodes_that_were_told_different_things_stop_before_anything_is_loaded(tmp_path: Path) -> None:
    settings = Settings(model_id="embedded", dataset="embedded", output_dir=str(tmp_path / "out"))
    shape = replace(two_ranks(tmp_path), num_nodes=2)
    plans = [Plan("run", replace(settings, seed=seed), {}, "two", "a test", shape, MACHINE) for seed in (1, 2)]
    for code, log in start_nodes(plans, tmp_path):
        assert code == 5, log[-4000:]
        assert "the nodes were told different things: seed" in log
        assert "loading" not in log


def test_two_processes_that_form_no_group_are_an_error(tmp_path: Path) -> None:
    config = Launch("cpu.yaml", 1, fsdp=False, use_cpu=True, bf16=False)
    settings = Settings(model_id="embedded", dataset="embedded", output_dir=str(tmp_path / "out"))
    plan = Plan("run", settings, {}, "cpu", "a test", replace(config, num_processes=2), MACHINE)
    plan_path = tmp_path / "plan.json"
    plan_path.write_text(plan.to_json())
    done = subprocess.run(
        [sys.executable, "-m", "finetune.worker", str(plan_path)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 5
    assert "the plan has 2 processes, and 1 of them form one group" in done.stderr
    assert "Traceback" not in done.stderr
