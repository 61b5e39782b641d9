"""Rows -> token ids and labels, once, by one process a node; the other ranks read what it wrote.

A training row is exactly `tokens(prompt) + tokens(answer + END_OF_TURN)`: tokenised apart, so that the
generation prompt is a prefix of it, token for token. Only the second part carries labels.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset

from finetune import rows as tables
from finetune.chat import END_OF_TURN_TOKEN, render
from finetune.errors import DataError, ModelError
from finetune.settings import Settings
from finetune.tasks.base import Example, Task, Unusable

IGNORED = -100
"""Label of a token that is not trained on (torch's cross-entropy default)."""
ROWS_NAMED = 5
"""So many row numbers are kept for each reason."""


@dataclass
class Dropped:
    """Rows left out for one reason; the first few by number."""

    count: int = 0
    rows: list[int] = field(default_factory=list)

    def add(self, number: int) -> None:
        self.count += 1
        if len(self.rows) < ROWS_NAMED:
            self.rows.append(number)


@dataclass
class SplitCounts:
    """`read` rows were found, `used` remain after dropping and sampling."""

    read: int
    used: int = 0
    dropped: dict[str, Dropped] = field(default_factory=dict)

    def drop(self, reason: str, number: int) -> None:
        self.dropped.setdefault(reason, Dropped()).add(number)

    def reasons(self) -> str:
        """For a message: "3 rows: sql is empty (rows 4, 9, 17)"."""
        return "; ".join(
            f"{dropped.count} rows: {reason} (row{'s' if dropped.count > 1 else ''} "
            f"{', '.join(map(str, dropped.rows))}{', ...' if dropped.count > len(dropped.rows) else ''})"
            for reason, dropped in self.dropped.items()
        )


@dataclass(frozen=True)
class Selected:
    """The usable examples of a run, chosen and in order. Not tokenised yet."""

    source: str
    train: list[Example]
    test: list[Example]
    counts: dict[str, SplitCounts]
    notes: list[str]


@dataclass(frozen=True)
class Prepared:
    """Tokenised data. `train` columns: input_ids, labels, row. `prompts[i]` are the ids of `test[i]`'s prompt."""

    train: Dataset
    prompts: list[list[int]]
    test: list[Example]
    record: dict[str, Any]


def select(task: Task, settings: Settings) -> Selected:
    """Read the data set and choose the training and held-out examples. Raises DataError if none is usable."""
    assert settings.dataset is not None, "plan.resolve names a data set"
    found = tables.read(settings.dataset, task.SOURCE, settings.seed, settings.train_size)
    notes: list[str] = []
    counts: dict[str, SplitCounts] = {}
    wanted = settings.train_size or task.SOURCE.train_size
    train = _usable(task, found.train, counts.setdefault("train", SplitCounts(len(found.train))))
    if found.test is None:
        sizes = tables.split_sizes(len(train), task.SOURCE, settings.train_size)
        order = tables.shuffled(len(train), settings.seed)
        chosen = [train[index] for index in order[: sizes.train + sizes.test]]
        train, test = chosen[: sizes.train], chosen[sizes.train :]
        counts["test"] = SplitCounts(len(test))
        notes.append(f"one table of {len(order)} usable rows: {sizes.train} to train on, {sizes.test} held out")
    else:
        test = _usable(task, found.test, counts.setdefault("test", SplitCounts(len(found.test))))
        train = [train[index] for index in tables.shuffled(len(train), settings.seed)[:wanted]]
        test = [test[index] for index in tables.shuffled(len(test), settings.seed)[: task.SOURCE.eval_size]]
    if len(train) < wanted:
        notes.append(f"{wanted} training rows wanted, {len(train)} there: all are used")
    return Selected(found.source, train, test, counts, notes)


def _usable(task: Task, numbered: Sequence[tables.Numbered], counts: SplitCounts) -> list[Example]:
    examples = []
    for item in numbered:
        example = item.row if isinstance(item.row, Unusable) else task.to_example(item.row, item.number)
        if isinstance(example, Unusable):
            counts.drop(example.reason, item.number)
        else:
            examples.append(example)
    return examples


def prepare(task: Task, settings: Settings, tokenizer: Any, *, train: bool, split: str = "test") -> Prepared:
    """Select and tokenise. With `train` False only the rows to score are tokenised, from `split`."""
    selected = select(task, settings)
    counts = selected.counts
    training: dict[str, list[Any]] = {"input_ids": [], "labels": [], "row": []}
    if train:
        for example, prompt, completion in _fitting(selected.train, tokenizer, settings.max_length, counts["train"]):
            training["input_ids"].append(prompt + completion)
            training["labels"].append([IGNORED] * len(prompt) + completion)
            training["row"].append(example.row)
        counts["train"].used = len(training["row"])
        if not training["row"]:
            why = counts["train"].reasons() or "it is empty"
            raise DataError(
                f"--dataset {selected.source}: no row is left to train on: {why}",
                f"expected rows with the columns {', '.join(task.COLUMNS)}; raise --max-length if they are too long",
            )
    scored, prompts = _to_score(selected, settings, tokenizer, split)
    lengths = [len(ids) for ids in training["input_ids"]]
    record = {
        "source": selected.source,
        **{name: asdict(count) for name, count in counts.items()},
        "tokens": sum(lengths),
        "supervised_tokens": sum(sum(label != IGNORED for label in labels) for labels in training["labels"]),
        "longest_row": max(lengths, default=0),
        "notes": selected.notes,
    }
    return Prepared(Dataset.from_dict(training), prompts, scored, record)


def _to_score(
    selected: Selected, settings: Settings, tokenizer: Any, split: str
) -> tuple[list[Example], list[list[int]]]:
    """The first eval_size held-out examples that fit, and their prompts' ids."""
    pool = selected.test if split == "test" else selected.train
    counts = selected.counts[split]
    scored: list[Example] = []
    prompts: list[list[int]] = []
    if not settings.eval_size:
        return scored, prompts
    for example, prompt, _ in _fitting(pool[: settings.eval_size], tokenizer, settings.max_length, counts):
        scored.append(example)
        prompts.append(prompt)
    counts.used = len(scored) if split == "test" else counts.used
    if not scored:
        raise DataError(
            f"--dataset {selected.source}: no {split} row is left to measure on: {counts.reasons() or 'there is none'}",
            "give more rows, or --eval-size 0 to train without measuring",
        )
    if len(pool) < settings.eval_size:
        selected.notes.append(f"--eval-size {settings.eval_size}: only {len(pool)} {split} rows there")
    return scored, prompts


def _fitting(
    examples: Sequence[Example], tokenizer: Any, max_length: int, counts: SplitCounts
) -> Iterator[tuple[Example, list[int], list[int]]]:
    """Those of `_encoded` that have at most `max_length` tokens; the others are counted as dropped, never cut."""
    for example, prompt, completion in _encoded(examples, tokenizer):
        if len(prompt) + len(completion) > max_length:
            counts.drop(f"longer than --max-length {max_length}", example.row)
        else:
            yield example, prompt, completion


def _encoded(examples: Sequence[Example], tokenizer: Any) -> list[tuple[Example, list[int], list[int]]]:
    """(example, prompt ids, completion ids) for each example. Exactly one BOS stands in front."""
    if not examples:
        return []
    rendered = [render(tokenizer, example) for example in examples]
    prompts = tokenizer([text.prompt for text in rendered], add_special_tokens=False)["input_ids"]
    completions = tokenizer([text.completion for text in rendered], add_special_tokens=False)["input_ids"]
    bos = tokenizer.bos_token_id
    return [
        (example, ids if ids[:1] == [bos] else [bos, *ids], completion)
        for example, ids, completion in zip(examples, prompts, completions, strict=True)
    ]


def check_tokenizer(tokenizer: Any) -> None:
    """Raise ModelError unless the tokenizer knows BOS and Gemma 4's end of turn as single tokens."""
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    for name, token in (("BOS", tokenizer.bos_token), ("end-of-turn", END_OF_TURN_TOKEN)):
        if token not in vocabulary:
            raise ModelError(f"the tokenizer has no {name} token ({token})", "use the tokenizer that came with Gemma 4")


def save(prepared: Prepared, folder: Path) -> None:
    """Write the training rows for the other ranks of this node. The last thing written is the marker `done`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    prepared.train.save_to_disk(str(folder / "train"))
    (folder / "prompts.json").write_text(json.dumps(prepared.prompts))
    (folder / "done").touch()


def load(folder: Path) -> tuple[Dataset, list[list[int]]]:
    """What `save` wrote: the training rows (memory-mapped) and the prompts' ids."""
    assert (folder / "done").exists(), "save() comes first, then a barrier, then load()"
    prompts: list[list[int]] = json.loads((folder / "prompts.json").read_text())
    return Dataset.load_from_disk(str(folder / "train")), prompts
