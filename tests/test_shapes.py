"""shapes.py: the numbers that a plan states about an adapter are those that PEFT makes."""

from pathlib import Path
from typing import Any

import pytest

from finetune.known_models import GEMMA4_31B
from finetune.shapes import TEXT_LAYER_CLASS, adapter_size

TYPES = ["sliding_attention", "full_attention"]
SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "vocab_size_per_layer_input": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "layer_types": TYPES * 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 0,
}
TEXT_CONFIGS: dict[str, dict[str, Any]] = {
    "keys are values": {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
    "plain": {},
    "last layer is made full": {"layer_types": [*TYPES, "full_attention", "sliding_attention"]},
    "shared keys and values": {"num_kv_shared_layers": 2},
    "shared, double-wide": {"num_kv_shared_layers": 2, "use_double_wide_mlp": True},
    "per-layer inputs": {"hidden_size_per_layer_input": 8},
    "experts": {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16},
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "position_embedding_size": 64,
}
AUDIO = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "subsampling_conv_channels": [8, 4],
    "output_proj_dims": 24,
}


def test_the_31b_has_the_published_sizes() -> None:
    text = adapter_size(GEMMA4_31B, "text", 16)
    linear = adapter_size(GEMMA4_31B, "all-linear", 64)
    assert text.modules == {"text": 410}  # 7 x 60, less v_proj on 10 full-attention layers
    assert round(text.total_parameters / 1e6) == 122
    assert round(linear.total_parameters / 1e6) == 534
    assert set(linear.modules) == {"text", "vision"}


def peft_size(config: dict[str, Any], targets: str, unified: bool = False) -> tuple[dict[str, int], int]:
    """Modules by part, and parameters, that are really adapted on a random model of this config.json."""
    import torch
    from transformers import AutoModelForMultimodalLM, Gemma4Config, Gemma4UnifiedConfig

    from finetune.model import add_lora, describe
    from finetune.settings import Settings

    with torch.device("meta"):
        kind = Gemma4UnifiedConfig if unified else Gemma4Config
        model = AutoModelForMultimodalLM.from_config(kind(**config)).requires_grad_(False)
        adapted = describe(add_lora(model, Settings(lora_r=4, lora_alpha=4, lora_targets=targets)))
    return {part: count for part, count in adapted.adapted_by_part.items() if count}, adapted.trainable


@pytest.mark.parametrize("targets", ["text", "all-linear"])
@pytest.mark.parametrize("name", TEXT_CONFIGS)
def test_numbers_are_those_of_peft(name: str, targets: str) -> None:
    audio = AUDIO if name == "per-layer inputs" else None
    config = {"text_config": {**SMALL, **TEXT_CONFIGS[name]}, "vision_config": VISION, "audio_config": audio}
    size = adapter_size({"model_type": "gemma4", **config}, targets, 4)
    assert (dict(size.modules), size.total_parameters) == peft_size(config, targets)
    assert size.total_modules == sum(size.modules.values())


@pytest.mark.parametrize("targets", ["text", "all-linear"])
def test_numbers_of_the_unified_architecture_are_those_of_peft(targets: str) -> None:
    text = {key: value for key, value in SMALL.items() if "per_layer_input" not in key}
    vision = {"mm_embed_dim": 24, "mm_posemb_size": 8, "output_proj_dims": 24}
    config = {"text_config": {**text, **TEXT_CONFIGS["keys are values"]}, "vision_config": vision}
    size = adapter_size({"model_type": "gemma4_unified", **config}, targets, 4)
    assert (dict(size.modules), size.total_parameters) == peft_size(config, targets, unified=True)
    assert ("vision" in size.modules) is (targets == "all-linear")


def test_routers_and_what_hears_are_not_adapted() -> None:
    text = {**SMALL, **TEXT_CONFIGS["experts"]}
    with_experts = adapter_size({"model_type": "gemma4", "text_config": text}, "all-linear", 4)
    without = adapter_size({"model_type": "gemma4", "text_config": {**SMALL}}, "all-linear", 4)
    assert with_experts == without
    hears = adapter_size({"model_type": "gemma4", "text_config": text, "audio_config": AUDIO}, "all-linear", 4)
    assert hears == with_experts


def test_a_config_that_transformers_wrote_gives_the_same_numbers(tiny_model: Path) -> None:
    import json

    written = json.loads((tiny_model / "config.json").read_text())
    size = adapter_size(written, "all-linear", 4)
    parts = {key: written[key] for key in ("text_config", "vision_config", "audio_config")}
    assert (dict(size.modules), size.total_parameters) == peft_size(parts, "all-linear")


def test_layer_classes_exist() -> None:
    from transformers.models import gemma4, gemma4_unified

    for module, kind in (
        (gemma4.modeling_gemma4, "gemma4"),
        (gemma4_unified.modeling_gemma4_unified, "gemma4_unified"),
    ):
        assert hasattr(module, TEXT_LAYER_CLASS[kind])
