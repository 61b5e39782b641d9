"""parameters.py: its numbers are those of the real classes, and of what bitsandbytes packs."""

from typing import Any

import pytest

from finetune.known_models import GEMMA4_31B
from finetune.parameters import Parameters, count
from tests.test_shapes import AUDIO, SMALL, TEXT_CONFIGS, VISION

UNIFIED_TEXT = {key: value for key, value in SMALL.items() if "per_layer_input" not in key}
UNIFIED_VISION = {"mm_embed_dim": 24, "mm_posemb_size": 8, "output_proj_dims": 24}
CONFIGS: dict[str, dict[str, Any]] = {
    **{
        name: {"model_type": "gemma4", "text_config": {**SMALL, **text}, "vision_config": VISION, "audio_config": None}
        for name, text in TEXT_CONFIGS.items()
    },
    "audio": {"model_type": "gemma4", "text_config": SMALL, "vision_config": VISION, "audio_config": AUDIO},
    "text alone": {"model_type": "gemma4", "text_config": SMALL, "vision_config": None, "audio_config": None},
    "unified": {
        "model_type": "gemma4_unified",
        "text_config": {**UNIFIED_TEXT, **TEXT_CONFIGS["keys are values"]},
        "vision_config": UNIFIED_VISION,
        "audio_config": {"audio_embed_dim": 20},
    },
    "defaults": {"model_type": "gemma4", "text_config": {}, "vision_config": {}, "audio_config": {}},
    "unified defaults": {"model_type": "gemma4_unified", "text_config": {}, "vision_config": {}, "audio_config": {}},
}


def real(config: dict[str, Any]) -> tuple[int, int]:
    """All parameters of the model that transformers makes of a config, and those that bitsandbytes would pack."""
    import torch
    from torch import nn
    from transformers import AutoModelForMultimodalLM, Gemma4Config, Gemma4UnifiedConfig

    kind = Gemma4UnifiedConfig if config["model_type"] == "gemma4_unified" else Gemma4Config
    given = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = AutoModelForMultimodalLM.from_config(kind(**given))
    model.tie_weights()
    linears = [module for name, module in model.named_modules() if isinstance(module, nn.Linear) and name != "lm_head"]
    return sum(p.numel() for p in model.parameters()), sum(linear.weight.numel() for linear in linears)


@pytest.mark.parametrize("name", CONFIGS)
def test_counts_are_those_of_the_real_classes(name: str) -> None:
    found = count(CONFIGS[name])
    assert (found.total, found.packed) == real(CONFIGS[name])


def test_the_31b_has_the_published_size() -> None:
    found = count({**GEMMA4_31B, "audio_config": None})
    assert round(found.total / 1e9, 1) == 31.3
    assert round(2 * found.total / 1e9, 1) == 62.5
    assert (found.total, found.packed) == real({**GEMMA4_31B, "audio_config": None})
    assert isinstance(found, Parameters) and found.experts == found.per_layer_embeddings == 0
