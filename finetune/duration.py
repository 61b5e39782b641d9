"""The model, the settings, the data's lengths and the GPUs' speed -> how long a run takes, stage by stage. Pure.

A pass over the model counts two operations for each weight and token that meet. The base is frozen: training takes a
forward pass and the half of a backward pass that carries gradients on to the layers below, and with activation
checkpointing the forward pass once more. Beside that the weights travel: NF4 is unpacked, FSDP2 gathers.
MFU counts what the model needs (no recomputing) against the peak (A. Chowdhery et al., "PaLM", 2022, appendix B).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from finetune.known_gpus import Rates
from finetune.memory import IMAGE_TOKENS, NF4_BYTES, PATCHES_PER_TOKEN
from finetune.parameters import count
from finetune.shapes import text_layers, text_value

UNPACKED_BYTES = NF4_BYTES + 2 + 2
"""Of memory traffic for a weight in NF4 each time it is used: read, written in bf16, read again."""
LINK_SHARE = 0.6
"""Of a link's speed that gathering reaches."""
LAYER_S = 0.0012
"""Seconds that Python takes to send off an adapted layer's kernels: no forward pass is faster."""
BACKWARD = 2
"""Times as many kernels has a backward pass."""
READ_GB_S = 1.0
"""GB/s at which weights come from a bucket, the hub or a disk."""
STARTING_S = 20.0
"""Until torch and the libraries are loaded, and after the last step until all is written."""
LONGEST_ANSWER = 2.0
"""The longest answer of a batch, which all wait for, in mean ones."""
TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True)
class Lengths:
    """Rows to train on, and to measure on; tokens of a mean row (`prompt` and `answer`), and images in it."""

    train: int
    measured: int
    prompt: float
    answer: float
    images: float = 0.0

    @property
    def row(self) -> float:
        return self.prompt + self.answer


@dataclass(frozen=True)
class Machines:
    """`processes` have a GPU of these `rates` each, and share the weights if there are several."""

    rates: Rates
    processes: int
    bf16: bool


@dataclass(frozen=True)
class Duration:
    """Seconds by stage, steps of the optimizer, tokens trained on, and operations that the model needs for each."""

    seconds: Mapping[str, float]
    steps: int
    tokens: int
    flops_per_token: float

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


@dataclass(frozen=True)
class _Model:
    """What a pass costs. `used`: weights that a token meets; `head` only those tokens that an answer has."""

    used: int
    head: int
    vision: int
    layers: int
    queries: int
    packed_bytes: float
    weight_bytes: float


def steps_of(values: Mapping[str, Any], rows: int, rows_per_step: int) -> int:
    """Optimizer steps for so many rows: what --max-steps says, or the epochs come to."""
    return int(values["max_steps"] or ceil(rows / rows_per_step) * values["num_train_epochs"])


def estimate_duration(
    config: Mapping[str, Any], values: Mapping[str, Any], lengths: Lengths, machines: Machines, trains: bool = True
) -> Duration:
    """How long a run with the settings `values` takes. `trains` False: only measuring, once."""
    model = _model(config, values, machines)
    rates, processes = machines.rates, machines.processes
    rows, accumulation = values["per_device_train_batch_size"], values["gradient_accumulation_steps"]
    steps = steps_of(values, lengths.train, rows * accumulation * processes) if trains else 0
    forward = _forward(model, lengths)
    own_vision = 2 if values["lora_targets"] == "all-linear" else 1  # else nothing below the text model learns
    again = 1 if values["activation_checkpointing"] else 0
    needed = 2 * forward + own_vision * _vision(model, lengths)
    done = needed + again * (forward + (own_vision - 1) * _vision(model, lengths))
    computing = rows * done / (rates.share * rates.tflops * TERA)
    moving = (2 + again) * model.packed_bytes / (rates.memory_gb_s * GIGA)
    gathering = 2 * _gather_s(model, machines)
    a_micro_batch = max(computing + moving, gathering, (1 + BACKWARD + again) * model.layers * LAYER_S)
    seconds = {"load": STARTING_S + model.weight_bytes / (READ_GB_S * GIGA)}
    if lengths.measured:
        seconds["before"] = _answering_s(model, values, lengths, machines, 0.0)
    if trains:
        seconds["train"] = steps * accumulation * a_micro_batch
        if lengths.measured:
            seconds["after"] = _answering_s(model, values, lengths, machines, _gather_s(model, machines))
    tokens = round(steps * rows * accumulation * processes * lengths.row) if trains else 0
    return Duration({name: round(value, 1) for name, value in seconds.items()}, steps, tokens, needed / lengths.row)


def _model(config: Mapping[str, Any], values: Mapping[str, Any], machines: Machines) -> _Model:
    parameters = count(config)
    text = config.get("text_config") or {}
    experts = parameters.experts
    if experts:
        experts = round(experts * text.get("top_k_experts", 1) / text["num_experts"])
    nf4 = values["quantization"] == "nf4"
    wide = 2 if machines.bf16 else 4
    heads = text_value(text, "num_attention_heads")
    return _Model(
        parameters.linear["text"] + experts,
        text_value(text, "vocab_size") * text_value(text, "hidden_size"),
        parameters.linear["vision"],
        text_value(text, "num_hidden_layers"),
        sum(heads * layer.head_dim for layer in text_layers(text)),
        UNPACKED_BYTES * parameters.packed if nf4 else 0.0,
        wide * parameters.total,
    )


def _forward(model: _Model, lengths: Lengths) -> float:
    """Operations of a forward pass of the text model over a mean row: weights, output layer, attention (the half of
    its square that is not masked)."""
    attention = 2 * model.queries * lengths.row**2
    return 2 * model.used * lengths.row + 2 * model.head * lengths.answer + attention


def _vision(model: _Model, lengths: Lengths) -> float:
    return 2 * model.vision * lengths.images * IMAGE_TOKENS * PATCHES_PER_TOKEN


def _gather_s(model: _Model, machines: Machines) -> float:
    """Seconds to bring all weights together on each of several GPUs."""
    others = (machines.processes - 1) / machines.processes
    return others * model.weight_bytes / (LINK_SHARE * machines.rates.link_gb_s * GIGA)


def _answering_s(
    model: _Model, values: Mapping[str, Any], lengths: Lengths, machines: Machines, gathering: float
) -> float:
    """Seconds to answer the rows to measure on: each batch reads its prompts, then writes token by token, for each of
    which all weights are read."""
    rates, size = machines.rates, values["eval_batch_size"]
    batches = ceil(lengths.measured / (size * machines.processes))
    reading = size * (_forward(model, lengths) + _vision(model, lengths)) / (rates.share * rates.tflops * TERA)
    traffic = (model.packed_bytes or model.weight_bytes) / (rates.memory_gb_s * GIGA)
    a_token = max(traffic, gathering, model.layers * LAYER_S)
    longest = min(values["max_new_tokens"], ceil(LONGEST_ANSWER * lengths.answer))
    return float(batches * (max(reading, gathering) + longest * a_token))
