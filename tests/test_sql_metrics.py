"""The metrics as the evaluate library knows them: by themselves, offline, nothing on disk."""

from pathlib import Path

import evaluate
import pytest

from finetune.tasks import sql_metrics
from finetune.tasks.sql_metrics import METRICS, ExactMatch, ExecutionAccuracy, ValidSql

SCHEMA = "CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (2);"
GOLD = {"sql": "SELECT a FROM t", "schema": SCHEMA}
USELESS = {"sql": "SELECT a FROM u", "schema": SCHEMA}
PREDICTIONS = ["select A from T;", "SELECT 1 UNION SELECT 2", "SELECT 3", "SELECT b FROM t", "no", "SELECT 1"]
REFERENCES = [GOLD] * 5 + [USELESS]


@pytest.mark.parametrize(
    ("metric", "name", "share"),
    [
        (ExecutionAccuracy, "execution_accuracy", 2 / 5),
        (ExactMatch, "exact_match", 1 / 5),
        (ValidSql, "valid_sql", 3 / 5),
    ],
)
def test_each_metric_is_one_of_evaluate(metric: type[sql_metrics.SqlMetric], name: str, share: float) -> None:
    assert issubclass(metric, evaluate.Metric)
    assert metric().compute(predictions=PREDICTIONS, references=REFERENCES) == {name: share, "total": 5}


def test_rows_can_be_added_one_by_one() -> None:
    metric = ExecutionAccuracy()
    for prediction, reference in zip(PREDICTIONS, REFERENCES, strict=True):
        metric.add(prediction=prediction, reference=reference)
    assert metric.compute() == {"execution_accuracy": 2 / 5, "total": 5}


def test_metrics_combine() -> None:
    result = evaluate.combine([metric() for metric in METRICS]).compute(predictions=PREDICTIONS, references=REFERENCES)
    assert (result["execution_accuracy"], result["exact_match"], result["valid_sql"]) == (2 / 5, 1 / 5, 3 / 5)


@pytest.mark.parametrize("rows", [[], [USELESS]])
def test_nothing_scorable_is_zero_of_zero(rows: list[dict[str, str]]) -> None:
    for metric in METRICS:
        result = metric().compute(predictions=["SELECT 1"] * len(rows), references=rows)
        assert sorted(result.values()) == [0, 0]


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path / "cache"))
    for metric in METRICS:
        metric().compute(predictions=PREDICTIONS, references=REFERENCES)
    assert not list(tmp_path.iterdir())
