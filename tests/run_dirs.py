"""Run directories like those that a run leaves, for the tests of the reports and for looking at them."""

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from finetune import report, report_html, report_images
from finetune.hardware import Machine
from finetune.plan import Launch, Plan
from finetune.settings import Settings
from finetune.tasks import pets, text_to_sql
from finetune.tasks.base import Example, Metric, Score, Unusable, Verdict

TABLES = (
    (
        "rivers",
        "name TEXT, length_km INTEGER, country TEXT",
        "name",
        "length_km",
        "Which rivers are longer than {} km?",
    ),
    ("crews", "captain TEXT, ships INTEGER, port TEXT", "captain", "ships", "Who are the captains of over {} ships?"),
    (
        "bakeries",
        "owner TEXT, loaves INTEGER, town TEXT",
        "owner",
        "loaves",
        "Name owners that bake more than {} loaves.",
    ),
)


def make_examples(count: int) -> list[Example]:
    """Rows as the task makes them."""
    examples = []
    for number in range(count):
        table, columns, shown, compared, question = TABLES[number % len(TABLES)]
        bound = 10 + number * 7 % 90
        rows = ", ".join(f"('{table} {i}', {i * 13 % 100}, 'place {i}')" for i in range(6))
        example = text_to_sql.to_example(
            {
                "sql_prompt": question.format(bound),
                "sql_context": f"CREATE TABLE {table} ({columns}); INSERT INTO {table} VALUES {rows};",
                "sql": f"SELECT {shown} FROM {table} WHERE {compared} > {bound}",
            },
            number + 1,
        )
        assert not isinstance(example, Unusable)
        examples.append(example)
    return examples


def make_answers(examples: list[Example], right: int, shift: int = 0) -> tuple[list[str], Score]:
    """Answers of which about `right` % are correct, and others of every kind; every 25th is unscorable."""
    completions, verdicts = [], []
    for place, example in enumerate(examples):
        if place % 25 == 24:
            completion, verdict = example.answer, Verdict("unscorable", "the expected query does not run")
        elif (place * 37 + shift) % 100 < right:
            completion, verdict = example.answer, Verdict("correct")
        elif place % 3 == 0:
            completion, verdict = example.answer.replace(">", ">="), Verdict("wrong result", "3 rows, expected 2")
        elif place % 3 == 1:
            completion = example.answer.replace("SELECT", "SELECT missing,")
            verdict = Verdict("does not execute", "no such column: missing")
        else:
            completion, verdict = "from rivers | take 3", Verdict("not SQL", "unexpected token at 'from'")
        completions.append(completion)
        verdicts.append(verdict)
    counted = [verdict.label for verdict in verdicts if verdict.label != "unscorable"]
    valid = sum(label in ("correct", "wrong result") for label in counted)
    metrics = (
        Metric("execution_accuracy", counted.count("correct") / len(counted), len(counted)),
        Metric("exact_match", counted.count("correct") / len(counted) * 0.9, len(counted)),
        Metric("valid_sql", valid / len(counted), len(counted)),
    )
    return completions, Score(metrics, tuple(verdicts))


def make_record(settings: Settings, steps: int = 250, **changes: Any) -> dict[str, Any]:
    """run.json as the worker writes it."""
    plan = Plan(
        command="run",
        settings=settings,
        sources={"model_id": "flag", "learning_rate": "env", "lora_r": "profile", "max_length": "task"},
        profile="cpu",
        reason="no NVIDIA GPU was found",
        launch=Launch("cpu.yaml", 1, fsdp=False, use_cpu=True, bf16=False),
        machine=asdict(Machine((), None, 2, 15.6, "no NVIDIA driver here")),
        notes=("save_strategy is ignored: a run this short keeps no checkpoints",),
    )
    history = [
        {
            "step": step,
            "epoch": step / 125,
            "loss": 0.12 + 2.2 * math.exp(-step / 45) + 0.05 * math.sin(step),
            "learning_rate": 1e-3 * min(1.0, step / 30),
            "grad_norm": 0.4 + 1.5 * math.exp(-step / 30) + 0.2 * math.cos(step),
            "tokens_per_second": 7100.0 + 150 * math.sin(step / 20),
        }
        for step in range(5, steps + 1, 5)
    ]
    dropped = {"sql is empty": {"count": 10, "rows": [3, 17, 40, 41, 77]}, "sql is missing": {"count": 1, "rows": [9]}}
    record = {
        "command": "run",
        "status": "finished",
        "started": "2026-05-04T09:12:30+00:00",
        "finished": "2026-05-04T09:14:05+00:00",
        "versions": {"python": "3.11.9", "torch": "2.14.1", "transformers": "5.24.0", "peft": "0.21.2"},
        "machine": plan.machine,
        "plan": asdict(plan),
        "seed": settings.seed,
        "data": {
            "source": "embedded",
            "train": {"read": 2011, "used": 2000, "dropped": dropped},
            "test": {"read": 500, "used": 200, "dropped": {}},
            "tokens": 250_000,
            "supervised_tokens": 60_000,
            "longest_row": 180,
            "notes": ["2000 training rows wanted, 2000 there"],
        },
        "model": {
            "architecture": "Gemma4ForConditionalGeneration",
            "parameters": 1_623_456,
            "trainable": 123_456,
            "adapted_modules": 28,
            "adapted_by_part": {"text": 28, "vision": 0, "audio": 0},
            "dtypes": {"float32": {"tensors": 160, "bytes": 6_493_824}},
        },
        "seconds": {"load": 3.2, "before": 11.0, "train": 70.1, "save": 0.2, "after": 10.0, "total": 95.0},
        "training": {
            "steps": steps,
            "epochs": 2.0,
            "tokens": 500_000,
            "tokens_per_second": 7132.5,
            "final_loss": 0.1,
            "history": history,
        },
    }
    return record | changes


