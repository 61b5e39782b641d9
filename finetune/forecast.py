"""What a plan says of data, time and money, and what the run says of it while it goes on. Pure.

`Plan.data` and `Plan.time` are plain mappings, made here and read here, so that plan.json and run.json have them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finetune.duration import Lengths, Machines, estimate_duration
from finetune.hardware import Gpu
from finetune.known_gpus import cpu_rates, price, rates
from finetune.memory import IMAGE_TOKENS
from finetune.rows import split_sizes
from finetune.sampling import Sample
from finetune.tasks.base import Split, Task

FAR_OFF = 0.25
"""Difference between planned and measured steps that is worth a line."""


@dataclass(frozen=True)
class Place:
    """Where a run would be: the GPUs it uses, all those of a machine (they are paid for), and its cores."""

    gpus: Sequence[Gpu]
    paid: Sequence[Gpu]
    nodes: int
    cores: int


def forecast_data(
    task: Task, values: Mapping[str, Any], sample: Sample | None, split: Split = "test"
) -> dict[str, Any] | None:
    """Rows and lengths: counted in the data where they are here, else the published ones of the task's own data set.
    None where nothing is known of them. `measured`: of the `split`, no more than --eval-size."""
    source, wanted = task.SOURCE, values["train_size"]
    if sample is not None:
        sizes = split_sizes(sample.train, source, wanted)
        train = sizes.train if sample.test is None else min(sample.train, wanted or source.train_size)
        test = sizes.test if sample.test is None else sample.test
        how = f"{sample.looked_at} rows {'tokenised' if sample.tokenised else 'measured in characters'}"
        found = {"train": train, "test": test}
        lengths = (sample.prompt, sample.answer, sample.images)
        undivided = sample.train if sample.test is None else None
    elif values["dataset"] == source.dataset and source.prompt_tokens:
        found = {"train": wanted or source.train_size, "test": source.eval_size}
        lengths = (source.prompt_tokens, source.answer_tokens, 1.0 if task.IMAGES else 0.0)
        undivided, how = None, "not looked at: as published"
    else:
        return None
    prompt, answer, images = lengths
    return {
        **found,
        "measured": min(values["eval_size"], found[split]),
        "prompt": round(prompt, 1),
        "answer": round(answer, 1),
        "images": round(images, 2),
        "undivided": undivided,
        "how": how,
    }


def forecast_time(
    config: Mapping[str, Any] | None,
    values: Mapping[str, Any],
    data: Mapping[str, Any] | None,
    place: Place,
    trains: bool,
) -> dict[str, Any] | None:
    """Steps, tokens, seconds and dollars, with all that was assumed. None where the model, the data or the GPU is not
    known."""
    found = [rates(gpu) for gpu in place.gpus] or [cpu_rates(place.cores)]
    if config is None or data is None or found[0] is None:
        return None
    prompt = data["prompt"] + IMAGE_TOKENS * data["images"]
    lengths = Lengths(data["train"], data["measured"], prompt, data["answer"], data["images"])
    bf16 = bool(place.gpus) and all(gpu.bf16 for gpu in place.gpus)
    processes = max(1, len(place.gpus)) * place.nodes
    took = estimate_duration(config, values, lengths, Machines(found[0], processes, bf16), trains)
    an_hour, priced = _price(values["price_per_hour"], place)
    return {
        "steps": took.steps,
        "tokens": took.tokens,
        "seconds": {**took.seconds, "total": round(took.total, 1)},
        "flops_per_token": took.flops_per_token,
        "peak_tflops": found[0].tflops * processes if place.gpus else None,
        "share_of_peak": found[0].share,
        "dollars_an_hour": an_hour,
        "price": priced,
        "dollars": None if an_hour is None else round(took.total / 3600 * an_hour, 2),
    }


def _price(given: float | None, place: Place) -> tuple[float | None, str]:
    if given is not None:
        return given * place.nodes, "by --price-per-hour"
    found = price(place.paid, place.nodes)
    return found if found else (None, "")


def mfu(time: Mapping[str, Any] | None, tokens_per_second: float) -> float | None:
    """Share of the GPUs' peak that the model's own operations come to, None on a CPU."""
    if not time or not time["peak_tflops"]:
        return None
    share: float = tokens_per_second * time["flops_per_token"] / (time["peak_tflops"] * 1e12)
    return share


def dollars(time: Mapping[str, Any] | None, seconds: float) -> float | None:
    """What so many seconds cost, None where the price is not known."""
    if not time or time["dollars_an_hour"] is None:
        return None
    cost: float = seconds / 3600 * time["dollars_an_hour"]
    return cost


def correction(time: Mapping[str, Any] | None, a_step: float, steps: int) -> str:
    """What to say once steps have been measured to take `a_step` seconds; "" where that is about as planned."""
    planned = time["seconds"].get("train", 0.0) / time["steps"] if time and time["steps"] else 0.0
    if not time or not planned or abs(a_step / planned - 1) <= FAR_OFF:
        return ""
    total = time["seconds"]["total"] + (a_step - planned) * steps
    cost = dollars(time, total)
    money = "" if cost is None else f" and ${cost:,.2f}"
    return f"a step takes {a_step:.3g} s, not {planned:.3g} s as planned: about {spoken(total)}{money} in all"


def spoken(seconds: float) -> str:
    """40 s, 12 min, 2 h 31 min: as exact as an estimate is."""
    if seconds < 59.5:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
