"""A data set's size and its rows' lengths before anything is started: all rows are counted, a few are read.

What is in a bucket or on the hub is left alone, and so are large tables whose rows cannot be counted cheaply: the run
itself tells then. A row that cannot be used, or a file that cannot be read, is passed over here: rows.py judges them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from finetune import image_rows, rows
from finetune.chat_rows import with_pictures
from finetune.embedded import EMBEDDED, ROWS
from finetune.errors import DataError
from finetune.image_rows import Columns
from finetune.tasks.base import Example, Row, Task, Unusable

ROWS_READ = 200
LARGEST_READ_WHOLE = 64_000_000
"""Bytes of a table, other than .jsonl, that is read to count its rows."""
CHARACTERS_A_TOKEN = 3.5
"""Of SQL and English under Gemma's vocabulary of 262,144, roughly: for a model whose tokenizer is not here."""
OPENING_TOKENS, ENDING_TOKENS = 3, 2
"""<|turn>, the role, the line's end; and <turn|>, the line's end, which an answer is trained on to write."""
TURN_TOKENS = OPENING_TOKENS + ENDING_TOKENS
Tokens = Callable[[Sequence[str]], Sequence[int]]
"""Texts -> the number of tokens of each."""


@dataclass(frozen=True)
class Sample:
    """`train` rows, or those of the one table, which is divided when the run starts: then `test` is None.

    `prompt` and `answer` are mean tokens of the `looked_at` rows, without those of images; `images` are theirs on
    average. `tokenised`: counted by the model's own tokenizer.
    """

    train: int
    test: int | None
    prompt: float
    answer: float
    images: float
    looked_at: int
    tokenised: bool


def look(task: Task, values: Mapping[str, Any], dataset: str, model: Path | None) -> Sample | None:
    """A glance at `dataset` for a task. `model` is a folder with the model's tokenizer, where there is one here. None
    where there is nothing to look at."""
    try:
        found = _rows(task, values, dataset)
    except (DataError, OSError, ValueError):
        return None
    if found is None:
        return None
    train, test, picked = found
    survey = task.survey(picked)
    few = picked[:: max(1, len(picked) // ROWS_READ)][:ROWS_READ]
    named = [with_pictures(row, Path()) for row in few] if task.IMAGES is None else few
    made = [task.to_example(row, number, survey) for number, row in enumerate(named, start=1)]
    examples = [example for example in made if isinstance(example, Example)]
    if not examples:
        return None
    tokenizer = _tokenizer(model)
    count = tokenizer or _by_characters
    given, said = ([text for one in examples for text in _said(one, answers)] for answers in (False, True))
    many = len(examples)
    return Sample(
        train,
        test,
        (sum(count(given)) + TURN_TOKENS * len(given) + OPENING_TOKENS * len(said)) / many + 1,  # BOS
        (sum(count(said)) + ENDING_TOKENS * len(said)) / many,
        sum(len(example.images) for example in examples) / many,
        many,
        tokenizer is not None,
    )


def _said(example: Example, answers: bool) -> list[str]:
    """The texts of the turns that are trained on, or of the others."""
    said = [(message.role == "assistant", message.content) for message in example.prompt]
    return [text for trained, text in (*said, (True, example.answer)) if trained is answers]


def _rows(task: Task, values: Mapping[str, Any], dataset: str) -> tuple[int, int | None, list[Row]] | None:
    """Rows to train on, rows held out, and some of the former."""
    path = Path(dataset)
    if dataset == EMBEDDED:
        if task.NAME not in ROWS:
            return None
        train = values["train_size"] or task.SOURCE.train_size
        return (
            train,
            rows.embedded_held_out(task.SOURCE),
            list(ROWS[task.NAME]("train", min(train, ROWS_READ), values["seed"])),
        )
    if not path.exists():
        return None
    if task.IMAGES:
        return _image_rows(path, Columns(values["image_column"], values["label_column"]))
    if path.is_file():
        return _joined([path], None)
    files = rows.data_files(path)
    if files["train"]:
        return _joined(files["train"], files["test"] or None)
    return _joined(files["other"] + files["test"], None)


def _image_rows(path: Path, columns: Columns) -> tuple[int, int | None, list[Row]] | None:
    if any(file.suffix == ".parquet" for file in ([path] if path.is_file() else path.rglob("*.parquet"))):
        return None  # opened by `datasets`, which takes seconds to load
    found = image_rows.read(str(path), columns)
    picked = [item.row for item in found.train if not isinstance(item.row, Unusable)]
    return len(found.train), None if found.test is None else len(found.test), picked


def _joined(train: Sequence[Path], test: Sequence[Path] | None) -> tuple[int, int | None, list[Row]] | None:
    counted = [_counted(path) for path in train]
    held_out = [_counted(path) for path in test or ()]
    if any(part is None for part in (*counted, *held_out)):
        return None
    known = [part for part in counted if part is not None]
    picked = [row for _, few in known for row in few]
    rest = None if test is None else sum(part[0] for part in held_out if part is not None)
    return sum(number for number, _ in known), rest, picked


def _counted(path: Path) -> tuple[int, list[Row]] | None:
    """The number of rows of a file, and some of them; None for one that is too large to look at."""
    if path.suffix == ".jsonl":
        with path.open("rb") as lines:
            total = sum(1 for line in lines if line.strip())
        every = max(1, total // ROWS_READ)
        with path.open("rb") as lines:
            written = (line for line in lines if line.strip())
            picked = [_object(line) for line in islice(written, 0, None, every)]
        return total, [row for row in picked if row is not None]
    if path.stat().st_size > LARGEST_READ_WHOLE:
        return None
    found = rows.read_file(path)
    return len(found), [item.row for item in found if not isinstance(item.row, Unusable)]


def _object(line: bytes) -> Row | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _by_characters(texts: Sequence[str]) -> list[int]:
    return [round(len(text) / CHARACTERS_A_TOKEN) for text in texts]


def _tokenizer(model: Path | None) -> Tokens | None:
    path = model / "tokenizer.json" if model else None
    if path is None or not path.is_file():
        return None
    from tokenizers import Tokenizer  # in Rust: without transformers, and without torch

    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        whole = "model" in json.loads(text)
    except ValueError:
        whole = False
    if not whole:
        return None  # the run will say so
    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return lambda texts: [len(found.ids) for found in tokenizer.encode_batch(list(texts), add_special_tokens=False)]
