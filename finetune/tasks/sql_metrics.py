"""The task's metrics, for the `evaluate` library, without its Hub and without its cache on disk.

    ExecutionAccuracy().compute(predictions=["SELECT ..."], references=[{"sql": "SELECT ...", "schema": "CREATE ..."}])
    # {"execution_accuracy": 1.0, "total": 1}

Each is a share of the rows that can be scored; `total` says how many those are. A caller that wants more
than one metric judges the rows once and gives each metric the `judgements`.

Importing this module imports `evaluate` and `datasets`, which takes seconds.
"""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from finetune.tasks.sql_judge import judge
from finetune.tasks.sql_verdicts import CORRECT, UNSCORABLE, WRONG_RESULT, Judgement


class SqlMetric(evaluate.Metric):
    """The share of scorable rows whose judgement passes."""

    title: str
    """What the metric is called in a report."""

    def __init__(self) -> None:
        super().__init__(keep_in_memory=True)

    def passes(self, judgement: Judgement) -> bool:
        raise NotImplementedError

    def _info(self) -> Any:
        return evaluate.MetricInfo(
            description=self.__doc__,
            citation="",
            inputs_description="predictions: SQL texts; references: the gold SQL and its schema, row by row.",
            features=datasets.Features(
                {
                    "predictions": datasets.Value("string"),
                    "references": {"sql": datasets.Value("string"), "schema": datasets.Value("string")},
                }
            ),
        )

    def _build_data_dir(self) -> str:
        # evaluate makes this folder in the home directory even if it keeps all in memory.
        return ""

    def _compute(
        self,
        *,
        predictions: Sequence[str],
        references: Sequence[dict[str, str]],
        judgements: Sequence[Judgement] | None = None,
    ) -> dict[str, float | int]:
        if judgements is None:
            pairs = zip(predictions, references, strict=True)
            judgements = [judge(prediction, gold["sql"], gold["schema"]) for prediction, gold in pairs]
        scorable = [judgement for judgement in judgements if judgement.label != UNSCORABLE]
        passed = sum(self.passes(judgement) for judgement in scorable)
        return {self.name: passed / len(scorable) if scorable else 0.0, "total": len(scorable)}


class ExecutionAccuracy(SqlMetric):
    """Share of predictions that, when run, give what the gold gives."""

    title = "execution accuracy"

    def passes(self, judgement: Judgement) -> bool:
        return judgement.label == CORRECT


class ExactMatch(SqlMetric):
    """Share of predictions that are the gold itself, apart from formatting."""

    title = "exact match"

    def passes(self, judgement: Judgement) -> bool:
        return judgement.exact


class ValidSql(SqlMetric):
    """Share of predictions that run on the schema without an error, right or wrong."""

    title = "valid SQL"

    def passes(self, judgement: Judgement) -> bool:
        return judgement.label in (CORRECT, WRONG_RESULT)


METRICS = (ExecutionAccuracy, ExactMatch, ValidSql)
"""In the order of a score, the headline first."""
