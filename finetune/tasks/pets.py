"""Image classification by generation: a picture and the names of all classes in, one name out.

Made for the photos of 37 breeds of cats and dogs of its default data set, and for any other set of images with
labels: nothing here knows about pets. Labels may be text or numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from finetune.tasks.base import DataSource, Example, Message, Metric, Row, Score, Unusable, Verdict
from finetune.tasks.class_names import by_folded, distinct, folded, read, spoken, writable
from finetune.tasks.class_tally import AMBIGUOUS, UNKNOWN, confuse

NAME = "pets"
DESCRIPTION = "photo + names of the classes -> the name of its class"
SOURCE = DataSource(
    "timm/oxford-iiit-pet", rows=7_349, train_size=3_680, eval_size=3_669, prompt_tokens=150, answer_tokens=6
)
LAYOUTS: tuple[tuple[str, ...], ...] = (("image", "label"),)
PLACEHOLDERS: Row = {"image": "[image]", "label": "[label]"}
DEFAULTS: Mapping[str, Any] = {
    "lora_targets": "all-linear",
    "batching": "shuffled",  # rows of one length are rows of few classes: a step would see only those
    "learning_rate": 5e-5,
    "lr_scheduler_type": "linear",
    "warmup_ratio": 0.1,
    "weight_decay": 0.01,
    "max_new_tokens": 24,
    "eval_size": 740,  # 20 photos of each of 37 breeds
}
CORRECT = "correct"
WRONG = "wrong class"
VERDICTS: tuple[str, ...] = (CORRECT, WRONG, AMBIGUOUS, UNKNOWN)
UNSCORABLE: str | None = None
ROWS_PER_STEP: int | None = 16
"""As published, with the learning rate: 690 steps. Steps of 512 rows would be 22 of them."""
IMAGES: bool | None = True
STRATIFIED = True
TOKEN_LOSS = False

QUESTION = "Which of these does the picture show?\n"
REQUEST = "\nAnswer with the name alone."
NAMES_SHOWN = 5


def user_prompt(classes: Sequence[str]) -> str:
    """The user turn: the question, the names of the classes one a line, and what to write."""
    return QUESTION + "\n".join(classes) + REQUEST


def classes_of(prompt: str) -> tuple[str, ...]:
    """The names in a user turn: what `user_prompt` made it of."""
    return tuple(prompt.removeprefix(QUESTION).removesuffix(REQUEST).split("\n"))


def survey(rows: Iterable[Row]) -> tuple[str, ...]:
    """The names of all classes, in the prompt's order. Rows without a usable label are passed over."""
    labels = {_label(row) for row in rows}
    return distinct(label for label in labels if isinstance(label, str))


def to_example(row: Row, number: int, survey: tuple[str, ...] | None = None) -> Example | Unusable:
    """One picture with its label -> Example. `survey` are the classes that the prompt names."""
    assert survey, "the names of the classes are the prompt"
    picture = row.get("image")
    if picture is None:
        return Unusable("image is missing")
    label = _label(row)
    if isinstance(label, Unusable):
        return label
    answer = by_folded(survey).get(folded(label))
    if answer is None:
        return Unusable("label is none of the classes in the prompt")
    return Example(number, _prompt(survey), answer, images=(picture,))


def score(examples: Sequence[Example], completions: Sequence[str]) -> Score:
    """Judge each completion by the class that it names (class_names.read has the rules).

    The metrics are over all examples; with none they are 0 of 0. All examples have the same prompt.
    """
    # Imported late: evaluate is slow to load, and whoever only lists tasks does not need it.
    from finetune.tasks.class_metrics import METRICS

    classes = classes_of(examples[0].prompt[-1].content) if examples else ()
    predictions, references = [writable(text) for text in completions], [example.answer for example in examples]
    readings = [read(text, classes) for text in predictions]
    confusion = confuse(classes, references, readings)
    metrics = []
    for metric in (kind(classes) for kind in METRICS):
        result = metric.compute(predictions=predictions, references=references, confusion=confusion)
        metrics.append(Metric(metric.title, result[metric.name], result["total"]))
    verdicts = tuple(_verdict(right, names) for right, names in zip(references, readings, strict=True))
    return Score(tuple(metrics), verdicts, confusion)


def _verdict(right: str, names: tuple[str, ...]) -> Verdict:
    if not names:
        return Verdict(UNKNOWN)
    if len(names) > 1:
        more = ", ..." if len(names) > NAMES_SHOWN else ""
        return Verdict(AMBIGUOUS, f"names {', '.join(names[:NAMES_SHOWN])}{more}")
    return Verdict(CORRECT) if names[0] == right else Verdict(WRONG, f"read as {names[0]}")


def _label(row: Row) -> str | Unusable:
    """The row's label as a prompt writes it."""
    value = row.get("label")
    if value is None:
        return Unusable("label is missing")
    if not isinstance(value, str | int):
        return Unusable("label is not text")
    return spoken(str(value)) or Unusable("label is empty")


@lru_cache(maxsize=4)
def _prompt(classes: tuple[str, ...]) -> tuple[Message, ...]:
    """The same for every row, and kept once: with many classes and rows it would fill the memory."""
    return (Message("user", user_prompt(classes)),)
