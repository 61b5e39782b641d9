"""Rows -> token ids and labels, once, by one process a node; the other ranks read what it wrote.

Images are no part of that: they are read when a batch needs them, from where they are.
"""

import hashlib
import json
import pickle
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from finetune import data_report
from finetune.encode import Encoded, TrainingRow, sequences, take
from finetune.errors import DataError
from finetune.reader import Reader
from finetune.sampling import ENDING_TOKENS
from finetune.selection import Selected, missing_classes, select
from finetune.settings import Settings
from finetune.tasks.base import Example, Picture, Task

Pictures = list[tuple[Picture, ...]]
Held = tuple[TrainingRow, tuple[Picture, ...]]
"""A row with its images."""


@dataclass(frozen=True)
class Prompts:
    """What the model is asked: token ids, generation prompt included, and the images of each."""

    ids: list[list[int]]
    pictures: Pictures

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Prepared:
    """Tokenised data. `train` columns: input_ids, labels, row. `pictures[i]` are the images of its i-th row, and
    `prompts` are those of `test`. `held_out` are the rows that training would make of `test`, with their images."""

    train: Dataset
    pictures: Pictures
    prompts: Prompts
    held_out: list[Held]
    test: list[Example]
    survey: Any
    record: dict[str, Any]


def prepare(
    task: Task, settings: Settings, reader: Reader, *, train: bool, split: str = "test", survey: Any = None
) -> Prepared:
    """Select and tokenise. With `train` False only the rows to score are tokenised, from `split`."""
    selected = select(task, settings, survey)
    counts = selected.counts["train"]
    rows: list[Encoded] = []
    if train:
        rows = take(selected.train, selected.wanted["train"], reader, settings.max_length, counts)
        counts.used = len(rows)
        if not rows:
            columns = ", or ".join(", ".join(layout) for layout in task.LAYOUTS)
            raise DataError(
                f"--dataset {selected.source}: no row is left to train on: {counts.reasons() or 'it is empty'}",
                f"expected rows with the columns {columns}; raise --max-length if they are too long",
            )
        published = task.SOURCE.train_size if settings.dataset == task.SOURCE.dataset else 0
        wanted = settings.train_size or published
        if len(selected.train) < wanted:
            selected.notes.append(f"{wanted} training rows wanted, {len(selected.train)} there: all are used")
        if task.STRATIFIED:
            missing = missing_classes(selected.survey, {row.example.answer for row in rows})
            selected.notes.extend([missing] if missing else [])
    scored = _to_score(selected, settings, reader, split)
    left_out = [f"{name}: left out {count.reasons()}" for name, count in selected.counts.items() if count.dropped]
    made = [(row.example, sequence) for row in rows for sequence in sequences(row)]
    dataset = Dataset.from_dict(
        {
            "input_ids": [sequence.ids for _, sequence in made],
            "labels": [sequence.labels for _, sequence in made],
            "row": [example.row for example, _ in made],
        }
    )
    if len(made) > len(rows):
        note = f"{len(rows)} conversations are trained on as {len(made)} rows: this chat template has each answer apart"
        selected.notes.append(note)
    lengths = [len(sequence.ids) for _, sequence in made]
    record = {
        "source": selected.source,
        **{name: asdict(count) for name, count in selected.counts.items()},
        "tokens": sum(lengths),
        "supervised_tokens": sum(len(turn.completion) for row in rows for turn in row.turns),
        "longest_row": max(lengths, default=0),
        "fingerprint": _fingerprint(sequence for _, sequence in made),
        "notes": [*selected.notes, *left_out],
        "report": data_report.look_at(rows, scored if split == "test" else [], selected.counts) if rows else None,
    }
    prompts = Prompts([row.prompt for row in scored], [row.example.images for row in scored])
    pictures = [example.images[: sequence.images] for example, sequence in made]
    held_out = _held_out(scored) if task.TOKEN_LOSS else []
    return Prepared(dataset, pictures, prompts, held_out, [row.example for row in scored], selected.survey, record)


def _held_out(scored: list[Encoded]) -> list[Held]:
    return [(sequence, row.example.images[: sequence.images]) for row in scored for sequence in sequences(row)]


def _fingerprint(rows: Iterable[TrainingRow]) -> str:
    """A hash of what is trained on, in its order: whether two runs have the same rows."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps([row.ids, row.labels]).encode())
    return digest.hexdigest()


def _to_score(selected: Selected, settings: Settings, reader: Reader, split: str) -> list[Encoded]:
    """The first eval_size held-out examples that fit."""
    if not settings.eval_size:
        return []
    pool = selected.test if split == "test" else selected.train
    counts = selected.counts[split]
    scored = take(pool, settings.eval_size, reader, settings.max_length, counts)
    counts.used = len(scored) if split == "test" else counts.used
    if not scored:
        raise DataError(
            f"--dataset {selected.source}: no {split} row is left to measure on: {counts.reasons() or 'there is none'}",
            "give more rows, or --eval-size 0 to train without measuring",
        )
    if len(pool) < settings.eval_size:
        selected.notes.append(f"--eval-size {settings.eval_size}: only {len(pool)} {split} rows there")
    longer = sum(len(row.completion) - ENDING_TOKENS > settings.max_new_tokens for row in scored)
    if longer:
        selected.notes.append(
            f"{longer} of the {len(scored)} rows to measure on have an answer longer than --max-new-tokens"
            f" {settings.max_new_tokens}: the model's is cut off there"
        )
    return scored


def save(prepared: Prepared, folder: Path) -> None:
    """Write what the other ranks of this node need. The last thing written is the marker `done`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    prepared.train.save_to_disk(str(folder / "train"))
    # Pictures are places, not pixels. A data set that holds images is pickled as the paths of its files.
    (folder / "rest.pickle").write_bytes(pickle.dumps((prepared.pictures, prepared.prompts, prepared.held_out)))
    (folder / "done").touch()


def load(folder: Path) -> Prepared:
    """What `save` wrote: the training rows (memory-mapped) and the prompts. The examples are not in it."""
    assert (folder / "done").exists(), "save() comes first, then a barrier, then load()"
    pictures, prompts, held_out = pickle.loads((folder / "rest.pickle").read_bytes())
    return Prepared(Dataset.load_from_disk(str(folder / "train")), pictures, prompts, held_out, [], None, {})
