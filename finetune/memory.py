"""A model's config.json and the settings of a run -> the memory that it takes on each GPU, by stage and by what. Pure.

Parameters are counted exactly (parameters.py). What training keeps for its backward pass was measured, in bytes a
token and feature, on layers of the real classes (tests/test_memory.py measures again); tests/bench/memory.py compares
the sum with the peak of whole steps on a CPU. What the CUDA runtime, NCCL and the allocator take besides is a rule
of thumb: RUNTIME, NCCL and SLACK.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from finetune.hardware import GIB
from finetune.parameters import UNIFIED, Parameters, count
from finetune.shapes import VISION_DEFAULTS, adapter_size, text_layers, text_value

RUNTIME, NCCL = 1.5 * GIB, 1.5 * GIB
"""CUDA context, cuBLAS workspaces and kernels on a GPU; buffers between several."""
SLACK = 0.05
"""Share of the rest that the allocator cannot use."""
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""A packed weight: 4 bits, an 8-bit scale for 64 of them, and a 32-bit one for 256 of those (double quantisation)."""
TRAINED_BYTES = 16
"""A parameter of the adapter, its gradient and Adam's two moments, all fp32."""
SAVED_BF16 = {"hidden": 28, "mlp": 9, "queries": 11, "keys": 13}
SAVED_FP32 = {"hidden": 42, "mlp": 12, "queries": 12, "keys": 17}
"""Bytes a token that a decoder layer keeps for its backward pass, for each feature of its hidden state, MLP, queries,
and keys or values; bf16 with autocast, and fp32."""
DROPPED_BF16, DROPPED_FP32 = 4, 5.7
"""Bytes a token for each input feature of an adapted layer, kept where LoRA has dropout."""
MLP_GRADIENTS = 3
"""Gradients as wide as the MLP that are alive at once in a layer's backward pass: those of its gate, of its up
projection, and of their product."""
LOGITS_TILE = 32_768
"""Part of the vocabulary that TRL's loss looks at in one go."""
PATCHES_PER_TOKEN = 9
"""Patches of 16 x 16 pixels that become one token of an image."""
IMAGE_TOKENS = 280
"""Of an image, at most."""
LEAST_RANK = 8
"""Of LoRA, that is proposed where memory is short."""
HOST_PER_RANK = 8 * GIB
"""Python with torch, the CUDA libraries, and rows on their way."""


@dataclass(frozen=True)
class Work:
    """What the estimate depends on, besides the model. `gpus` share one copy of the weights."""

    quantization: str
    lora_targets: str
    lora_r: int
    lora_dropout: float
    micro_batch: int
    max_length: int
    checkpointing: bool
    eval_batch: int
    max_new_tokens: int
    measures: bool
    images: bool
    gpus: int = 1
    bf16: bool = True
    trains: bool = True

    @staticmethod
    def of(values: Mapping[str, Any], images: bool, gpus: int, bf16: bool, trains: bool = True) -> "Work":
        """The work that settings, by name, mean for each of `gpus` GPUs."""
        return Work(
            values["quantization"],
            values["lora_targets"],
            values["lora_r"],
            values["lora_dropout"],
            values["per_device_train_batch_size"],
            values["max_length"],
            values["activation_checkpointing"],
            values["eval_batch_size"],
            values["max_new_tokens"],
            values["eval_size"] > 0,
            images,
            gpus,
            bf16,
            trains,
        )


@dataclass(frozen=True)
class Memory:
    """GiB on each GPU, by stage (loading, measuring, training) and by what; and GiB of a machine's own memory."""

    stages: Mapping[str, Mapping[str, float]]
    host: float

    def of(self, stage: str) -> float:
        """GiB on each GPU in a stage; nothing for one that the run does not have."""
        return sum(self.stages.get(stage, {}).values())

    @property
    def peak_stage(self) -> str:
        return max(self.stages, key=self.of)

    @property
    def peak(self) -> float:
        """GiB that have to be there on each GPU."""
        return self.of(self.peak_stage)


