"""Which Gemma 4 goes on which GPUs, in which precision, how many rows at a time: by the estimate of memory.py. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from finetune.hardware import Gpu
from finetune.known_models import known_config
from finetune.memory import Work, estimate, remedies, smaller_ranks
from finetune.parameters import count

LADDER = ("google/gemma-4-31B-it", "google/gemma-4-E4B-it", "google/gemma-4-E2B-it")
"""Tried in this order when the user names no model."""
NEAR = 1.15
"""Up to so many times what is there is tried: the estimate may be too high by that."""
ROWS, ANSWERS = "per_device_train_batch_size", "eval_batch_size"


@dataclass(frozen=True)
class Fit:
    """A model, its precision, how many of the GPUs it runs on, and how many rows and answers each has at a time.
    `note` says what a user should know."""

    model_id: str
    quantization: str
    gpus: int
    rows: int
    answers: int
    note: str = ""
    lora_r: int | None = None
    """A smaller LoRA rank than the recipe's, where nothing else fits."""


def fit(
    gpus: Sequence[Gpu],
    values_for: Callable[[str], Mapping[str, Any]],
    images: bool,
    given: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
) -> Fit:
    """The first that fits: of the models of LADDER (or of the user's), bf16 over all GPUs, then NF4 on one; of each,
    the most rows at a time.

    `values_for` gives the settings of a run without, or with, quantization. `given` are those that the user gave, which
    are not changed to fit. `config` is the user's model's, where it is known. Where nothing fits: the smallest.
    """
    own = given.get("model_id")
    kinds = [kind for kind in ("none", "nf4") if given.get("quantization") in (None, kind)]
    tries = [
        Fit(model, kind, len(gpus) if kind == "none" else 1, values_for(kind)[ROWS], values_for(kind)[ANSWERS])
        for model in ((own,) if own else LADDER)
        for kind in kinds
    ]
    bf16 = all(gpu.bf16 for gpu in gpus)
    there = memory_of(gpus)
    if there is None:
        why = "split with MIG" if any(gpu.mig for gpu in gpus) else "not told by the driver"
        return replace(tries[-1], note=f"GPU memory is unknown ({why}): the smallest choice is planned")

    def work_of(item: Fit) -> Work:
        return Work.of(values_for(item.quantization), images, item.gpus, bf16)

    for item in tries:
        shape = _shape(item.model_id, own, config)
        if shape is None:
            note = f"the size of {item.model_id} is not known here: whether it fits is not checked"
            return replace(item, note=note)
        fitting = _fitting(shape, work_of(item), there, given)
        if fitting is not None:
            larger = [] if own else [work_of(one) for one in tries if one.model_id == LADDER[0] != item.model_id]
            told = (_idle(item, len(gpus), bf16), _too_large(item, larger, there))
            note = "; ".join(part for part in told if part)
            return replace(item, rows=fitting.micro_batch, answers=fitting.eval_batch, note=note)
    last = tries[-1]
    whole = work_of(last)
    for rank in [] if "lora_r" in given else smaller_ranks(whole.lora_r):
        fitting = _fitting(_shape(last.model_id, own, config) or {}, replace(whole, lora_r=rank), there, given)
        if fitting is not None:
            note = f"lora_r is {rank}, not {whole.lora_r}, so that {last.model_id} fits"
            return replace(last, rows=fitting.micro_batch, answers=fitting.eval_batch, lora_r=rank, note=note)
    return replace(last, rows=last.rows if ROWS in given else 1, answers=last.answers if ANSWERS in given else 1)


def _shape(model: str, own: str | None, config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return config if own and config is not None else known_config(model)


def _too_large(item: Fit, larger: Sequence[Work], there: float) -> str:
    """Why it is not the largest model, of whose kinds `larger` are the work: what that would want at least."""
    if not larger:
        return ""
    shape = known_config(LADDER[0]) or {}
    least = min(estimate(shape, replace(work, micro_batch=1, eval_batch=1)).peak for work in larger)
    return f"{LADDER[0]} would want {least:.1f} GiB of each GPU at least, not {there:.1f}: {item.model_id} is taken"


def memory_of(gpus: Sequence[Gpu]) -> float | None:
    """GiB that each GPU has free, None where that is not known."""
    sizes = [gpu.free_gib for gpu in gpus if gpu.free_gib]
    return min(sizes) if gpus and len(sizes) == len(gpus) else None


def judge(shape: Mapping[str, Any], work: Work, there: float) -> tuple[str, bool]:
    """What is wrong with a run that does not fit into `there` GiB, and what would help; nothing if it fits. Whether it
    might be tried all the same: the estimate is not that exact."""
    memory = estimate(shape, work)
    if memory.peak <= there:
        return "", True
    flags = remedies(shape, work, there)
    models = [] if flags else _smaller_models(shape, work, there)
    if flags:
        helps = f"; {' or '.join(flags)} would make it fit"
    elif models:
        helps = f"; --model-id {models[0]} would fit"
    else:
        helps = "; only larger GPUs would do"
    near = memory.peak <= NEAR * there
    told = f"{memory.peak:.1f} GiB wanted on each GPU while {memory.peak_stage}, {memory.peak - there:.1f} GiB too much"
    return f"{'may' if near else 'does'} not fit: {told}{helps}", near


def _smaller_models(shape: Mapping[str, Any], work: Work, there: float) -> list[str]:
    """The models of LADDER that are smaller than that of `shape` and would fit, the largest first."""
    least = replace(work, micro_batch=1, eval_batch=1, lora_r=min([work.lora_r, *smaller_ranks(work.lora_r)]))
    kinds = (least, replace(least, quantization="nf4", gpus=1))
    known = [(model, known_config(model) or {}) for model in LADDER]
    smaller = [(model, config) for model, config in known if count(config).total < count(shape).total]
    return [model for model, config in smaller if min(estimate(config, kind).peak for kind in kinds) <= there]


def _fitting(shape: Mapping[str, Any], work: Work, there: float, given: Mapping[str, Any]) -> Work | None:
    """The work with as many rows, and as many answers, at a time as fit; fewer than wanted where the user left that
    open. None if not even one does."""
    rows = [work.micro_batch] if ROWS in given else _halved(work.micro_batch)
    answers = [work.eval_batch] if ANSWERS in given else _halved(work.eval_batch)
    for size in rows:
        trained = replace(work, micro_batch=size)
        if estimate(shape, trained).of("training") <= there:
            break
    else:
        return None
    for size in answers:
        measured = replace(trained, eval_batch=size)
        if estimate(shape, measured).peak <= there:
            return measured
    return None


def _halved(count: int) -> list[int]:
    found = [count]
    while found[-1] > 1:
        found.append(found[-1] // 2)
    return found


def _idle(item: Fit, gpus: int, bf16: bool) -> str:
    if item.gpus == gpus:
        return ""
    wide = "bf16" if bf16 else "fp32"
    return (
        f"{item.model_id} in {wide} is too large for these {gpus} GPUs: NF4 on one of them, {gpus - 1} idle "
        "(NF4 weights cannot be sharded)"
    )
