"""Small random models with the traits of each size of Gemma 4: what runs on these runs on the real ones' shapes.

e2b   E2B and E4B: per-layer embeddings, keys and values shared between layers, an audio tower
31b   keys = values on the full-attention layers, image tokens attend both ways
26b   26B-A4B: as the 31B, with a mixture of experts beside each MLP
12b   the unified type: no vision tower, patches go straight into the text model
"""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForMultimodalLM,
    Gemma4AudioConfig,
    Gemma4AudioFeatureExtractor,
    Gemma4Config,
    Gemma4TextConfig,
    Gemma4UnifiedConfig,
    Gemma4UnifiedTextConfig,
    Gemma4UnifiedVisionConfig,
    Gemma4VisionConfig,
    GenerationConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.gemma4_unified.image_processing_gemma4_unified import Gemma4UnifiedImageProcessor
from transformers.models.gemma4_unified.processing_gemma4_unified import Gemma4UnifiedProcessor
from transformers.models.gemma4_unified.video_processing_gemma4_unified import Gemma4UnifiedVideoProcessor

from finetune.chat import END_OF_TURN_TOKEN
from finetune.embedded import base_dir
from finetune.embedded.tiny import new_processor
from finetune.embedded.tokenizer import VIDEO_TOKEN

MEMBERS = ("e2b", "31b", "26b", "12b")
SOFT_TOKENS = 70
_TYPES = ["sliding_attention", "full_attention"]
_TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "layer_types": _TYPES * 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": 64,
    "max_position_embeddings": 2048,
    "final_logit_softcapping": 30.0,
}
_KEYS_ARE_VALUES = {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "use_bidirectional_attention": "vision"}
_NO_PER_LAYER = {"hidden_size_per_layer_input": 0}
TEXT: dict[str, dict[str, Any]] = {
    "e2b": {"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2, "use_double_wide_mlp": True},
    "31b": {**_KEYS_ARE_VALUES, **_NO_PER_LAYER},
    "26b": {
        **_KEYS_ARE_VALUES, **_NO_PER_LAYER,
        "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16,
    },
    "12b": _KEYS_ARE_VALUES,
}  # fmt: skip
_VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "position_embedding_size": 64,
}
_AUDIO: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "subsampling_conv_channels": [8, 4],
    "output_proj_dims": 24,
}


def make_member(name: str, out: Path) -> Path:
    """Write the member as a folder that the Auto classes load: weights in fp32, tokenizer, processor."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base_dir())
    config = _config(name, tokenizer)
    torch.manual_seed(0)
    model = AutoModelForMultimodalLM.from_config(config)
    end = tokenizer.convert_tokens_to_ids(END_OF_TURN_TOKEN)
    model.generation_config = GenerationConfig(
        pad_token_id=0, bos_token_id=2, eos_token_id=[tokenizer.eos_token_id, end], do_sample=False
    )
    model.save_pretrained(out)
    _processor(name, tokenizer).save_pretrained(out)
    return out


def _config(name: str, tokenizer: PreTrainedTokenizerFast) -> Any:
    token_id = tokenizer.convert_tokens_to_ids
    vocabulary = len(tokenizer)
    text = {**_TEXT, **TEXT[name], "vocab_size": vocabulary}
    ids = {
        "image_token_id": token_id("<|image|>"),
        "boi_token_id": token_id("<|image>"),
        "eoi_token_id": token_id("<image|>"),
        "audio_token_id": token_id("<|audio|>"),
        "boa_token_id": token_id("<|audio>"),
        "eoa_token_index": token_id("<audio|>"),
        "video_token_id": token_id(VIDEO_TOKEN),
        "tie_word_embeddings": True,
    }
    if name == "12b":
        vision = Gemma4UnifiedVisionConfig(mm_embed_dim=24, mm_posemb_size=64, output_proj_dims=24)
        return Gemma4UnifiedConfig(
            text_config=Gemma4UnifiedTextConfig(**text), vision_config=vision, audio_config=None, **ids
        )
    clipped = {"use_clipped_linears": True} if name == "e2b" else {"standardize": True}
    return Gemma4Config(
        text_config=Gemma4TextConfig(**text, vocab_size_per_layer_input=vocabulary),
        vision_config=Gemma4VisionConfig(**_VISION, **clipped),
        audio_config=Gemma4AudioConfig(**_AUDIO) if name == "e2b" else None,
        **ids,
    )


def _processor(name: str, tokenizer: PreTrainedTokenizerFast) -> Any:
    if name != "12b":
        return new_processor(tokenizer)
    return Gemma4UnifiedProcessor(
        Gemma4AudioFeatureExtractor(),
        Gemma4UnifiedImageProcessor(max_soft_tokens=SOFT_TOKENS),
        tokenizer,
        Gemma4UnifiedVideoProcessor(),
        chat_template=tokenizer.chat_template,
        image_seq_length=SOFT_TOKENS,
    )
