"""The metrics of a classification, for the `evaluate` library, without its Hub and without its cache on disk.

    Accuracy(("Birman", "Ragdoll")).compute(predictions=["It is a Birman."], references=["Birman"])
    # {"accuracy": 1.0, "total": 1}

Each is over all rows; `total` says how many those are. A caller that wants more than one metric reads the
answers once and gives each metric the `confusion`.

Importing this module imports `evaluate` and `datasets`, which takes seconds.
"""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from finetune.tasks.base import Confusion
from finetune.tasks.class_names import read
from finetune.tasks.class_tally import confuse, tally


class ClassMetric(evaluate.Metric):
    """A number of a confusion of classes."""

    title: str
    """What the metric is called in a report."""

    def __init__(self, classes: Sequence[str]) -> None:
        """`classes` are all that may be right or answered, each as the references write it."""
        super().__init__(keep_in_memory=True)
        self.classes = tuple(classes)

    def value(self, confusion: Confusion, total: int) -> float:
        """The metric over `total` rows, which are at least one."""
        raise NotImplementedError

    def _info(self) -> Any:
        return evaluate.MetricInfo(
            description=self.__doc__,
            citation="",
            inputs_description="predictions: what was generated; references: the right classes, row by row.",
            features=datasets.Features(
                {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
            ),
        )

    def _build_data_dir(self) -> str:
        # evaluate makes this folder in the home directory even if it keeps all in memory.
        return ""

    def _compute(
        self, *, predictions: Sequence[str], references: Sequence[str], confusion: Confusion | None = None
    ) -> dict[str, float | int]:
        if confusion is None:
            confusion = confuse(self.classes, references, [read(text, self.classes) for text in predictions])
        total = len(references)
        return {self.name: self.value(confusion, total) if total else 0.0, "total": total}


class Accuracy(ClassMetric):
    """Share of answers that name the right class and no other."""

    title = "accuracy"

    def value(self, confusion: Confusion, total: int) -> float:
        return sum(confusion.counts.get((name, name), 0) for name in confusion.classes) / total


class MacroF1(ClassMetric):
    """Mean of the classes' F1, of those that occur among the references or the answers, as scikit-learn takes it.

    An answer that names no class, or several, counts against the right class and against no other.
    """

    title = "macro-F1"

    def value(self, confusion: Confusion, total: int) -> float:
        values = [one.f1 for one in tally(confusion).values() if one.f1 is not None]
        return sum(values) / len(values)


class UnknownRate(ClassMetric):
    """Share of answers that name no class."""

    title = "unknown rate"

    def value(self, confusion: Confusion, total: int) -> float:
        unknown = confusion.others[-1]
        return sum(count for (_, answer), count in confusion.counts.items() if answer == unknown) / total


METRICS = (Accuracy, MacroF1, UnknownRate)
"""In the order of a score, the headline first."""
