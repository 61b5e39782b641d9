"""Which rows of a data set a run uses: usable ones, in an order from the seed alone, to train on and held out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from finetune import chat_rows, image_rows, rows
from finetune.embedded import EMBEDDED
from finetune.errors import DataError
from finetune.settings import Settings
from finetune.tasks.base import Example, Task, Unusable

ROWS_NAMED = 5
"""So many rows are named for each reason."""
CLASSES_NAMED = 10


@dataclass
class Dropped:
    """Rows left out for one reason; the first few by number, or by the name of their image."""

    count: int = 0
    rows: list[int | str] = field(default_factory=list)

    def add(self, row: int | str) -> None:
        self.count += 1
        if len(self.rows) < ROWS_NAMED:
            self.rows.append(row)


@dataclass
class SplitCounts:
    """`read` rows were found, `used` remain after dropping and sampling."""

    read: int
    used: int = 0
    dropped: dict[str, Dropped] = field(default_factory=dict)

    def drop(self, reason: str, row: int | str) -> None:
        self.dropped.setdefault(reason, Dropped()).add(row)

    def reasons(self) -> str:
        """For a message: "3 rows: sql is empty (rows 4, 9, 17)"."""
        return "; ".join(
            f"{dropped.count} rows: {reason} ({_named(dropped)}{', ...' if dropped.count > len(dropped.rows) else ''})"
            for reason, dropped in self.dropped.items()
        )


def _named(dropped: Dropped) -> str:
    names = ", ".join(map(str, dropped.rows))
    numbers = all(isinstance(row, int) for row in dropped.rows)
    return f"row{'s' if dropped.count > 1 else ''} {names}" if numbers else names


@dataclass(frozen=True)
class Selected:
    """The usable examples of a run, in order: the first that turn out to fit are taken.

    `wanted` says how many, by split. Examples beyond are there to take the place of those that do not fit.
    """

    source: str
    train: list[Example]
    test: list[Example]
    wanted: dict[str, int]
    counts: dict[str, SplitCounts]
    survey: Any
    notes: list[str]


def select(task: Task, settings: Settings, survey: Any = None) -> Selected:
    """Read the data set and order its training and held-out examples. Raises DataError.

    `survey` is what an adapter's own training data told (see Task.survey), else this data set's own is taken.
    """
    found = _read(task, settings)
    everything = [item.row for item in (*found.train, *(found.test or ())) if not isinstance(item.row, Unusable)]
    own = task.survey(everything)
    if task.STRATIFIED and len(own) < 2:
        names = f"only one class ({own[0]})" if own else "no class"
        raise DataError(f"--dataset {found.source}: {names}; expected two or more", "check --label-column")
    notes: list[str] = []
    if survey is not None and survey != own:
        notes.append("the prompt names the classes that the adapter was trained with, not those of this data set")
    survey = own if survey is None else survey
    counts: dict[str, SplitCounts] = {}
    train = _usable(task, found.train, counts.setdefault("train", SplitCounts(len(found.train))), survey)
    order = rows.arranged(len(train), settings.seed, _classes(task, train))
    train = [train[index] for index in order]
    if found.test is None:
        sizes = rows.split_sizes(len(train), task.SOURCE, settings.train_size)
        test = train[sizes.train : sizes.train + sizes.test]
        train, wanted = train[: sizes.train], sizes.train
        counts["test"] = SplitCounts(len(test))
        notes.append(f"one table of {len(order)} usable rows: {sizes.train} to train on, {sizes.test} held out")
    else:
        test = _usable(task, found.test, counts.setdefault("test", SplitCounts(len(found.test))), survey)
        test = [test[index] for index in rows.arranged(len(test), settings.seed, _classes(task, test))]
        wanted = settings.train_size or task.SOURCE.train_size
    return Selected(found.source, train, test, {"train": wanted, "test": settings.eval_size}, counts, survey, notes)


def missing_classes(names: Sequence[str], answers: set[str]) -> str | None:
    """A note on the classes of which no row is trained on, None if there is none."""
    missing = [name for name in names if name not in answers]
    if not missing:
        return None
    shown = ", ".join(missing[:CLASSES_NAMED]) + (", ..." if len(missing) > CLASSES_NAMED else "")
    return f"{len(missing)} of {len(names)} classes have no row to train on: {shown}"


def _read(task: Task, settings: Settings) -> rows.Tables:
    assert settings.dataset is not None, "plan.resolve names a data set"
    if settings.dataset == EMBEDDED:
        return rows.embedded(task.NAME, task.SOURCE, settings.seed, settings.train_size)
    if task.IMAGES:
        return image_rows.read(settings.dataset, image_rows.Columns(settings.image_column, settings.label_column))
    return chat_rows.read(settings.dataset) if task.IMAGES is None else rows.read(settings.dataset)


def _classes(task: Task, examples: Sequence[Example]) -> list[str] | None:
    return [example.answer for example in examples] if task.STRATIFIED else None


def _usable(task: Task, numbered: Sequence[rows.Numbered], counts: SplitCounts, survey: Any) -> list[Example]:
    examples = []
    for item in numbered:
        example = item.row if isinstance(item.row, Unusable) else task.to_example(item.row, item.number, survey)
        if isinstance(example, Unusable):
            counts.drop(example.reason, item.number)
        else:
            examples.append(example)
    return examples
