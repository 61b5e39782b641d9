"""The lines and the history of training, on from an earlier start."""

from types import SimpleNamespace

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
