"""The embedded default: a tiny Gemma 4 and generated data sets, for a run that needs no network.

`EMBEDDED` is what a user writes for the model or the data set. The model is a toy (see base/README.md): it knows how
to read a schema and a question, but answers in a pipeline dialect that no database runs, and it has never learned to
see. What a LoRA run teaches it is SQL, or to tell drawn animals apart.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from finetune.embedded import animals
from finetune.embedded.sql_rows import COLUMNS, Split, rows

__all__ = ["COLUMNS", "EMBEDDED", "ROWS", "Split", "base_dir", "rows"]

EMBEDDED = "embedded"
ROWS: Mapping[str, Callable[[Split, int, int], list[dict[str, Any]]]] = {"text-to-sql": rows, "pets": animals.rows}
"""The embedded rows of each task: (split, count, seed) -> rows."""


def base_dir() -> Path:
    """The folder of the embedded base model: weights, tokenizer, chat template, processor."""
    return Path(__file__).parent / "base"