@dataclass(frozen=True)
class Painted:
    """A picture of one colour."""

    name: str
    size: tuple[int, int] = (200, 150)

    def open(self) -> Image.Image:
        hue = sum(map(ord, self.name)) * 37 % 256
        return Image.new("HSV", self.size, (hue, 120, 200)).convert("RGB")


def make_classes(count: int) -> tuple[str, ...]:
    """Names of classes, some of two words, some long."""
    first = (
        "Amber",
        "Bombay",
        "Cloudy",
        "Dover",
        "Egyptian",
        "Frisian",
        "Grey-backed",
        "Hungarian",
        "Icelandic",
        "Jade",
    )
    second = ("Cat", "Wirehaired Pointing Dog", "Owl", "Newt", "Otter", "Shorthair", "Toad", "Wren", "Yak", "Zander")
    names = [f"{first[place % 10]} {second[place // 10 % 10]}{place // 100 or ''}" for place in range(count)]
    return pets.survey({"label": name} for name in names)


def make_pictures(classes: Sequence[str], each: int = 20) -> list[Example]:
    """Rows of pictures as the task makes them, `each` of every class."""
    found = []
    for number in range(len(classes) * each):
        name = classes[number % len(classes)]
        picture = Painted(
            f"images/{name.replace(' ', '_')}_{number // len(classes) + 1}.jpg", (200 + number % 3 * 60, 200)
        )
        example = pets.to_example({"image": picture, "label": name}, number + 1, tuple(classes))
        assert isinstance(example, Example)
        found.append(example)
    return found


def name_classes(examples: Sequence[Example], right: int, seed: int = 0) -> list[str]:
    """Answers of which about `right` % are the class; the others are a neighbour, several classes, or none."""
    classes = pets.classes_of(examples[0].prompt[-1].content) if examples else ()
    chance, answers = random.Random(seed), []
    for example in examples:
        own = classes.index(example.answer)
        near, far = classes[(own + 1) % len(classes)], chance.choice(classes)
        other = (near, near, far, f"{near} or {example.answer}", "A photo of an animal that looks at the camera.")
        weights = (right, right, right, right / 3, 400 - 3 * right)
        wrong = chance.choices(other, weights)[0]
        answers.append(example.answer if chance.random() < (right - own % 5 * 4) / 100 else wrong)
    return answers


def make_pets_run(
    run_dir: Path,
    *,
    classes: int = 37,
    each: int = 20,
    sides: tuple[str, ...] = ("before", "after"),
    settings: Settings | None = None,
    thumbnails: bool = True,
    **changes: Any,
) -> Path:
    """A run directory of the task with pictures, like a real one."""
    settings = settings or Settings(
        task="pets", dataset="embedded", eval_size=classes * each, lora_targets="all-linear"
    )
    examples = make_pictures(make_classes(classes), each)
    scores: dict[str, Score | None] = {"before": None, "after": None}
    for side, right in (("before", 6), ("after", 88)):
        if side in sides:
            completions = name_classes(examples, right)
            scores[side] = score = pets.score(examples, completions)
            report.write_predictions(run_dir / f"predictions-{side}.jsonl", examples, completions, score)
    report.write_json(
        run_dir / "metrics.json", report.metrics_record("pets", "test", scores["before"], scores["after"])
    )
    report.write_run(run_dir, make_record(settings, **changes))
    report.write_json(run_dir / "adapter" / report.CLASSES, make_classes(classes))
    if thumbnails:
        shown = set(report_html.shown_rows(report.read_results(run_dir)))
        pictures = {example.row: example.images[0].open for example in examples if example.row in shown}
        report_images.write_thumbnails(run_dir, pictures)
    return run_dir


def make_run(
    run_dir: Path,
    *,
    rows: int = 200,
    sides: tuple[str, ...] = ("before", "after"),
    settings: Settings | None = None,
    examples: list[Example] | None = None,
    **changes: Any,
) -> Path:
    """A run directory like a real one."""
    settings = settings or Settings(dataset="embedded", learning_rate=1e-3)
    examples = examples or make_examples(rows)
    scores: dict[str, Score | None] = {"before": None, "after": None}
    for side, right, shift in (("before", 4, 17), ("after", 76, 0)):
        if side in sides:
            completions, scores[side] = make_answers(examples, right, shift)
            path = run_dir / f"predictions-{side}.jsonl"
            report.write_predictions(path, examples, completions, scores[side])
    report.write_json(
        run_dir / "metrics.json", report.metrics_record("text-to-sql", "test", scores["before"], scores["after"])
    )
    report.write_run(run_dir, make_record(settings, **changes))
    return run_dir
