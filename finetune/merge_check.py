"""Is a merged model base + adapter? Both are asked the same, and their logits compared.

The models are loaded one after the other, placed by accelerate: on the GPUs as far as they are free, then in host
memory, and what is left is read from its own files, layer by layer, so that a model larger than all memory is checked
too. There PEFT cannot follow (it would dispatch the base anew, and write it to disk): the adapter is put on by hooks.
"""

import gc
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import get_max_memory
from torch.nn.functional import linear
from transformers import AutoModelForMultimodalLM, AutoProcessor

from finetune.chat import render
from finetune.hardware import GIB
from finetune.lora import Lora, read_adapter
from finetune.tasks.base import Example, Message

QUESTION = "List the names of all rivers that are longer than 1,000 km, and say what you see."
POSITIONS = 16
"""Logits of so many last positions are compared: the whole prompt acts on them, and they are 8 MB for a 31B."""
SHARE_OF_RAM = 0.7
"""Of the RAM at most this much for weights, where they do not fit elsewhere."""
CLEAR = 0.5
"""A merge is right if it is at most so far from base + adapter, as a share of what the adapter changes."""


@dataclass(frozen=True)
class Distances:
    """How far logits are apart: relative L2 norms. `pictures`: whether one was shown."""

    to_tuned: float
    to_base: float
    pictures: bool

    @property
    def is_right(self) -> bool:
        """Whether the merged model is clearly base + adapter, and not the base or something else."""
        return self.to_tuned <= CLEAR * self.to_base

    def __str__(self) -> str:
        asked = "a chat prompt and a picture" if self.pictures else "a chat prompt"
        tuned, base = percent(self.to_tuned), percent(self.to_base)
        return f"the merged model's logits are {tuned} from those of base + adapter, {base} from the base's ({asked})"


def compare(
    base: Path, adapter: Path, merged: Path, *, ram_gib: float | None = None, trust_remote: bool = False
) -> Distances:
    """Ask base, base + adapter and the merged model the same, and see how far they are apart."""
    processor = AutoProcessor.from_pretrained(base, trust_remote_code=trust_remote)
    asked = probes(processor)
    with tempfile.TemporaryDirectory() as folder:
        model = _load(base, folder, ram_gib, trust_remote)
        plain = _logits(model, asked)
        put_on(model, read_adapter(adapter))
        tuned = _logits(model, asked)
        del model
        _free()
        model = _load(merged, folder, ram_gib, trust_remote)
        found = _logits(model, asked)
        del model
        _free()
    return Distances(distance(found, tuned), distance(found, plain), pictures=len(asked) > 1)


def probes(processor: Any) -> list[dict[str, torch.Tensor]]:
    """The inputs: a chat prompt; and, if the model sees, one with a picture, since its vision tower may be adapted."""
    from PIL import Image

    tokenizer = getattr(processor, "tokenizer", processor)
    text = render(tokenizer, Example(0, (Message("user", QUESTION),), "")).prompt
    inputs = [dict(tokenizer(text, return_tensors="pt", add_special_tokens=False))]
    if getattr(processor, "image_processor", None) is not None:
        shades = torch.arange(96 * 64 * 3).mul(7).remainder(251).reshape(64, 96, 3).to(torch.uint8)
        picture = Image.fromarray(shades.numpy())
        text = render(tokenizer, Example(0, (Message("user", f"{tokenizer.image_token}{QUESTION}"),), "")).prompt
        seen = processor(text=[text], images=[[picture]], return_tensors="pt", add_special_tokens=False)
        inputs.append(dict(seen))
    return inputs


def put_on(model: Any, loras: Mapping[str, Lora]) -> None:
    """Let every adapted module add its LoRA to what it returns, wherever its weights are."""
    for name, lora in loras.items():
        model.get_submodule(name).register_forward_hook(_Addition(lora))


class _Addition:
    """A forward hook: output + scale * B @ (A @ input), in fp32, as PEFT does."""

    def __init__(self, lora: Lora) -> None:
        self.lora = lora

    def __call__(self, module: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        x, a, b = (item.to(output.device, torch.float32) for item in (inputs[0], self.lora.a, self.lora.b))
        added = linear(linear(x, a), b) * self.lora.scale
        return (output + added).to(output.dtype)


def distance(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> float:
    """The relative L2 distance of two models' logits, over all probes."""
    apart = sum(float((left - right).double().square().sum()) for left, right in zip(one, other, strict=True))
    size = sum(float(right.double().square().sum()) for right in other)
    return math.sqrt(apart / size)


def percent(share: float) -> str:
    """0.00314 -> 0.31 %."""
    return f"{share * 100:.0f} %" if share >= 0.1 else f"{share * 100:.2g} %" if share >= 1e-5 else "0 %"


def _load(folder: Path, offload: str, ram_gib: float | None, trust_remote: bool) -> Any:
    memory = get_max_memory()
    if ram_gib:  # what a container may use, where psutil sees the whole machine
        memory["cpu"] = min(memory["cpu"], int(SHARE_OF_RAM * ram_gib * GIB))
    return AutoModelForMultimodalLM.from_pretrained(
        folder,
        dtype="auto",
        device_map="auto",
        max_memory=memory,
        offload_folder=offload,
        trust_remote_code=trust_remote,
    ).eval()


def _logits(model: Any, asked: Sequence[Mapping[str, torch.Tensor]]) -> list[torch.Tensor]:
    """For each probe the logits of its last positions, in fp32 on the CPU: [1, POSITIONS, vocabulary]."""
    found = []
    with torch.no_grad():
        for inputs in asked:
            # Where parts of the model are elsewhere, accelerate's hooks move the inputs.
            there = inputs if model.device.type == "meta" else {name: x.to(model.device) for name, x in inputs.items()}
            found.append(model(**there, logits_to_keep=POSITIONS, use_cache=False).logits.float().cpu())
    return found


def _free() -> None:
    """Give back what the last model took."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
