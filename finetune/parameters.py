"""A Gemma 4 config.json -> how many parameters the model has, by what becomes of them in memory.

Counted by the modelling code's rules (transformers' gemma4 and gemma4_unified), without loading anything. NF4 packs
the weights of linear layers; the embeddings, the fused experts, norms, positions and convolutions stay as they are.
Buffers are not counted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from finetune.shapes import (
    AUDIO_DEFAULTS,
    UNIFIED_VISION_DEFAULTS,
    VISION_DEFAULTS,
    all_linears,
    text_layers,
    text_value,
)

UNIFIED = "gemma4_unified"
UNIFIED_AUDIO_DIM = 640
"""transformers' audio_embed_dim, for a config.json that leaves it out."""


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters. `linear` and `other` (norms, biases, positions, convolutions) by part: text, vision,
    audio."""

    linear: Mapping[str, int]
    other: Mapping[str, int]
    embeddings: int
    """Of the tokens; the output layer shares them, or is counted here as well."""
    per_layer_embeddings: int
    experts: int

    @property
    def packed(self) -> int:
        """Those that NF4 packs into 4 bits."""
        return sum(self.linear.values())

    @property
    def unpacked(self) -> int:
        """Those that NF4 leaves as they are."""
        return sum(self.other.values()) + self.embeddings + self.per_layer_embeddings + self.experts

    @property
    def total(self) -> int:
        return self.packed + self.unpacked


def count(config: Mapping[str, Any]) -> Parameters:
    """Count the model of `config`, a parsed config.json of model_type gemma4 or gemma4_unified."""
    unified = config.get("model_type") == UNIFIED
    text = config.get("text_config") or {}
    hidden, layers = text_value(text, "hidden_size"), text_value(text, "num_hidden_layers")
    linear = {"text": 0, "vision": 0, "audio": 0}
    for part, size, out in all_linears(config):
        linear[part] += size * out
    experts = router = 0
    if text.get("enable_moe_block"):
        experts = layers * text["num_experts"] * 3 * hidden * text["moe_intermediate_size"]
        router = layers * text["num_experts"] * hidden
    linear["text"] += router
    other = {"text": sum(_text_norms(text, unified)), "vision": 0, "audio": 0}
    if config.get("vision_config") is not None:
        other["vision"] = (_unified_vision_rest if unified else _vision_rest)(config["vision_config"])
    if config.get("audio_config") is not None:
        linear["audio"], other["audio"] = (_unified_audio if unified else _audio)(config["audio_config"], hidden)
    vocabulary = text_value(text, "vocab_size") * hidden
    per_layer = 0 if unified else text_value(text, "hidden_size_per_layer_input")
    return Parameters(
        linear,
        other,
        vocabulary if config.get("tie_word_embeddings", True) else 2 * vocabulary,
        text_value(text, "vocab_size_per_layer_input") * layers * per_layer,
        experts,
    )


def _text_norms(text: Mapping[str, Any], unified: bool) -> Iterator[int]:
    hidden, layers = text_value(text, "hidden_size"), text_value(text, "num_hidden_layers")
    for layer in text_layers(text):
        yield 4 * hidden + layer.head_dim * (1 if layer.shared else 2)
    yield hidden
    per_layer = 0 if unified else text_value(text, "hidden_size_per_layer_input")
    if per_layer:
        yield layers * hidden + per_layer
    if text.get("enable_moe_block"):
        yield layers * (3 * hidden + hidden + text["num_experts"])  # norms, and the router's scales


def _vision_rest(given: Mapping[str, Any]) -> int:
    vision = {**VISION_DEFAULTS, **given}
    hidden, positions = vision["hidden_size"], vision["position_embedding_size"]
    return int(2 * positions * hidden + vision["num_hidden_layers"] * (4 * hidden + 2 * vision["head_dim"]))


def _unified_vision_rest(given: Mapping[str, Any]) -> int:
    vision = {**UNIFIED_VISION_DEFAULTS, **given}
    patch, width = 3 * (vision["patch_size"] * vision["pooling_kernel_size"]) ** 2, vision["mm_embed_dim"]
    return int(2 * patch + width + 2 * width + 2 * vision["mm_posemb_size"] * width + 2 * width)


def _audio(given: Mapping[str, Any], text_hidden: int) -> tuple[int, int]:
    """Linear and other parameters of the audio tower with what projects it into the text model."""
    audio = {**AUDIO_DEFAULTS, **given}
    hidden, layers, out = audio["hidden_size"], audio["num_hidden_layers"], audio["output_proj_dims"]
    first, second = audio["subsampling_conv_channels"]
    attention, feed_forward, convolution = 5 * hidden**2, 2 * 8 * hidden**2, 3 * hidden**2
    linear = layers * (attention + feed_forward + convolution) + (first // 4) * second * hidden + hidden * out
    norms = hidden // audio["num_attention_heads"] + (4 + 2 + 3) * hidden
    other = layers * (norms + hidden * audio["conv_kernel_size"]) + 9 * first + first + 9 * first * second + second
    return linear + out * text_hidden, other + out


def _unified_audio(given: Mapping[str, Any], text_hidden: int) -> tuple[int, int]:
    """No tower: frames of sound are projected into the text model."""
    return (given.get("audio_embed_dim") or UNIFIED_AUDIO_DIM) * text_hidden, 0
