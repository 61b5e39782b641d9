"""earlier.py and identity.py: what an output folder holds, and what that means for the run that is planned there."""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from finetune import commits, identity
from finetune.commits import Commit
from finetune.earlier import Decision, Earlier, commits_at, decide, look
from finetune.identity import compare
from finetune.plan import Plan
from finetune.settings import Settings
from finetune.storage import LocalFolder, open_folder
from tests.test_train import plan as make_plan

pytest_plugins = ("tests.places",)
WITHOUT_EFFECT = (
    "output_dir overwrite device price_per_hour trust_remote use_fast activation_checkpointing logging_steps "
    "eval_batch_size save_strategy save_steps save_minutes save_total_limit resume_from resume_anyway restart "
    "grace_seconds results_file merge push_to_hub hub_repo hub_private_repo gcs_output_path "
    "per_device_train_batch_size gradient_accumulation_steps"
)
"""Settings that do not change the adapter or what is measured, or do so only together (rows of a step)."""


def plan(**changes: Any) -> Plan:
    made = make_plan(Path("model"), Path("out"), per_device_train_batch_size=2, gradient_accumulation_steps=4)
    return replace(made, settings=replace(made.settings, **changes))


def begun(run: Plan, number: int = 40) -> Earlier:
    last = Commit("step", number, {}, {"identity": identity.identity(run)})
    return Earlier("begun", last.about["identity"], True, last)


def finished(run: Plan, delivered: bool = True) -> Earlier:
    return Earlier("finished", identity.identity(run), delivered)


def test_every_setting_either_matters_or_does_not() -> None:
    assert {item.name for item in fields(Settings)} - set(identity.SETTINGS) == set(WITHOUT_EFFECT.split())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"learning_rate": 2e-5}, "--learning-rate 2e-05, then 1e-05"),
        ({"dataset": "/other"}, "--dataset /other, then embedded"),
        ({"max_steps": 3}, "--max-steps 3, then not set"),
        ({"gradient_accumulation_steps": 2}, "rows of a step (--per-device-train-batch-size x "),
    ],
)
def test_what_differs_is_named(changes: dict[str, Any], told: str) -> None:
    then = {"dataset": "embedded", "learning_rate": 1e-5}
    [difference] = compare(identity.identity(plan(**then | changes)), identity.identity(plan(**then)))
    assert told in difference


def test_the_same_rows_a_step_on_more_processes_are_the_same_run() -> None:
    other = plan(gradient_accumulation_steps=2)
    other = replace(other, launch=replace(other.launch, num_processes=2))
    decision = decide(other, begun(plan()))
    assert decision.start == "resume" and not decision.differs
    assert "another number of processes: the same rows a step, but other dropout" in decision.note
    assert decide(plan(), begun(plan())) == Decision("resume", "goes on from step-40")


OTHER = {"learning_rate": 0.5}
TABLE: list[tuple[dict[str, Any], Earlier, str, bool]] = [
    # settings, what is there, how the run starts, whether it is refused
    ({}, Earlier(), "new", False),
    ({}, begun(plan()), "resume", False),
    (OTHER, begun(plan()), "resume", True),
    (OTHER | {"resume_anyway": True}, begun(plan()), "resume", False),
    (OTHER | {"overwrite": True}, begun(plan()), "new", False),
    (OTHER | {"restart": True}, begun(plan()), "new", False),
    ({"overwrite": True}, begun(plan()), "resume", False),
    ({"restart": True}, begun(plan()), "new", False),
    ({}, finished(plan()), "nothing", False),
    ({}, finished(plan(), delivered=False), "deliver", False),
    (OTHER, finished(plan()), "new", True),
    (OTHER | {"resume_anyway": True}, finished(plan()), "new", True),
    ({"overwrite": True}, finished(plan()), "new", False),
    ({"restart": True}, finished(plan()), "new", False),
    ({}, Earlier("finished"), "new", True),
    ({"save_steps": 7, "push_to_hub": True, "merge": True}, finished(plan()), "nothing", False),
    ({}, Earlier("begun", identity.identity(plan())), "new", False),
    (OTHER, Earlier("begun", identity.identity(plan())), "new", True),
]


@pytest.mark.parametrize(("changes", "there", "start", "refused"), TABLE)
def test_how_a_run_starts(changes: dict[str, Any], there: Earlier, start: str, refused: bool) -> None:
    decision = decide(plan(**changes), there)
    assert bool(decision.differs) is refused
    assert refused or decision.start == start


def leave(folder: Any, name: str, content: Any) -> None:
    folder.write(name, json.dumps(content).encode())


def test_what_is_found(place: str, tmp_path: Path) -> None:
    folder = open_folder(place)
    assert look(place) == Earlier()
    leave(folder, "checkpoints/step-9/state.json", {})
    assert look(place) == Earlier(skipped={"step-9": "it was not finished"})
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "state.json").touch()
    about = {"identity": identity.identity(plan())}
    for kind, number in (("before", 8), ("step", 3), ("step", 5)):
        commits.write(open_folder(f"{place}/checkpoints"), tmp_path / "from", kind, number, about)
    found = look(place)
    assert (found.state, found.last and found.last.name, found.identity) == ("begun", "step-5", about["identity"])
    leave(folder, "run.json", {"plan": asdict(plan()), "delivered": False})
    assert look(place) == Earlier("finished", about["identity"], False)
    leave(folder, "run.json", {"plan": {"of": "another version"}})
    assert look(place) == Earlier("finished", None, True)


def test_an_adapter_alone_is_an_unfinished_run(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_model.safetensors").touch()
    assert look(str(tmp_path)) == Earlier("begun", None)
    (tmp_path / "plan.json").write_text(plan().to_json())
    assert look(str(tmp_path)).identity == identity.identity(plan())


def test_where_to_go_on_from_can_be_said_in_three_ways(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "file").touch()
    for number in (3, 5):
        commits.write(LocalFolder(tmp_path / "out" / "checkpoints"), tmp_path / "from", "step", number, {})
    for said, names in (("out", ["step-5", "step-3"]), ("out/checkpoints/", ["step-5", "step-3"])):
        assert [commit.name for commit in commits_at(f"{tmp_path}/{said}")[1].commits] == names
    assert [commit.name for commit in commits_at(f"{tmp_path}/out/checkpoints/step-3/")[1].commits] == ["step-3"]
    assert commits_at(f"{tmp_path}/out/checkpoints/step-4")[1].commits == ()
