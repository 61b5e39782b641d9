"""Which Gemma 4 goes on which GPUs, and in which precision: a rule of thumb over a table of sizes. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from finetune.hardware import Gpu

BASE_GIB = 6.0
"""CUDA context, kernels' workspace and fragmentation, on each GPU."""
SHARE = 0.3
"""LoRA weights with their optimizer state, activations, and the layers that FSDP2 has gathered: about this
share of the weights, on each GPU."""
NF4_SHARE_OF_BF16 = 0.35
"""NF4 weights against bf16 ones for a model that is not in the table: embeddings and norms stay in bf16."""


@dataclass(frozen=True)
class Size:
    """Weights of a model in GiB. What NF4 leaves as it is (embeddings, fused experts) is counted in `nf4_gib`."""

    bf16_gib: float
    nf4_gib: float


SIZES: Mapping[str, Size] = {
    "google/gemma-4-31B-it": Size(58.2, 19.0),
    "google/gemma-4-26B-A4B-it": Size(48.5, 43.0),
    "google/gemma-4-12B-it": Size(22.5, 8.0),
    "google/gemma-4-E4B-it": Size(15.0, 9.0),
    "google/gemma-4-E2B-it": Size(9.6, 6.4),
}
LADDER = ("google/gemma-4-31B-it", "google/gemma-4-E4B-it", "google/gemma-4-E2B-it")
"""Tried in this order when the user names no model."""


@dataclass(frozen=True)
class Fit:
    """A model, its precision, and how many of the GPUs it runs on. `note` says what a user should know."""

    model_id: str
    quantization: str
    gpus: int
    note: str = ""


def size_of(model_id: str, weights_gib: float | None) -> Size | None:
    """A model's size: from the table by id (case does not count), else from its weight files."""
    known = {name.lower(): size for name, size in SIZES.items()}.get(model_id.lower())
    if known is None and weights_gib is not None:
        return Size(weights_gib, weights_gib * NF4_SHARE_OF_BF16)
    return known


def needed_gib(size: Size, quantization: str, gpus: int, bf16: bool = True) -> float:
    """Memory wanted on each of `gpus` GPUs that share one copy of the weights. fp32 where bf16 is not supported.

    Before they are sharded, each GPU has all of the weights for a while: they are loaded there (model.py),
    and the base model is measured whole.
    """
    weights = (size.nf4_gib if quantization == "nf4" else size.bf16_gib) * (1 if bf16 else 2)
    return max(weights, weights / gpus + SHARE * weights) + BASE_GIB


def fit(
    gpus: Sequence[Gpu],
    model_id: str | None = None,
    weights_gib: float | None = None,
    quantization: str | None = None,
) -> Fit:
    """The first that fits: of the models of LADDER (or of `model_id`), bf16 over all GPUs, then NF4 on one.

    Where nothing fits, the smallest is tried, and the note says so.
    """
    models = (model_id,) if model_id else LADDER
    bf16 = all(gpu.bf16 for gpu in gpus)
    memory = min((gpu.memory_gib if gpu.memory_gib and not gpu.mig else 0.0) for gpu in gpus)
    tries = [Fit(model, kind, count) for model in models for kind, count in (("none", len(gpus)), ("nf4", 1))]
    tries = [item for item in tries if quantization in (None, item.quantization)]
    if memory == 0.0:
        why = "split with MIG" if any(gpu.mig for gpu in gpus) else "not told by the driver"
        return _noted(tries[-1], f"GPU memory is unknown ({why}): the smallest choice is planned")
    for item in tries:
        size = size_of(item.model_id, weights_gib)
        if size is None:
            return _noted(item, f"the size of {item.model_id} is not known here: whether it fits is not checked")
        if needed_gib(size, item.quantization, item.gpus, bf16) <= memory:
            return _noted(item, _idle(item, len(gpus)))
    last = tries[-1]
    size = size_of(last.model_id, weights_gib)
    assert size is not None
    wanted = needed_gib(size, last.quantization, last.gpus, bf16)
    return _noted(last, f"may not fit: about {wanted:.0f} GiB on each GPU wanted, {memory:.0f} GiB there")


def _noted(item: Fit, note: str) -> Fit:
    return Fit(item.model_id, item.quantization, item.gpus, note)


def _idle(item: Fit, gpus: int) -> str:
    if item.gpus == gpus:
        return ""
    return (
        f"{item.model_id} in bf16 is too large for these {gpus} GPUs: NF4 on one of them, {gpus - 1} idle "
        "(NF4 weights cannot be sharded)"
    )
