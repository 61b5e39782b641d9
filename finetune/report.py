"""What a run leaves behind, as plain files: run.json, metrics.json and predictions-before/after.jsonl.

For a task with images there are small ones of a few rows, too (report_images.py). Everything else that tells of a
run is made from these files alone, and can be made again: report.html (report_html.py), the adapter's model card and
the lines on the terminal at the end (report_text.py).
"""

import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.errors import DataError
from finetune.tasks import TASKS
from finetune.tasks.base import IMAGE_MARK, Confusion, Example, Message, Metric, Score
from finetune.tasks.class_tally import tally

FORMAT = 1
"""Version of run.json."""
SIDES = ("before", "after")
CLASSES = "classes.json"
"""In the adapter's folder: the classes that the prompt names, in its order."""
Z_95 = 1.959963984540054
"""97.5 % quantile of the standard normal distribution."""


@dataclass(frozen=True)
class Results:
    """A run directory, read. `before` and `after` are the rows of the predictions files, empty if not measured.

    `classes` are those that the prompt names, () for a task without.
    """

    directory: Path
    run: dict[str, Any]
    metrics: dict[str, Any]
    before: list[dict[str, Any]]
    after: list[dict[str, Any]]
    classes: tuple[str, ...] = ()


def interval(value: float, total: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share `value` seen over `total` examples, within 0 and 1.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927).
    Unlike value +- 1.96 standard errors it holds for small totals and for shares near 0 and 1. For a
    metric that is not a share of examples (macro-F1) it is an approximation. Nothing seen = (0, 1).
    """
    if total == 0:
        return 0.0, 1.0
    z2 = Z_95**2
    centre = (value + z2 / (2 * total)) / (1 + z2 / total)
    half = Z_95 / (1 + z2 / total) * math.sqrt(value * (1 - value) / total + z2 / (4 * total**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def metrics_record(task_name: str, split: str, score_before: Score | None, score_after: Score | None) -> dict[str, Any]:
    """metrics.json. A side that was not measured is null. Verdicts stand in the task's order, zeros included."""
    task = TASKS[task_name]
    scores = dict(zip(SIDES, (score_before, score_after), strict=True))
    measured = [score for score in scores.values() if score]
    return {
        "task": task_name,
        "split": split,
        "rows": len(measured[0].verdicts) if measured else 0,
        **{side: _metric_values(score) if score else None for side, score in scores.items()},
        "success": task.VERDICTS[0],
        "unscorable": task.UNSCORABLE,
        "verdicts": {side: _count_verdicts(task.VERDICTS, score) if score else None for side, score in scores.items()},
        **_class_records(scores),
    }


def _class_records(scores: Mapping[str, Score | None]) -> dict[str, Any]:
    """For a task with classes: which was taken for which, and how each fared. Pairs that never came are left out."""
    found = {side: score.confusion if score else None for side, score in scores.items()}
    first = next((confusion for confusion in found.values() if confusion), None)
    if first is None:
        return {}
    return {
        "classes": list(first.classes),
        "others": list(first.others),
        "confusion": {side: _pairs(confusion) if confusion else None for side, confusion in found.items()},
        "per_class": {side: _by_class(confusion) if confusion else None for side, confusion in found.items()},
    }


def _pairs(confusion: Confusion) -> list[dict[str, Any]]:
    place = {name: index for index, name in enumerate((*confusion.classes, *confusion.others))}
    pairs = sorted(confusion.counts.items(), key=lambda item: (place[item[0][0]], place[item[0][1]]))
    return [{"expected": expected, "answered": answered, "rows": rows} for (expected, answered), rows in pairs]


def _by_class(confusion: Confusion) -> list[dict[str, Any]]:
    return [
        {"class": name, "rows": one.rows, "precision": one.precision, "recall": one.recall, "f1": one.f1}
        for name, one in tally(confusion).items()
    ]


def _metric_values(score: Score) -> dict[str, dict[str, Any]]:
    values: dict[str, dict[str, Any]] = {}
    for metric in score.metrics:
        low, high = interval(metric.value, metric.total) if not metric.unit else _normal(metric)
        values[metric.name] = {"value": metric.value, "total": metric.total, "low": low, "high": high}
        values[metric.name] |= {"unit": metric.unit} if metric.unit else {}
    return values


def _normal(metric: Metric) -> tuple[float, float]:
    """The 95 % interval of a number with a standard error."""
    return metric.value - Z_95 * metric.error, metric.value + Z_95 * metric.error


def _count_verdicts(labels: Sequence[str], score: Score) -> dict[str, int]:
    counts = Counter(verdict.label for verdict in score.verdicts)
    return {label: counts[label] for label in labels}


def write_run(run_dir: Path, record: Mapping[str, Any]) -> None:
    """Write run.json. Numbers that are none (a loss that became NaN) are written as null."""
    write_json(run_dir / "run.json", finite({"format": FORMAT, **record}))


def mark_delivered(run_dir: Path, delivered: bool) -> None:
    """Note in run.json whether the results are where they should go."""
    run = _read_json(run_dir / "run.json")
    write_json(run_dir / "run.json", {**run, "delivered": delivered})


def finite(data: Any) -> Any:
    """`data` with every NaN and infinity, which JSON does not know, replaced by None. Tuples become lists."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return data


def write_json(path: Path, data: Any) -> None:
    """Write `data` as readable UTF-8 JSON. Raises ValueError for NaN and infinity (see `finite`)."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_predictions(path: Path, examples: Sequence[Example], completions: Sequence[str], score: Score) -> None:
    """Write one JSON line an example: what was asked, what was expected, what came, what it was judged to be."""
    lines = []
    for example, completion, verdict in zip(examples, completions, score.verdicts, strict=True):
        record = {
            "row": example.row,
            "prompt": [_turn(message) for message in example.prompt],
            "images": [picture.name for picture in example.images],
            "context": dict(example.context),
            "answer": example.answer,
            "completion": completion,
            "verdict": verdict.label,
            "detail": verdict.detail,
        }
        lines.append(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    write_text(path, "".join(lines))


def _turn(message: Message) -> dict[str, str]:
    return {"role": message.role, "content": message.content.replace(IMAGE_MARK, "[image]")}


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all: a run that is killed half-way leaves the old file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        # A data set may hold half a surrogate pair, which UTF-8 cannot. \udXXX is what JSON writes for it.
        file.write(text.encode("utf-8", "backslashreplace"))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read_results(run_dir: Path) -> Results:
    """Read a run directory. Metrics and predictions may be missing (a run that failed early), run.json may not."""
    run = _read_json(run_dir / "run.json")
    if run is None:
        raise DataError(f"{run_dir} has no run.json", "give the directory that a run wrote (its --output-dir)")
    if run.get("format") != FORMAT:
        raise DataError(
            f"{run_dir / 'run.json'} has format {run.get('format')!r}, expected {FORMAT}",
            "read it with the version that wrote it",
        )
    metrics = _read_json(run_dir / "metrics.json") or metrics_record(
        run["plan"]["settings"]["task"], "test", None, None
    )
    before, after = (_read_lines(run_dir / f"predictions-{side}.jsonl") for side in SIDES)
    # What was not measured is not in metrics.json.
    classes = metrics.get("classes") or _read_json(run_dir / "adapter" / CLASSES, list) or ()
    return Results(run_dir, run, metrics, before, after, tuple(classes))


def _read_json(path: Path, kind: type = dict) -> Any:
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}", "a run writes it whole: was it edited?") from error
    if not isinstance(data, kind):
        raise DataError(f"{path} holds a {type(data).__name__}, expected a {kind.__name__}", "was it edited?")
    return data


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
