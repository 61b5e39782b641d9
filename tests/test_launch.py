"""launch.py, launcher.py and accel_configs/: what is started, and that accelerate reads it as it is meant."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finetune.hardware import Machine
from finetune.launch import ACCEL_CONFIGS, ROOT, command, environment
from finetune.nodes import ALONE, Nodes
from finetune.plan import Launch, Plan
from finetune.request import Request
from tests.machines import NO_GPU, machine
from tests.test_resolve import settle

CONFIGS = sorted(ACCEL_CONFIGS.glob("*.yaml"))
MACHINES = {"fsdp2.yaml": machine("b200x8"), "gpu1.yaml": machine("rtx-pro-server"), "cpu.yaml": NO_GPU}


def plan_on(found: Machine) -> Plan:
    return settle(Request(), found)


def test_the_command_of_eight_gpus() -> None:
    assert command(plan_on(machine("b200x8")), "out/plan.json", "python") == [
        "python",
        *("-m", "finetune.launcher"),
        *("--config_file", str(ACCEL_CONFIGS / "fsdp2.yaml")),
        *("--num_processes", "8"),
        *("--num_cpu_threads_per_process", "4"),
        *("--mixed_precision", "bf16"),
        *("--fsdp_transformer_layer_cls_to_wrap", "Gemma4TextDecoderLayer"),
        *("-m", "finetune.worker", "out/plan.json"),
    ]


def test_the_command_of_one_process() -> None:
    on_cpu = command(plan_on(NO_GPU), "plan.json", "python")
    assert on_cpu[3:] == [
        *("--config_file", str(ACCEL_CONFIGS / "cpu.yaml")),
        *("--num_processes", "1"),
        *("--num_cpu_threads_per_process", "2"),
        *("--mixed_precision", "no"),
        *("-m", "finetune.worker", "plan.json"),
    ]
    mixed = replace(plan_on(machine("l4x1")).launch, gpus=(3,))
    assert command(replace(plan_on(machine("l4x1")), launch=mixed), "p", "python")[-5:-3] == ["--gpu_ids", "3"]


def test_the_command_of_one_of_two_nodes() -> None:
    nodes = Nodes(2, 1, "finetune-0.finetune", 1234)
    plan = settle(Request(nodes=nodes), machine("b200x8"))
    argv = command(plan, "p", "python", nodes)
    assert argv[argv.index("--num_processes") + 1] == "16"
    assert argv[argv.index("--num_machines") :] == [
        *("--num_machines", "2", "--machine_rank", "1", "--same_network"),
        *("--main_process_ip", "finetune-0.finetune", "--main_process_port", "1234", "--rdzv_conf", "timeout=1800"),
        *("--use_fsdp", "--fsdp_version", "2", "--use_parallelism_config"),
        *("--parallelism_config_dp_replicate_size", "2", "--parallelism_config_dp_shard_size", "8"),
        *("-m", "finetune.worker", "p"),
    ]
    one_each = command(settle(Request(nodes=nodes), machine("b200x1")), "p", "python", nodes)
    assert str(ACCEL_CONFIGS / "fsdp2.yaml") in one_each
    assert "--use_parallelism_config" not in one_each, "sharded over the nodes: there is nothing to shard over in one"


def test_a_config_by_absolute_path_is_used_as_it_is(tmp_path: Path) -> None:
    launch = Launch(str(tmp_path / "own.yaml"), 2, True, False, False)
    assert str(tmp_path / "own.yaml") in command(replace(plan_on(NO_GPU), launch=launch), "plan.json")


def test_the_environment_says_nothing_against_the_plan() -> None:
    before = {
        "PATH": "/bin",
        "HF_HOME": "/cache",
        "HF_TOKEN": "own",
        "PYTHONPATH": "/lib",
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
        "FINETUNE_SEED": "1",
        "WORLD_SIZE": "9",
        "MASTER_PORT": "1",
    }
    after = environment(plan_on(machine("b200x8")), before)
    assert {key: after.pop(key) for key in ("PATH", "HF_HOME", "HF_TOKEN")} == {
        "PATH": "/bin",
        "HF_HOME": "/cache",
        "HF_TOKEN": "own",
    }
    assert after == {
        "PYTHONPATH": f"{ROOT}:/lib",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def test_a_token_from_the_command_line_goes_into_the_environment_only() -> None:
    plan = plan_on(machine("b200x8"))
    assert environment(plan, {}, "secret-value")["HF_TOKEN"] == "secret-value"
    assert "secret-value" not in " ".join(command(plan, "plan.json"))


def test_a_cpu_run_sees_no_gpu() -> None:
    assert environment(plan_on(NO_GPU), {})["CUDA_VISIBLE_DEVICES"] == ""
    assert environment(plan_on(machine("b200x8")), {"CUDA_VISIBLE_DEVICES": "1"})["CUDA_VISIBLE_DEVICES"] == "1"


def test_there_is_a_config_for_each_way_to_run() -> None:
    assert {path.name for path in CONFIGS} == set(MACHINES)
    assert len(CONFIGS) >= 3


def accelerate_reads(plan: Plan, nodes: Nodes = ALONE) -> Any:
    """What `accelerate launch` makes of the plan's command line and config file."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    args = launch_command_parser().parse_args(command(plan, "plan.json", nodes=nodes)[3:])
    return _validate_launch_command(args)[0]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_configs_load_in_accelerate_and_agree_with_the_plan(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    plan = plan_on(MACHINES[path.name])
    assert plan.launch.accel_config == path.name
    loaded = load_config_from_file(str(path))
    assert loaded.num_machines == 1
    assert loaded.use_cpu == plan.launch.use_cpu
    assert loaded.num_processes == plan.launch.num_processes
    args = accelerate_reads(plan)
    assert (args.module, args.training_script, args.training_script_args) == (True, "finetune.worker", ["plan.json"])
    assert args.num_processes == plan.launch.num_processes
    assert args.mixed_precision == ("bf16" if plan.launch.bf16 else "no")
    assert bool(args.use_fsdp) == plan.launch.fsdp
    assert not args.multi_gpu


def test_what_the_ranks_are_told_of_fsdp() -> None:
    from accelerate.utils.launch import prepare_multi_gpu_env

    plan = plan_on(machine("b200x8"))
    plan = replace(plan, launch=replace(plan.launch, fsdp_layer_class="Gemma4UnifiedTextDecoderLayer"))
    args = accelerate_reads(plan)
    told = prepare_multi_gpu_env(args)
    assert {key: told[key] for key in told if key.startswith("FSDP_") and key in WANTED} == WANTED
    assert int(args.master_port) > 0  # a free one: two runs on one machine do not collide
    assert args.nproc_per_node == "8"


def test_what_the_ranks_of_two_nodes_are_told() -> None:
    from accelerate.utils.launch import prepare_multi_gpu_env

    nodes = Nodes(2, 1, "node-0")
    args = accelerate_reads(settle(Request(nodes=nodes), machine("b200x8")), nodes)
    told = prepare_multi_gpu_env(args)
    assert WANTED.items() <= {**told, "FSDP_TRANSFORMER_CLS_TO_WRAP": "Gemma4UnifiedTextDecoderLayer"}.items()
    assert told["ACCELERATE_USE_FSDP"] == told["ACCELERATE_USE_PARALLELISM_CONFIG"] == "true"
    sizes = (told["PARALLELISM_CONFIG_DP_REPLICATE_SIZE"], told["PARALLELISM_CONFIG_DP_SHARD_SIZE"])
    assert sizes == ("2", "8")
    assert (args.nnodes, args.nproc_per_node, args.node_rank) == ("2", "8", 1)
    assert (args.master_addr, args.master_port) == ("node-0", "29500")


WANTED = {
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "Gemma4UnifiedTextDecoderLayer",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
    "FSDP_OFFLOAD_PARAMS": "false",
    "FSDP_ACTIVATION_CHECKPOINTING": "false",
}

WORKER = """
import os, signal, sys, time
from finetune.stopping import Stop
if sys.argv[1] == "wait":
    stop = Stop(60)
    stop.flush = lambda: os.write(1, b"worker saves\\n") and time.sleep(0.3)
    stop.listen()
    os.write(1, b"worker ready\\n")  # a line in one piece: two workers share the pipe
    time.sleep(60)
sys.exit(int(sys.argv[1]))
"""


RUN_LAUNCHER = "import sys; from finetune.launcher import main; sys.exit(main())"
ONE, TWO = ("cpu.yaml", 1), ("fsdp2.yaml", 2)


def launch(script: Path, argument: str, how: tuple[str, int] = ONE, code: str = RUN_LAUNCHER) -> Any:
    script.write_text(WORKER)
    argv = [sys.executable, "-c", code, "--config_file", str(ACCEL_CONFIGS / how[0]), "--num_processes", str(how[1])]
    argv += ["--num_cpu_threads_per_process", "1", str(script), argument]
    env = environment(plan_on(NO_GPU), os.environ)
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("how", [ONE, TWO], ids=["one process", "two"])
def test_a_signal_reaches_the_workers(tmp_path: Path, how: tuple[str, int], number: int) -> None:
    process = launch(tmp_path / "worker.py", "wait", how)
    ready = [process.stdout.readline() for _ in range(how[1])]
    assert ready == ["worker ready\n"] * how[1]
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (75, "worker saves\n" * how[1])
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("how", [ONE, TWO], ids=["one process", "two"])
def test_the_workers_exit_code_is_kept_without_a_traceback(tmp_path: Path, how: tuple[str, int]) -> None:
    process = launch(tmp_path / "worker.py", "3", how)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 3
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "waits", ["accelerate.commands.launch", "torch.distributed.elastic.multiprocessing.api"], ids=["launch", "import"]
)
def test_a_signal_before_there_is_a_worker_ends_the_launcher_at_once(tmp_path: Path, waits: str) -> None:
    """Also while it is still importing, which takes seconds: as PID 1 it would otherwise never get the signal."""
    code = (
        "import sys, time, types\n"
        "def wait(*_):\n"
        "    print('launcher ready', flush=True); time.sleep(60)\n"
        "class Slow(types.ModuleType):\n"
        "    def __getattr__(self, name):\n"
        f"        return wait if self.__name__ != {waits!r} or name == 'main' else wait()\n"
        "for name in ('accelerate.commands.launch', 'torch.distributed.elastic.multiprocessing.api',"
        " 'torch.distributed.elastic.multiprocessing.errors'):\n"
        "    sys.modules[name] = Slow(name)\n"
        "import finetune.launcher\n"
        "sys.exit(finetune.launcher.main())\n"
    )
    process = launch(tmp_path / "worker.py", "wait", ONE, code)
    assert process.stdout.readline() == "launcher ready\n"
    since = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 75
    assert time.monotonic() - since < 20
