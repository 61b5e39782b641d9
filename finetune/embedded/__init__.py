"""The embedded default: a tiny Gemma 4 and a generated text-to-SQL data set, for a run that needs no network.

`EMBEDDED` is what a user writes for the model or the data set. The model is a toy (see base/README.md):
it knows how to read a schema and a question, but answers in a pipeline dialect that no database runs.
What a LoRA run teaches it is SQL.
"""

from pathlib import Path

from finetune.embedded.sql_rows import COLUMNS, Split, rows

__all__ = ["COLUMNS", "EMBEDDED", "Split", "base_dir", "rows"]

EMBEDDED = "embedded"


def base_dir() -> Path:
    """The folder of the embedded base model: weights, tokenizer, chat template, processor."""
    return Path(__file__).parent / "base"
