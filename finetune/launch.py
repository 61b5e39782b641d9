"""Plan -> the command and environment that start its processes. `command` and `environment` are pure."""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from finetune.nodes import ADDRESS, ALONE, Nodes
from finetune.plan import Launch, Plan

ROOT = Path(__file__).resolve().parent.parent
ACCEL_CONFIGS = ROOT / "accel_configs"
LAUNCHER = "finetune.launcher"
"""`accelerate launch` itself, with SIGTERM forwarded and the worker's exit code kept."""
WORKER = "finetune.worker"
STAGE = "finetune.stage"
OTHERS = ("ACCELERATE_", "FSDP_", "FINETUNE_", "PARALLELISM_CONFIG_")
"""Prefixes of variables that would change what the plan says."""
RENDEZVOUS_TIMEOUT_S = 1800
"""How long the first node waits for the last: nodes are made, and pull the image, one after the other."""
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK")


def command(plan: Plan, plan_path: Path | str, python: str = sys.executable, nodes: Nodes = ALONE) -> list[str]:
    """The argv that starts this node's processes of the plan. An absolute `accel_config` is used as it is."""
    launch = plan.launch
    argv = [python, "-m", LAUNCHER, "--config_file", str(ACCEL_CONFIGS / launch.accel_config)]
    argv += ["--num_processes", str(launch.num_processes)]
    argv += ["--num_cpu_threads_per_process", str(launch.threads_per_process)]
    argv += ["--mixed_precision", "bf16" if launch.bf16 else "no"]
    if launch.fsdp_layer_class:
        argv += ["--fsdp_transformer_layer_cls_to_wrap", launch.fsdp_layer_class]
    if launch.gpus is not None:
        argv += ["--gpu_ids", ",".join(map(str, launch.gpus))]
    if launch.num_nodes > 1:
        argv += _join(launch, nodes)
    return [*argv, "-m", WORKER, str(plan_path)]


def _join(launch: Launch, nodes: Nodes) -> list[str]:
    """Several nodes: where they meet; and FSDP2 sharding within a node, with a copy of the shards on each (HSDP)."""
    argv = ["--num_machines", str(launch.num_nodes), "--machine_rank", str(nodes.rank or 0), "--same_network"]
    argv += ["--main_process_ip", nodes.address or ADDRESS, "--main_process_port", str(nodes.port)]
    argv += ["--rdzv_conf", f"timeout={RENDEZVOUS_TIMEOUT_S}"]
    if launch.processes_per_node > 1:
        argv += ["--use_fsdp", "--fsdp_version", "2", "--use_parallelism_config"]
        argv += ["--parallelism_config_dp_replicate_size", str(launch.num_nodes)]
        argv += ["--parallelism_config_dp_shard_size", str(launch.processes_per_node)]
    return argv


def environment(plan: Plan, environ: Mapping[str, str], hf_token: str | None = None) -> dict[str, str]:
    """The processes' environment: this one's, less what would overrule the plan. `hf_token` goes nowhere else."""
    others = {key for key in environ if key.startswith(OTHERS) or key in RANK_VARIABLES}
    kept = _with_project({key: value for key, value in environ.items() if key not in others}, hf_token)
    kept["TOKENIZERS_PARALLELISM"] = "false"
    if plan.launch.use_cpu:
        kept["CUDA_VISIBLE_DEVICES"] = ""
    kept.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as nvidia-smi counts
    return kept


def _with_project(environ: Mapping[str, str], hf_token: str | None) -> dict[str, str]:
    path = environ.get("PYTHONPATH")
    return {
        **environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{path}" if path else str(ROOT),
        "PYTHONSAFEPATH": "1",  # -m must find this project, not a `finetune` in the current folder
        "PYTHONUNBUFFERED": "1",
        **({"HF_TOKEN": hf_token} if hf_token else {}),
    }


def execute(plan: Plan, plan_path: Path, hf_token: str | None = None, nodes: Nodes = ALONE) -> NoReturn:
    """Become the launcher: the process that was started is the one that gets signals and gives the exit code."""
    _become(command(plan, plan_path, nodes=nodes), environment(plan, os.environ, hf_token))


def execute_stage(model: str, to: str, hf_token: str | None = None) -> NoReturn:
    """Become the process that copies a model from the hub."""
    _become([sys.executable, "-m", STAGE, model, to], _with_project(os.environ, hf_token))


def _become(argv: list[str], environ: dict[str, str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # Kept for the new program, until it listens: PID 1 of a container loses what comes while it does not.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
    os.execve(argv[0], argv, environ)
