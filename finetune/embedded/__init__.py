"""The embedded default: a tiny Gemma 4 and generated data sets, for a run that needs no network.

`EMBEDDED` is what a user writes for the model or the data set. The model is a toy (see base/README.md): it knows how
to read a schema and a question, but answers in a pipeline dialect that no database runs, and it has never learned to
see. What a LoRA run teaches it is SQL, or to tell drawn animals apart.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from finetune.tasks.base import Split

EMBEDDED = "embedded"


def _sql_rows(split: Split, count: int, seed: int) -> list[dict[str, Any]]:
    from finetune.embedded.sql_rows import rows  # here: generators that --help need not load

    return rows(split, count, seed)


def _conversations(split: Split, count: int, seed: int) -> list[dict[str, Any]]:
    from finetune.embedded.sql_rows import conversations

    return conversations(split, count, seed)


def _animals(split: Split, count: int, seed: int) -> list[dict[str, Any]]:
    from finetune.embedded.animals import rows

    return rows(split, count, seed)


ROWS: Mapping[str, Callable[[Split, int, int], list[dict[str, Any]]]] = {
    "text-to-sql": _sql_rows,
    "pets": _animals,
    "chat": _conversations,
}
"""The embedded rows of each task: (split, count, seed) -> rows."""


def base_dir() -> Path:
    """The folder of the embedded base model: weights, tokenizer, chat template, processor."""
    return Path(__file__).parent / "base"
