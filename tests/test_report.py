"""The files that a run leaves."""

import json
import math
from pathlib import Path

import pytest

from finetune import report
from finetune.errors import DataError
from finetune.tasks.base import Example, Metric, Score, Verdict
from tests.run_dirs import make_examples


@pytest.mark.parametrize(
    ("value", "total", "low", "high"),
    [  # the last but one and two: R. G. Newcombe, Statistics in Medicine 17 (1998), table I
        (0.5, 10, 0.2366, 0.7634),
        (0.0, 10, 0.0, 0.2775),
        (1.0, 10, 0.7225, 1.0),
        (81 / 263, 263, 0.2553, 0.3662),
        (15 / 148, 148, 0.0624, 0.1605),
        (0.0, 0, 0.0, 1.0),
    ],
)
def test_interval_is_wilsons(value: float, total: int, low: float, high: float) -> None:
    assert report.interval(value, total) == pytest.approx((low, high), abs=5e-5)


def test_metrics_record_counts_every_label_in_the_tasks_order() -> None:
    score = Score((Metric("accuracy", 0.5, 2),), (Verdict("not SQL"), Verdict("correct"), Verdict("unscorable")))
    record = report.metrics_record("text-to-sql", "test", None, score)
    assert record["before"] is None and record["verdicts"]["before"] is None
    assert list(record["verdicts"]["after"].items()) == [
        ("correct", 1),
        ("wrong result", 0),
        ("does not execute", 0),
        ("not SQL", 1),
        ("unscorable", 1),
    ]
    assert record["rows"] == 3
    assert record["after"]["accuracy"]["total"] == 2
    assert 0 < record["after"]["accuracy"]["low"] < 0.5 < record["after"]["accuracy"]["high"] < 1


def test_json_is_whole_or_absent_and_has_no_nan(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    report.write_json(path, {"name": "größer"})
    with pytest.raises(ValueError, match="JSON compliant"):
        report.write_json(path, {"loss": math.nan})
    assert "größer" in path.read_text(encoding="utf-8")
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_run_json_says_null_for_a_loss_that_is_no_number(tmp_path: Path) -> None:
    report.write_run(tmp_path, {"training": {"history": ({"loss": math.nan}, {"loss": math.inf}, {"loss": 1.5})}})
    run = json.loads((tmp_path / "run.json").read_text())
    assert [entry["loss"] for entry in run["training"]["history"]] == [None, None, 1.5]


def test_predictions_survive_any_text(tmp_path: Path) -> None:
    awkward = "a\u2028b\r\nc \ud800 \x00 </script>"
    example = Example(7, make_examples(1)[0].prompt, awkward, context={"schema": awkward})
    score = Score((Metric("accuracy", 0.0, 1),), (Verdict("not SQL", awkward),))
    report.write_predictions(tmp_path / "p.jsonl", [example], [awkward], score)
    (line,) = (tmp_path / "p.jsonl").read_bytes().splitlines()
    record = json.loads(line)
    assert record["answer"] == record["completion"] == record["detail"] == record["context"]["schema"] == awkward
    assert record["row"] == 7 and record["prompt"][-1]["role"] == "user"


def test_a_directory_that_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no run\.json"):
        report.read_results(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        report.read_results(tmp_path)
    (tmp_path / "run.json").write_text('{"format": 99}')
    with pytest.raises(DataError, match="format 99"):
        report.read_results(tmp_path)
