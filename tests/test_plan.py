"""plan.py and describe.py: plan.json, written and read strictly, and the plan in prose."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finetune.describe import describe
from finetune.errors import UsageError
from finetune.plan import Plan
from finetune.profiles import EMBEDDED
from finetune.request import Request
from finetune.settings import OPTIONS
from tests.machines import NO_GPU, machine
from tests.test_resolve import ask, settle


@pytest.mark.parametrize("on", ["b200x8", "rtx-pro-server", "mixed", "mig", "none"])
def test_a_plan_survives_its_file(on: str) -> None:
    plan = settle(Request(), machine(on))
    again = Plan.from_json(plan.to_json())
    assert again.to_json() == plan.to_json()
    assert (again.settings, again.launch, again.notes) == (plan.settings, plan.launch, plan.notes)


def edited(**changes: Any) -> str:
    """plan.json with a value changed, added, or (None) taken out, by dotted path."""
    data: dict[str, Any] = json.loads(settle(Request(), machine("b200x8")).to_json())
    for path, value in changes.items():
        *blocks, key = path.split("__")
        place = data
        for block in blocks:
            place = place[block]
        if value is None:
            del place[key]
        else:
            place[key] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("{", "the plan is not JSON: line 1", "plan --json"),
        ("[]", "the plan is not a JSON object but list", "plan --json"),
        ("{}", "the plan has format None; this version reads format 1", "plan --json"),
        (edited(format=2), "the plan has format 2", "plan --json"),
        (edited(settngs={}), "the plan has an unknown key 'settngs'", "did you mean settings?"),
        (edited(settings__lora_rank=3), "the plan's settings has an unknown key 'lora_rank'", "did you mean lora_"),
        (edited(settings__lora_r=None), "the plan's settings lacks lora_r", "plan --json"),
        (edited(settings__lora_r="16"), "the plan's settings: lora_r is '16'; expected int", "plan --json"),
        (edited(settings__merge=1), "the plan's settings: merge is 1; expected bool", "plan --json"),
        (edited(settings__lora_r=True), "the plan's settings: lora_r is True; expected int", "plan --json"),
        (edited(settings=3), "the plan's settings is not a JSON object but int", "plan --json"),
        (edited(launch__num_processes="8"), "the plan's launch: num_processes is '8'; expected int", "plan --json"),
        (edited(launch__fsdp=None), "the plan's launch lacks fsdp", "plan --json"),
        (edited(launch__gpus=3), "the plan has 3 where a list is expected", "plan --json"),
        (edited(launch=None), "the plan lacks launch", "plan --json"),
        (edited(machine__gpus=[{"index": 0}]), "a GPU of the plan lacks name", "plan --json"),
        (edited(command="train"), "the plan: command is 'train'; expected run or evaluate", "plan --json"),
    ],
)
def test_a_plan_file_is_read_strictly(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        Plan.from_json(text)
    assert message in raised.value.message
    assert hint in raised.value.hint


def test_the_plan_in_prose_fits_a_screen_and_says_why() -> None:
    for on in ("b200x8", "b200x4", "rtx-pro-server", "a100-40x2", "mig", "mixed", "none"):
        text = describe(settle(Request(), machine(on)))
        assert len(text.splitlines()) < 60
        assert max(len(line) for line in text.splitlines() if "accel_configs" not in line) <= 100
    text = " ".join(describe(settle(ask(lora_dropout=0.1), machine("b200x8"))).split())
    for words in (
        "8 x NVIDIA B200 (179.1 GiB each), driver 580.95.05",
        "b200x8: found 8 x NVIDIA B200",
        "google/gemma-4-31B-it in bf16, sharded over 8 GPUs",
        "the vision tower is never adapted",
        "text: 410 modules, 122,429,440 parameters",
        "2 a GPU x 32 micro-batches x 8 GPUs = 512 rows a step",
        "10,000 rows to train on, 2,500 held out",
        "200 rows, before and after training",
        "--num_processes 8",
        "lora_dropout 0.1 (flag)",
        "gradient_accumulation_steps 32 (profile)",
    ):
        assert words in text


def test_the_plan_of_an_evaluation_in_prose() -> None:
    request = Request(command="evaluate", adapter="/a", adapter_base=EMBEDDED, split="train")
    text = describe(settle(request, NO_GPU, {"adapter": "/a"}))
    assert "evaluate, task text-to-sql" in text
    assert "with the adapter /a" in text
    assert "embedded, train rows" in text
    assert "rows a step" not in text


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        (138, "138 rows, before"),
        (0, "nothing: the data has no test rows"),
        (None, "200 rows"),
    ],
)
def test_no_more_rows_are_measured_than_are_held_out(measured: int | None, words: str) -> None:
    plan = settle(Request(), machine("b200x8"))
    assert plan.data is not None
    data = None if measured is None else {**plan.data, "measured": measured}
    (line,) = (line for line in describe(replace(plan, data=data)).splitlines() if line.startswith("measures"))
    assert line.removeprefix("measures").strip().startswith(words)


def test_an_evaluation_on_training_rows_needs_none_held_out() -> None:
    plan = settle(Request(), machine("b200x8"))
    assert plan.data is not None
    on_train = replace(plan, command="evaluate", split="train", data={**plan.data, "test": 0})
    assert "200 rows, answers" in describe(on_train)


def test_no_secret_can_enter_a_plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-value")
    plan = settle(ask(push_to_hub="true"), machine("b200x8"), {"has_token": True})
    assert "secret-value" not in plan.to_json()
    assert not any("token" in name and name != "max_new_tokens" for name in OPTIONS)
