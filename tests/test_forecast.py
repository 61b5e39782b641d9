"""Time and money before a run, and what is said of them while it goes on."""

from dataclasses import replace
from typing import Any

import pytest

from finetune.forecast import Place, correction, dollars, forecast_data, forecast_time, mfu, spoken
from finetune.hardware import Gpu
from finetune.known_models import GEMMA4_31B
from finetune.sampling import Sample
from finetune.settings import DEFAULTS
from finetune.tasks import TASKS, chat, text_to_sql

H100S = tuple(Gpu(index, "NVIDIA H100 80GB HBM3", 79.6, 9.0) for index in range(8))
SAMPLE = Sample(1_000, 100, 200.0, 50.0, 0.0, 200, True)
VALUES: dict[str, Any] = {**DEFAULTS, "dataset": "rows.jsonl", "per_device_train_batch_size": 2}


def planned(place: Place, **changes: Any) -> dict[str, Any]:
    values = {**VALUES, **changes}
    data = forecast_data(text_to_sql, values, SAMPLE)  # type: ignore[arg-type]
    found = forecast_time(GEMMA4_31B, values, data, place, trains=True)
    assert found is not None
    return found


def test_time_and_money_add_up() -> None:
    time = planned(Place(H100S, H100S, 1, 32), num_train_epochs=3.0, gradient_accumulation_steps=8)
    assert time["steps"] == 3 * 8  # 1,000 rows in steps of 2 x 8 x 8
    assert time["tokens"] == time["steps"] * 128 * 250
    stages = {name: seconds for name, seconds in time["seconds"].items() if name != "total"}
    assert list(stages) == ["load", "before", "train", "after"]
    assert time["seconds"]["total"] == pytest.approx(sum(stages.values()), abs=0.1)
    assert time["dollars"] == pytest.approx(time["seconds"]["total"] / 3600 * 88.48, abs=0.01)
    assert time["peak_tflops"] == 8 * 989
    own = planned(Place(H100S, H100S, 2, 32), price_per_hour=50.0)
    assert (own["dollars_an_hour"], own["price"]) == (100.0, "by --price-per-hour")
    idle = planned(Place(H100S[:1], H100S, 1, 32), quantization="nf4")
    assert idle["dollars_an_hour"] == pytest.approx(88.48), "those that stand idle are paid for"


@pytest.mark.parametrize(("split", "asked", "measured"), [("test", 500, 100), ("test", 7, 7), ("train", 500, 500)])
def test_only_rows_that_are_there_are_measured(split: Any, asked: int, measured: int) -> None:
    values = {**VALUES, "eval_size": asked}
    data = forecast_data(text_to_sql, values, SAMPLE, split)  # type: ignore[arg-type]
    assert data is not None and data["measured"] == measured
    took = [
        forecast_time(GEMMA4_31B, values, {**data, "measured": rows}, Place(H100S, H100S, 1, 32), trains=False)
        for rows in (0, 640, 1280)
    ]
    never, once, twice = (found["seconds"].get("before", 0.0) for found in took if found)
    assert never == 0 and twice == pytest.approx(2 * once, rel=0.01)


def test_nothing_is_estimated_of_what_is_not_known() -> None:
    data = forecast_data(text_to_sql, VALUES, SAMPLE)  # type: ignore[arg-type]
    place = Place(H100S, H100S, 1, 32)
    assert forecast_time(None, VALUES, data, place, True) is None
    assert forecast_time(GEMMA4_31B, VALUES, None, place, True) is None
    strange = (Gpu(0, "Somebody's GPU", 80.0, 9.0),)
    assert forecast_time(GEMMA4_31B, VALUES, data, Place(strange, strange, 1, 32), True) is None
    assert forecast_data(text_to_sql, {**VALUES, "dataset": "someone/rows"}, None) is None  # type: ignore[arg-type]
    assert forecast_data(chat, {**VALUES, "dataset": ""}, None) is None  # type: ignore[arg-type]


def test_a_cpu_has_a_time_but_no_mfu() -> None:
    time = planned(Place((), (), 1, 4))
    assert time["peak_tflops"] is None and time["dollars"] is None and time["seconds"]["total"] > 0
    assert mfu(time, 1000.0) is None and dollars(time, 3600) is None
    assert planned(Place((), (), 1, 4), price_per_hour=0.5)["dollars"] is not None


def test_rows_are_divided_as_the_run_will_divide_them() -> None:
    undivided = replace(SAMPLE, train=100, test=None)
    for task in TASKS.values():
        data = forecast_data(task, {**VALUES, "dataset": "x"}, undivided)
        assert data is not None and data["undivided"] == 100 and data["train"] + data["test"] == 100
    data = forecast_data(text_to_sql, {**VALUES, "train_size": 30}, SAMPLE)  # type: ignore[arg-type]
    assert data is not None and (data["train"], data["test"], data["undivided"]) == (30, 100, None)
    published = forecast_data(text_to_sql, {**VALUES, "dataset": text_to_sql.SOURCE.dataset}, None)  # type: ignore[arg-type]
    assert published is not None and (published["train"], published["test"]) == (10_000, 2_500)


def test_mfu_is_what_the_model_needs_of_the_peak() -> None:
    time = {"flops_per_token": 1.2e11, "peak_tflops": 1000.0, "dollars_an_hour": 36.0}
    assert mfu(time, 2_500.0) == pytest.approx(0.3)
    assert dollars(time, 100.0) == pytest.approx(1.0)
    assert mfu(None, 1.0) is None and dollars(None, 1.0) is None


def test_measured_steps_correct_the_estimate() -> None:
    time = {"steps": 100, "seconds": {"train": 100.0, "total": 160.0}, "dollars_an_hour": 36.0}
    assert correction(time, 1.2, 100) == ""
    assert correction(time, 3.0, 100) == "a step takes 3 s, not 1 s as planned: about 6 min and $3.60 in all"
    assert correction({**time, "dollars_an_hour": None}, 0.5, 100).endswith("not 1 s as planned: about 2 min in all")
    assert correction(None, 1.0, 10) == "" == correction({**time, "steps": 0}, 1.0, 10)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (59.4, "59 s"), (60, "1 min"), (3599, "1 h 00 min"), (9060, "2 h 31 min")]
)
def test_a_time_as_exact_as_an_estimate_is(seconds: float, text: str) -> None:
    assert spoken(seconds) == text
