"""nodes.py: this machine's place among the nodes of a run, and what a plan makes of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from finetune import hardware
from finetune.describe import describe
from finetune.nodes import ALONE, Nodes, find_missing, from_environment
from finetune.plan import Plan
from finetune.request import Given, Request
from tests.machines import NO_GPU, machine
from tests.test_resolve import B31, problems, settle

pytest_plugins = ("tests.command_line",)
Run = Callable[..., tuple[int, str, str]]

POD = {"NUM_NODES": "3", "JOB_COMPLETION_INDEX": "2", "MASTER_ADDR": "job-0.job"}


@pytest.mark.parametrize("environ", [{}, {"NUM_NODES": ""}, {"NUM_NODES": "1", "MASTER_PORT": "x"}])
def test_one_machine_needs_nothing(environ: dict[str, str]) -> None:
    assert from_environment(environ) == (ALONE, [])
    assert ALONE.leads
    assert find_missing(ALONE) == []


def test_a_pod_of_an_indexed_job() -> None:
    assert from_environment(POD) == (Nodes(3, 2, "job-0.job", 29500), [])
    first, _ = from_environment({**POD, "NODE_RANK": "0", "MASTER_PORT": "1234"})
    assert first == Nodes(3, 0, "job-0.job", 1234), "NODE_RANK goes before the pod's index"
    assert (first.leads, from_environment(POD)[0].leads) == (True, False)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"NUM_NODES": "two"}, "NUM_NODES: 'two' is no whole number from 1"),
        ({"NUM_NODES": "0"}, "NUM_NODES: '0' is no whole number from 1"),
        ({**POD, "JOB_COMPLETION_INDEX": "3"}, "JOB_COMPLETION_INDEX: 3 is not below NUM_NODES=3"),
        ({**POD, "NODE_RANK": "-1"}, "NODE_RANK: '-1' is no whole number from 0"),
        ({**POD, "MASTER_PORT": "tcp://10.0.0.1"}, "MASTER_PORT: 'tcp://10.0.0.1' is no whole number from 1"),
    ],
)
def test_mistakes_name_the_variable(environ: dict[str, str], message: str) -> None:
    _, found = from_environment(environ)
    assert [error.message for error in found] == [message]


def test_what_is_missing_is_told_before_a_start_not_before_a_look() -> None:
    nodes, _ = from_environment({"NUM_NODES": "2"})
    told = problems(Request(nodes=nodes), machine("b200x8"))
    assert [text.split(":")[0] for text in told] == ["NODE_RANK", "MASTER_ADDR"]
    assert settle(Request(nodes=nodes, what_if=True), machine("b200x8")).launch.num_processes == 16


def test_nodes_share_the_steps_of_one() -> None:
    one, two = (settle(Request(nodes=nodes), machine("b200x8")) for nodes in (ALONE, Nodes(2, 0, "a")))
    assert (one.rows_per_step, two.rows_per_step) == (512, 512)
    assert two.settings.gradient_accumulation_steps == 16
    assert (two.launch.num_nodes, two.launch.num_processes, two.launch.processes_per_node) == (2, 16, 8)
    assert two.launch.threads_per_process == one.launch.threads_per_process
    text = " ".join(describe(two, nodes=Nodes(2, 0, "a")).split())
    assert "sharded over the 8 GPUs of each of 2 nodes" in text
    assert "gradient_accumulation_steps is 16, not 32: 2 nodes share the rows of a step" in text


def test_what_the_user_asks_for_is_not_changed() -> None:
    asked = {"gradient_accumulation_steps": Given(32, "flag", "--gradient-accumulation-steps")}
    assert settle(Request(given=asked, nodes=Nodes(2, 0, "a")), machine("b200x8")).rows_per_step == 1024


def test_nodes_of_one_gpu_shard_over_all() -> None:
    plan = settle(Request(nodes=Nodes(4, 0, "a")), machine("b200x1"))
    assert (plan.launch.fsdp, plan.launch.accel_config, plan.launch.num_processes) == (True, "fsdp2.yaml", 4)
    assert "sharded over 4 GPUs of 4 nodes" in " ".join(describe(plan).split())


def test_what_several_nodes_cannot_do() -> None:
    nodes = Nodes(2, 0, "a")
    assert problems(Request(nodes=nodes), NO_GPU) == [
        "NUM_NODES: 2, but there is no GPU to use here -> unset NUM_NODES on a CPU"
    ]
    (nf4,) = problems(Request(nodes=nodes), machine("rtx-pro-server"))
    assert "nf4 runs on one GPU" in nf4
    assert "unset NUM_NODES" in nf4


def test_a_saved_plan_is_repeated_on_as_many_nodes() -> None:
    two = settle(Request(nodes=Nodes(2, 0, "a")), machine("b200x8"))
    again = settle(Request(saved=two, nodes=Nodes(2, 1, "a")), machine("b200x8"))
    assert (again.settings, again.launch) == (two.settings, two.launch)
    (told,) = problems(Request(saved=two), machine("b200x8"))
    assert told == "--plan: made for 2 node(s); NUM_NODES says 1 -> set NUM_NODES=2, or plan anew"


def test_only_the_first_node_leaves_a_plan_in_the_run_directory(
    run: Run, started: list[tuple[list[str], dict[str, str]]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hardware, "detect", lambda: machine("b200x8"))
    for name, value in {"NUM_NODES": "2", "MASTER_ADDR": "node-0"}.items():
        monkeypatch.setenv(name, value)
    for rank in ("1", "0"):
        monkeypatch.setenv("JOB_COMPLETION_INDEX", rank)
        assert run("run", "--model-id", B31, "--output-dir", "out")[0] == 0
        assert (tmp_path / "out" / "plan.json").exists() == (rank == "0")
    for rank, (argv, environ) in enumerate(reversed(started)):
        assert argv[argv.index("--machine_rank") + 1] == str(rank)
        assert Plan.from_json(Path(argv[-1]).read_text()).launch.num_nodes == 2
        assert "MASTER_ADDR" not in environ, "the ranks are told by the launcher alone"
