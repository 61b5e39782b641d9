"""Which Gemma 4 goes on which GPUs, in which precision, how many rows at a time: by the estimate of memory.py. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from finetune.hardware import Gpu
from finetune.known_models import known_config
from finetune.memory import Work, estimate, remedies

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
    for item in tries:
        shape = config if own and config is not None else known_config(item.model_id)
        if shape is None:
            note = f"the size of {item.model_id} is not known here: whether it fits is not checked"
            return replace(item, note=note)
        work = Work.of(values_for(item.quantization), images, item.gpus, bf16)
        fitting = _fitting(shape, work, there, given)
        if fitting is not None:
            return replace(item, rows=fitting.micro_batch, answers=fitting.eval_batch, note=_idle(item, len(gpus)))
    last = tries[-1]
    return replace(last, rows=last.rows if ROWS in given else 1, answers=last.answers if ANSWERS in given else 1)


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
    helps = f"; {' or '.join(flags)} would make it fit" if flags else "; a smaller model, or larger GPUs, would fit"
    near = memory.peak <= NEAR * there
    told = f"{memory.peak:.1f} GiB wanted on each GPU while {memory.peak_stage}, {memory.peak - there:.1f} GiB too much"
    return f"{'may' if near else 'does'} not fit: {told}{helps}", near


def _fitting(shape: Mapping[str, Any], work: Work, there: float, given: Mapping[str, Any]) -> Work | None:
    """The work with as many rows, and as many answers, at a time as fit; fewer than wanted where the user left that
    open. None if not even one does."""
    rows = [work.micro_batch] if ROWS in given else _halved(work.micro_batch)
    answers = [work.eval_batch] if ANSWERS in given else _halved(work.eval_batch)
    for count in rows:
        trained = replace(work, micro_batch=count)
        if estimate(shape, trained).of("training") <= there:
            break
    else:
        return None
    for count in answers:
        measured = replace(trained, eval_batch=count)
        if estimate(shape, measured).peak <= there:
            return measured
    return None


def _halved(count: int) -> list[int]:
    found = [count]
    while found[-1] > 1:
        found.append(found[-1] // 2)
    return found


def _idle(item: Fit, gpus: int) -> str:
    if item.gpus == gpus:
        return ""
    return (
        f"{item.model_id} in bf16 is too large for these {gpus} GPUs: NF4 on one of them, {gpus - 1} idle "
        "(NF4 weights cannot be sharded)"
    )