def estimate(config: Mapping[str, Any], work: Work) -> Memory:
    """The memory of a run on the model of `config`, a parsed config.json."""
    parameters = count(config)
    weights = _weights(parameters, work)
    adapter = TRAINED_BYTES * adapter_size(config, work.lora_targets, work.lora_r).total_parameters
    training = {"weights": weights, "adapter": adapter}
    if work.gpus > 1:
        training = {"weights": weights / work.gpus, "gathered": _gathered(config, parameters, work)}
        training["adapter"] = adapter / work.gpus
    training |= {"activations": _activations(config, work), "logits": _logits(config, work)}
    stages = {"loading": {"weights": weights}, **({"training": training} if work.trains else {})}
    if work.measures:
        # Before it is sharded: each GPU measures with the whole model.
        held = 0 if work.gpus > 1 or not work.trains else adapter
        stages["measuring"] = {"weights": weights, "adapter": held, "answers": _answers(config, work)}
    host = work.gpus * HOST_PER_RANK + 2 * parameters.total
    return Memory({name: _in_gib(stage, work) for name, stage in stages.items()}, host / GIB)


def _in_gib(stage: Mapping[str, float], work: Work) -> dict[str, float]:
    other = RUNTIME + (NCCL if work.gpus > 1 else 0) + SLACK * sum(stage.values())
    return {name: round(size / GIB, 3) for name, size in {**stage, "other": other}.items() if size}


def _width(work: Work) -> int:
    """Bytes of a number in the model."""
    return 2 if work.bf16 else 4


def _weights(parameters: Parameters, work: Work) -> float:
    if work.quantization == "nf4":
        return NF4_BYTES * parameters.packed + _width(work) * parameters.unpacked
    return float(_width(work) * parameters.total)


def _gathered(config: Mapping[str, Any], parameters: Parameters, work: Work) -> float:
    """What FSDP2 has whole on each GPU: two layers, and all that is in none (embeddings, towers)."""
    text = config.get("text_config") or {}
    in_layers = parameters.linear["text"] + parameters.other["text"] + parameters.experts
    layer: float = in_layers / text_value(text, "num_hidden_layers")
    return _width(work) * (2 * layer + parameters.total - in_layers)


def _activations(config: Mapping[str, Any], work: Work) -> float:
    text = config.get("text_config") or {}
    tokens = work.micro_batch * work.max_length
    layers = list(_layer_bytes(text, work))
    found = _kept(tokens, layers, text_value(text, "hidden_size"), work)
    widest = max(layer.mlp for layer in text_layers(text)) + _expert_features(text)
    found += tokens * MLP_GRADIENTS * _width(work) * widest
    vision = config.get("vision_config")
    if work.images and vision is not None and config.get("model_type") != UNIFIED:
        patches = work.micro_batch * IMAGE_TOKENS * PATCHES_PER_TOKEN
        found += _kept(
            patches, _vision_bytes({**VISION_DEFAULTS, **vision}, work), vision.get("hidden_size", 768), work
        )
    return found


def _kept(tokens: int, layers: list[float], hidden: int, work: Work) -> float:
    """With checkpointing each layer's input, and what one layer keeps; else what all of them keep."""
    if work.checkpointing:
        return tokens * (len(layers) * hidden * _width(work) + max(layers))
    return tokens * sum(layers)


def _layer_bytes(text: Mapping[str, Any], work: Work) -> Iterator[float]:
    saved = SAVED_BF16 if work.bf16 else SAVED_FP32
    dropped = (DROPPED_BF16 if work.bf16 else DROPPED_FP32) if work.lora_dropout else 0
    hidden, heads = text_value(text, "hidden_size"), text_value(text, "num_attention_heads")
    experts = _expert_features(text)
    for layer in text_layers(text):
        wide = layer.mlp + experts
        queries, keys = heads * layer.head_dim, layer.key_value_heads * layer.head_dim
        own = saved["hidden"] * hidden + saved["mlp"] * wide + saved["queries"] * queries + saved["keys"] * keys
        yield own + dropped * (5 * hidden + queries + wide)


