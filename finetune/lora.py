"""A saved LoRA adapter as plain matrices, by module: what merge.py adds to the weights."""

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft.utils.other import get_pattern_key
from safetensors import SafetensorError
from safetensors.torch import load_file

from finetune.checkpoint import ADAPTER_FILE
from finetune.errors import ModelError

CONFIG_FILE = "adapter_config.json"
MATRIX = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<matrix>[AB])\.weight")
KNOWN = (
    *("r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "lora_dropout", "inference_mode"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "task_type", "auto_mapping"),
    *("base_model_name_or_path", "revision", "peft_version", "megatron_core", "qalora_group_size"),
)
"""Keys of adapter_config.json that say how plain LoRA is scaled or trained, or nothing about it. What another one
says, unless it is unset, is more than plain LoRA: DoRA, trained embeddings, biases, fused experts ..."""
PLAIN = {"peft_type": ("LORA",), "bias": ("none",), "init_lora_weights": (True, False, "gaussian", "orthogonal")}
"""Values that keep LoRA plain. Other ways to begin (PiSSA, OLoRA, CorDA, LoftQ) change the base as well."""


@dataclass(frozen=True)
class Lora:
    """What LoRA adds to a weight: scale * B @ A. `a` is [rank, in], `b` [out, rank]."""

    a: torch.Tensor
    b: torch.Tensor
    scale: float

    @property
    def is_zero(self) -> bool:
        """Whether it changes nothing: B is zero before the first step."""
        return not (self.a.any() and self.b.any())


def read_adapter(folder: Path) -> dict[str, Lora]:
    """The adapter's matrices by the adapted module's name in the model. Raises ModelError if it is not plain LoRA."""
    try:
        config = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        tensors = load_file(folder / ADAPTER_FILE)
    except (OSError, ValueError, SafetensorError) as error:
        hint = "give the adapter folder of a run, such as out/adapter"
        raise ModelError(f"{folder}: cannot be read as an adapter: {str(error).splitlines()[0]}", hint) from error
    _refuse_more_than_lora(config, folder)
    matrices: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        matched = MATRIX.fullmatch(name)
        if matched is None or tensor.ndim != 2:
            raise ModelError(f"{folder}: {name} is no LoRA matrix of a linear layer, so it cannot be merged", _HINT)
        matrices[matched["module"]][matched["matrix"]] = tensor
    if not matrices:
        raise ModelError(f"{folder}: the adapter is empty", _HINT)
    return {module: _lora(module, pair, config, folder) for module, pair in matrices.items()}


_HINT = "merge an adapter that was trained here, or use this one with PEFT as it is"


def _refuse_more_than_lora(config: Any, folder: Path) -> None:
    if not isinstance(config, dict) or not {"peft_type", "r", "lora_alpha"} <= config.keys():
        raise ModelError(f"{folder}: {CONFIG_FILE} is not the configuration of a LoRA adapter", _HINT)
    for key, value in config.items():
        allowed = value in PLAIN[key] if key in PLAIN else key in KNOWN or not value
        if not allowed:
            raise ModelError(f"{folder}: {CONFIG_FILE} has {key} {value!r}; only plain LoRA can be merged", _HINT)


def _lora(module: str, pair: Mapping[str, torch.Tensor], config: Mapping[str, Any], folder: Path) -> Lora:
    ranks, alphas = config.get("rank_pattern") or {}, config.get("alpha_pattern") or {}
    rank = ranks.get(get_pattern_key(ranks, module), config["r"])
    alpha = alphas.get(get_pattern_key(alphas, module), config["lora_alpha"])
    if pair.keys() != {"A", "B"} or not pair["A"].shape[0] == pair["B"].shape[1] == rank:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in sorted(pair.items()))
        raise ModelError(f"{folder}: {module} has {shapes}; expected A [{rank}, in] and B [out, {rank}]", _HINT)
    return Lora(pair["A"], pair["B"], alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))
