"""The Gemma 4 models of the hub, by id: their shapes, for a plan made with no network.

From the config.json of each; what is left out has transformers' own value. Audio and vision of the small ones do.
"""

from collections.abc import Mapping
from typing import Any

LARGE_VISION: Mapping[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 72,
    "patch_size": 16,
}
FULL_EVERY_FIFTH = ["full_attention" if number % 5 == 0 else "sliding_attention" for number in range(1, 36)]

GEMMA4_31B: Mapping[str, Any] = {
    "model_type": "gemma4",
    "text_config": {
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_hidden_layers": 60,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
        "head_dim": 256,
        "global_head_dim": 512,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "sliding_window": 1024,
    },
    "vision_config": LARGE_VISION,
}
GEMMA4_26B_A4B: Mapping[str, Any] = {
    "model_type": "gemma4",
    "text_config": {
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "num_hidden_layers": 30,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "sliding_window": 1024,
        "enable_moe_block": True,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
    },
    "vision_config": LARGE_VISION,
}
GEMMA4_12B: Mapping[str, Any] = {
    "model_type": "gemma4_unified",
    "text_config": {
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "sliding_window": 1024,
    },
    "vision_config": {},
    "audio_config": {},
}
GEMMA4_E4B: Mapping[str, Any] = {
    "model_type": "gemma4",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 42,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 18,
        "sliding_window": 512,
    },
    "vision_config": {},
    "audio_config": {},
}
GEMMA4_E2B: Mapping[str, Any] = {
    "model_type": "gemma4",
    "text_config": {
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_hidden_layers": 35,
        "layer_types": FULL_EVERY_FIFTH,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "num_kv_shared_layers": 20,
        "use_double_wide_mlp": True,
        "sliding_window": 512,
    },
    "vision_config": {},
    "audio_config": {},
}
KNOWN_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    f"google/gemma-4-{name}{kind}": config
    for name, config in (
        ("31b", GEMMA4_31B),
        ("26b-a4b", GEMMA4_26B_A4B),
        ("12b", GEMMA4_12B),
        ("e4b", GEMMA4_E4B),
        ("e2b", GEMMA4_E2B),
    )
    for kind in ("-it", "")
}
"""By id in lower case."""


def known_config(model_id: str) -> Mapping[str, Any] | None:
    """The shape of a hub model, None if it is not in the table."""
    return KNOWN_CONFIGS.get(model_id.lower())