def _expert_features(text: Mapping[str, Any]) -> int:
    """Features of the experts that a token goes through beside each layer's MLP."""
    if not text.get("enable_moe_block"):
        return 0
    features: int = text.get("top_k_experts", 1) * text["moe_intermediate_size"]
    return features


def _vision_bytes(vision: Mapping[str, Any], work: Work) -> list[float]:
    saved = SAVED_BF16 if work.bf16 else SAVED_FP32
    dropped = (DROPPED_BF16 if work.bf16 else DROPPED_FP32) if work.lora_dropout else 0
    hidden, mlp = vision["hidden_size"], vision["intermediate_size"]
    queries = vision["num_attention_heads"] * vision["head_dim"]
    own = saved["hidden"] * hidden + saved["mlp"] * mlp + (saved["queries"] + saved["keys"]) * queries
    if work.lora_targets == "all-linear":
        own += dropped * (5 * hidden + queries + mlp)
    return [own] * vision["num_hidden_layers"]


def _logits(config: Mapping[str, Any], work: Work) -> float:
    """A tile of the logits, in the model's precision and in fp32, and its gradient; of a row at most half is answer."""
    vocabulary: int = text_value(config.get("text_config") or {}, "vocab_size")
    return work.micro_batch * work.max_length / 2 * min(LOGITS_TILE, vocabulary) * (_width(work) + 8)


def _answers(config: Mapping[str, Any], work: Work) -> float:
    """Keys and values of a batch of answers, and one layer at work on all of its prompts."""
    text = config.get("text_config") or {}
    length = work.max_length + work.max_new_tokens
    window = text.get("sliding_window") or length
    kept = sum(
        2 * layer.key_value_heads * layer.head_dim * (length if layer.full else min(length, window))
        for layer in text_layers(text)
        if not layer.shared
    )
    hidden, mlp = text_value(text, "hidden_size"), text_value(text, "intermediate_size")
    queries = text_value(text, "num_attention_heads") * text_value(text, "head_dim")
    at_work: int = work.max_length * (6 * hidden + 3 * mlp + 4 * queries)
    logits: int = 8 * text_value(text, "vocab_size")
    return work.eval_batch * (_width(work) * (kept + at_work) + logits)


def remedies(config: Mapping[str, Any], work: Work, there: float) -> list[str]:
    """The flags of which each one would make it fit into `there` GiB, the least costly first; where none would alone,
    the first ones that do together."""
    changes = list(_savings(work))
    alone = [flag for flag, saving in changes if estimate(config, replace(work, **saving)).peak <= there]
    if alone:
        return list({flag.partition(" ")[0]: flag for flag in reversed(alone)}.values())[::-1]
    flags: dict[str, str] = {}
    for flag, saving in changes:
        work = replace(work, **saving)
        flags[flag.partition(" ")[0]] = flag
        if estimate(config, work).peak <= there:
            return [" with ".join(flags.values())]
    return []


def _savings(work: Work) -> Iterator[tuple[str, dict[str, Any]]]:
    """Flags, and what each changes. Of several values of one flag, the first that is enough is meant."""
    if work.eval_batch > 1:
        yield "--eval-batch-size 1", {"eval_batch": 1}
    if not work.checkpointing:
        yield "--activation-checkpointing", {"checkpointing": True}
    if work.micro_batch > 1:
        yield "--per-device-train-batch-size 1", {"micro_batch": 1}
    if work.quantization == "none":
        yield "--quantization nf4", {"quantization": "nf4", "gpus": 1}
    for rank in smaller_ranks(work.lora_r):
        yield f"--lora-r {rank}", {"lora_r": rank}
    yield f"--max-length {work.max_length // 2}", {"max_length": work.max_length // 2}


def smaller_ranks(rank: int) -> list[int]:
    """Half of a LoRA rank, half of that, and so on, as far as an adapter is still worth training."""
    found = []
    while (rank := rank // 2) >= LEAST_RANK:
        found.append(rank)
    return found
