"""A model's folder, on a disk, a mount or in a bucket, before anything of it is loaded: is it a whole Gemma 4?"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from finetune.errors import ModelError
from finetune.settings import Trouble
from finetune.shapes import TEXT_LAYER_CLASS
from finetune.shards import AGAIN, read_shards
from finetune.storage import Folder

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")


@dataclass(frozen=True)
class ModelFacts:
    """`name` is what the worker loads: a folder's absolute path, a gs:// path, a hub id or 'embedded'."""

    name: str
    kind: Literal["embedded", "folder", "hub"]
    config: Mapping[str, Any] | None = None
    """The model's config.json, if it is known."""


def look_in_folder(name: str, kind: Literal["embedded", "folder"], folder: Folder) -> ModelFacts | Trouble:
    """What a model's folder holds, or what is wrong with it."""

    def wrong(message: str, hint: str = "") -> Trouble:
        return Trouble("model_id", f"{folder.url}: {message}", hint)

    files = folder.files(deep=False)
    if CONFIG not in files:
        if ADAPTER_CONFIG in files:
            return wrong("is a LoRA adapter, not a model", _base_first(folder))
        if not files:
            return wrong("there is nothing there", "see that the path is right: the folder that holds config.json")
        return wrong("has no config.json", "give the folder that save_pretrained or the hub download made")
    try:
        config = json.loads(folder.read(CONFIG))
    except (OSError, ValueError) as error:
        return wrong(f"config.json cannot be read: {error}", AGAIN)
    kind_found = config.get("model_type") if isinstance(config, dict) else None
    if kind_found not in TEXT_LAYER_CLASS:
        return wrong(
            f"config.json says model_type {kind_found!r}; expected a Gemma 4 ({' or '.join(TEXT_LAYER_CLASS)})",
            "give a Gemma 4 such as google/gemma-4-31B-it",
        )
    try:
        read_shards(folder, files)
    except ModelError as error:
        return Trouble("model_id", error.message, error.hint)
    if not any(name in files for name in TOKENIZER_FILES):
        return wrong(f"has no tokenizer ({' or '.join(TOKENIZER_FILES)})", "copy the tokenizer's files into the folder")
    return ModelFacts(name, kind, config)


def _base_first(folder: Folder) -> str:
    base = adapter_base(folder) or "the base model"
    return f"write --model-id {base}; to score the adapter: evaluate --model-id {base} --adapter {folder.url}"


def adapter_base(folder: Folder) -> str | None:
    """What an adapter's configuration names as its base. None where it does not tell."""
    try:
        base = json.loads(folder.read(ADAPTER_CONFIG)).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        return None
    return str(base) if base else None
