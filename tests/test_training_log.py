"""The lines and the history of training, on from an earlier start."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from finetune import training_log
from finetune.training_log import ProgressLines


def test_the_first_line_after_a_resume_counts_the_tokens_of_this_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter((100.0, 200.0, 202.0))
    monkeypatch.setattr(training_log, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    progress, earlier = ProgressLines(), {"step": 10, "loss": 2.0}
    progress.go_on([earlier], tokens=5000)
    state = SimpleNamespace(global_step=14, max_steps=40, is_world_process_zero=True)
    progress.on_train_begin(None, state, None)
    state.global_step = 20
    progress.on_log(None, state, None, {"loss": 1.5, "learning_rate": 1e-4, "num_tokens": 5600.0})
    assert [entry["step"] for entry in progress.history] == [10, 20]
    assert progress.history[1]["tokens_per_second"] == 300
    assert "300 tokens/s  00:06 left" in capsys.readouterr().err


PLANNED: dict[str, Any] = {
    "steps": 40,
    "seconds": {"load": 60.0, "train": 400.0, "total": 460.0},
    "flops_per_token": 2e11,
    "peak_tflops": 1000.0,
    "dollars_an_hour": 36.0,
}
"""10 s a step, and a cent for each second."""


def logged(
    planned: dict[str, Any] | None, times: Sequence[float], monkeypatch: pytest.MonkeyPatch, spent: float = 90.0
) -> ProgressLines:
    """A training whose steps are logged at these times, 1,000 tokens each."""
    clock = iter((0.0, 0.0, *times))
    monkeypatch.setattr(training_log, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    progress = ProgressLines(planned, lambda: spent)
    state = SimpleNamespace(global_step=0, max_steps=40, is_world_process_zero=True)
    progress.on_train_begin(None, state, None)
    for step in range(1, len(times) + 1):
        state.global_step = step
        progress.on_log(None, state, None, {"loss": 1.0, "learning_rate": 1e-4, "num_tokens": 1_000.0 * step})
    return progress


def test_a_line_has_the_share_of_the_peak_and_what_has_been_spent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logged(PLANNED, (2.0,), monkeypatch)
    (line,) = capsys.readouterr().err.strip().splitlines()
    # 500 tokens/s of 2e11 operations each, of 1e15 a second; 90 s at $36 an hour
    assert line.endswith("500 tokens/s  MFU 10.0%  01:18 left  $0.90 so far")


def test_the_plan_is_corrected_once_by_the_first_steps_but_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logged(PLANNED, (60.0, 65.0, 71.0), monkeypatch)
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 4, "said once"
    assert lines[2].strip() == "a step takes 5 s, not 10 s as planned: about 4 min and $2.60 in all"


@pytest.mark.parametrize(("planned", "times"), [(PLANNED, (60.0, 69.0, 79.0)), (None, (60.0, 65.0))])
def test_nothing_is_corrected_where_it_is_as_planned_or_nothing_was(
    planned: dict[str, Any] | None,
    times: Sequence[float],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    logged(planned, times, monkeypatch)
    said = capsys.readouterr().err
    assert "planned" not in said and ("MFU" in said) is (planned is not None)
