"""An adapter's folder, on a disk, a mount or in a bucket: is it whole, and what was it trained on?"""

import json
from pathlib import Path
from typing import Any

from finetune import model_facts
from finetune.embedded import EMBEDDED, base_dir
from finetune.errors import ModelError, StorageError
from finetune.model_facts import ADAPTER_CONFIG
from finetune.settings import Trouble
from finetune.shards import read_shard
from finetune.storage import Folder, open_folder, parent
from finetune.tasks import TASKS

WEIGHTS = "adapter_model.safetensors"
AS_TRAINED = ("task", "model_id", "max_length", "max_new_tokens", "hub_repo", "hub_private_repo")
"""Settings of a run that matter still when its adapter is evaluated or merged. Trust in code is given anew."""


def look_at_adapter(folder: Folder) -> Trouble | None:
    """What is wrong with an adapter's folder, None if nothing is."""
    files = folder.files(deep=False)
    if ADAPTER_CONFIG not in files:
        found = f"has no {ADAPTER_CONFIG}" if files else "nothing is there"
        return Trouble("adapter", f"{folder.url}: {found}", "give the adapter folder of a run, such as out/adapter")
    again = "the save was cut short: run again"
    if WEIGHTS not in files:
        return Trouble("adapter", f"{folder.url}: has no {WEIGHTS}", again)
    try:
        read_shard(folder, WEIGHTS, files[WEIGHTS])
    except ModelError as error:
        return Trouble("adapter", error.message, again)
    return None


def adapter_base(place: str) -> str | None:
    """The model that an adapter was trained on, as a user would write it. None where the folder does not tell."""
    try:
        base = model_facts.adapter_base(open_folder(place))
    except StorageError:
        return None
    return EMBEDDED if base and Path(base) == base_dir() else base


def adapter_settings(place: str) -> dict[str, Any]:
    """What the run that left an adapter was told, of the settings in AS_TRAINED. Empty where there is no plan.json."""
    try:
        settings = json.loads(open_folder(parent(place)).read("plan.json"))["settings"]
        known = {name: settings[name] for name in AS_TRAINED}
    except (OSError, StorageError, ValueError, KeyError, TypeError):
        return {}
    return known if known["task"] in TASKS else {}
