"""shapes.py: the numbers that a plan states about an adapter are those that PEFT makes."""

from pathlib import Path
from typing import Any

import pytest

from finetune.shapes import GEMMA4_31B, TEXT_LAYER_CLASS, adapter_size

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
    assert text is not None and linear is not None
    assert text.modules == {"text": 410}  # 7 x 60, less v_proj on 10 full-attention layers
    assert round(text.total_parameters / 1e6) == 122
    assert round(linear.total_parameters / 1e6) == 534
    assert set(linear.modules) == {"text", "vision"}


def peft_size(config: dict[str, Any], targets: str) -> tuple[dict[str, int], int]:
    """Modules by part, and parameters, that PEFT really adapts on a random model of this config.json."""
    import torch
    from peft import get_peft_model
    from peft.tuners.lora import LoraConfig
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration

    from finetune.model import TEXT_PROJECTIONS

    with torch.device("meta"):
        model = Gemma4ForConditionalGeneration(Gemma4Config(**config))
        lora = LoraConfig(r=4, target_modules=TEXT_PROJECTIONS if targets == "text" else "all-linear")
        adapted = get_peft_model(model, lora)
    modules: dict[str, int] = {}
    for name, module in adapted.named_modules():
        if hasattr(module, "lora_A"):
            part = next((part for part in ("vision", "audio") if part in name), "text")
            modules[part] = modules.get(part, 0) + 1
    return modules, sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)


@pytest.mark.parametrize("targets", ["text", "all-linear"])
@pytest.mark.parametrize("name", TEXT_CONFIGS)
def test_numbers_are_those_of_peft(name: str, targets: str) -> None:
    audio = AUDIO if name == "per-layer inputs" else None
    config = {"text_config": {**SMALL, **TEXT_CONFIGS[name]}, "vision_config": VISION, "audio_config": audio}
    size = adapter_size({"model_type": "gemma4", **config}, targets, 4)
    assert size is not None
    assert (dict(size.modules), size.total_parameters) == peft_size(config, targets)
    assert size.total_modules == sum(size.modules.values())


def test_a_config_that_transformers_wrote_gives_the_same_numbers(tiny_model: Path) -> None:
    import json

    written = json.loads((tiny_model / "config.json").read_text())
    size = adapter_size(written, "all-linear", 4)
    assert size is not None
    parts = {key: written[key] for key in ("text_config", "vision_config", "audio_config")}
    assert (dict(size.modules), size.total_parameters) == peft_size(parts, "all-linear")


def test_all_linear_of_the_unified_architecture_is_not_guessed() -> None:
    assert adapter_size({"model_type": "gemma4_unified", "text_config": {}}, "all-linear", 4) is None
    assert adapter_size({"model_type": "gemma4_unified", "text_config": {}}, "text", 4) is not None


def test_layer_classes_exist() -> None:
    from transformers.models import gemma4, gemma4_unified

    for module, kind in (
        (gemma4.modeling_gemma4, "gemma4"),
        (gemma4_unified.modeling_gemma4_unified, "gemma4_unified"),
    ):
        assert hasattr(module, TEXT_LAYER_CLASS[kind])
