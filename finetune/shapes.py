"""What a Gemma 4 config.json says about the model: its layers, and what a LoRA adapter on them counts.

The numbers follow from the modelling code's rules, so that a plan can state them without loading a model:
full-attention layers have heads of their own size, may use keys as values (no v_proj), layers that share
another's keys and values have no k_proj and v_proj, and may have an MLP twice as wide.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Part = Literal["text", "vision"]
PARTS: tuple[Part, ...] = ("text", "vision")
Linear = tuple[Part, int, int]
"""Part, input features, output features."""

TEXT_LAYER_CLASS = {"gemma4": "Gemma4TextDecoderLayer", "gemma4_unified": "Gemma4UnifiedTextDecoderLayer"}
"""The decoder layer's class by model_type: the unit that FSDP2 shards. These model types can be fine-tuned here."""

FULL = "full_attention"
TEXT_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "hidden_size_per_layer_input": 256,
    "vocab_size": 262_144,
    "vocab_size_per_layer_input": 262_144,
}
VISION_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
    "patch_size": 16,
    "position_embedding_size": 10_240,
}
UNIFIED_VISION_DEFAULTS: Mapping[str, Any] = {
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "mm_embed_dim": 3840,
    "mm_posemb_size": 1120,
    "output_proj_dims": 3840,
}
AUDIO_DEFAULTS: Mapping[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "subsampling_conv_channels": (128, 32),
    "conv_kernel_size": 5,
    "output_proj_dims": 1536,
}
"""transformers' values for keys that a config.json leaves out."""


@dataclass(frozen=True)
class AdapterSize:
    """Modules adapted and parameters trained, by part of the model."""

    modules: Mapping[str, int]
    parameters: Mapping[str, int]

    @property
    def total_modules(self) -> int:
        return sum(self.modules.values())

    @property
    def total_parameters(self) -> int:
        return sum(self.parameters.values())


def adapter_size(config: Mapping[str, Any], targets: str, rank: int) -> AdapterSize:
    """Size of a LoRA adapter on the model of `config` (a parsed config.json). `targets`: text or all-linear."""
    text = config.get("text_config") or {}
    linears = list(_text_projections(text) if targets == "text" else all_linears(config))
    parts = [part for part in PARTS if any(owner == part for owner, _, _ in linears)]
    return AdapterSize(
        {part: sum(1 for owner, _, _ in linears if owner == part) for part in parts},
        {part: sum(rank * (size + out) for owner, size, out in linears if owner == part) for part in parts},
    )


@dataclass(frozen=True)
class TextLayer:
    """What differs between the decoder layers of a model. `shared`: it uses another's keys and values. `mlp`: features
    of its MLP, experts not counted."""

    head_dim: int
    key_value_heads: int
    full: bool
    shared: bool
    mlp: int


def text_value(config: Mapping[str, Any], key: str) -> Any:
    """A value of a text_config, transformers' own where it has none."""
    value = config.get(key)
    return TEXT_DEFAULTS.get(key) if value is None else value


def text_layers(text: Mapping[str, Any]) -> Iterator[TextLayer]:
    """The decoder layers of a text_config, from the first to the last."""
    count = text_value(text, "num_hidden_layers")
    types = list(text.get("layer_types") or ["full_attention" if (i + 1) % 6 == 0 else "sliding" for i in range(count)])
    types[-1:] = [FULL]  # transformers forces the last layer to full attention
    own = text.get("per_layer_config")
    first_shared = count - (text.get("num_kv_shared_layers") or 0)
    for number, kind in enumerate(types):
        full = kind == FULL
        differs: dict[str, int] = {}
        if own is not None:
            differs = own.get(str(number), {})
        elif full:
            differs = {"head_dim": text_value(text, "global_head_dim")}
            if text.get("attention_k_eq_v") and text.get("num_global_key_value_heads"):
                differs["num_key_value_heads"] = text["num_global_key_value_heads"]
        shared = number >= first_shared
        yield TextLayer(
            differs.get("head_dim") or text_value(text, "head_dim"),
            differs.get("num_key_value_heads") or text_value(text, "num_key_value_heads"),
            full,
            shared,
            text_value(text, "intermediate_size") * (2 if shared and text.get("use_double_wide_mlp") else 1),
        )


def _text_projections(text: Mapping[str, Any]) -> Iterator[Linear]:
    hidden, heads = text_value(text, "hidden_size"), text_value(text, "num_attention_heads")
    for layer in text_layers(text):
        queries, keys = heads * layer.head_dim, layer.key_value_heads * layer.head_dim
        yield "text", hidden, queries
        if not layer.shared:
            yield "text", hidden, keys
            if not (layer.full and text.get("attention_k_eq_v")):
                yield "text", hidden, keys
        yield "text", queries, hidden
        yield from (("text", hidden, layer.mlp), ("text", hidden, layer.mlp), ("text", layer.mlp, hidden))


def all_linears(config: Mapping[str, Any]) -> Iterator[Linear]:
    """Every nn.Linear of text and vision but the head and the routers of experts: what model.add_lora adapts."""
    text = config.get("text_config") or {}
    hidden, layers = text_value(text, "hidden_size"), text_value(text, "num_hidden_layers")
    unified = config.get("model_type") == "gemma4_unified"
    yield from _text_projections(text)
    per_layer = 0 if unified else text_value(text, "hidden_size_per_layer_input")
    if per_layer:
        yield "text", hidden, layers * per_layer
        for _ in range(layers):
            yield "text", hidden, per_layer
            yield "text", per_layer, hidden
    vision = config.get("vision_config")
    if vision is not None and unified:
        yield from _unified_vision_linears({**UNIFIED_VISION_DEFAULTS, **vision}, hidden)
    elif vision is not None:
        yield from _vision_linears({**VISION_DEFAULTS, **vision}, hidden)


def _unified_vision_linears(vision: Mapping[str, Any], text_hidden: int) -> Iterator[Linear]:
    """No tower: groups of patches are embedded, and projected into the text model."""
    yield "vision", 3 * (vision["patch_size"] * vision["pooling_kernel_size"]) ** 2, vision["mm_embed_dim"]
    yield "vision", vision["output_proj_dims"], text_hidden


def _vision_linears(vision: Mapping[str, Any], text_hidden: int) -> Iterator[Linear]:
    hidden, wide, head = vision["hidden_size"], vision["intermediate_size"], vision["head_dim"]
    queries, keys = vision["num_attention_heads"] * head, vision["num_key_value_heads"] * head
    outputs = ((hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden))
    mlp = ((hidden, wide), (hidden, wide), (wide, hidden))
    for _ in range(vision["num_hidden_layers"]):
        for size, out in outputs + mlp:
            yield "vision", size, out
    yield "vision", 3 * vision["patch_size"] ** 2, hidden
    yield "vision", hidden, text_hidden
