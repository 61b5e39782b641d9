"""Folders that hold a small Gemma 4: the embedded base's shape, and a smaller random one for tests.

Both have the traits of the 31B that code trips over: sliding-window and full-attention layers, keys = values on
the full ones, bidirectional attention over image tokens, soft-capped logits, tied embeddings and a vision tower.
"""

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma4AudioFeatureExtractor,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4ImageProcessor,
    Gemma4Processor,
    Gemma4TextConfig,
    Gemma4VideoProcessor,
    Gemma4VisionConfig,
    GenerationConfig,
    PreTrainedTokenizerFast,
)

from finetune.chat import END_OF_TURN_TOKEN
from finetune.embedded import base_dir
from finetune.embedded.tokenizer import VIDEO_TOKEN

_TRAITS: dict[str, Any] = {
    "attention_k_eq_v": True,
    "final_logit_softcapping": 30.0,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
    "sliding_window": 64,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "use_bidirectional_attention": "vision",
}
BASE_TEXT: dict[str, Any] = {
    **_TRAITS,
    "hidden_size": 128,
    "intermediate_size": 256,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_global_key_value_heads": 1,
    "global_head_dim": 64,
}
BASE_VISION_WIDTH = 64
_TINY_TEXT: dict[str, Any] = {
    **_TRAITS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "layer_types": ["sliding_attention", "full_attention"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_global_key_value_heads": 1,
    "global_head_dim": 16,
}
_TINY_VISION_WIDTH = 16
# The smallest of the budgets that Gemma 4's image processor allows: 70 soft tokens an image.
_MAX_SOFT_TOKENS = 70
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def make_tiny(out: Path, *, seed: int = 0, **text_overrides: Any) -> Path:
    """Write a random Gemma 4 of about 0.1 M parameters to `out`, with the embedded base's tokenizer and processor.

    `text_overrides` go into the text config. One that changes num_hidden_layers has to give layer_types too.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in (*_TOKENIZER_FILES, "processor_config.json"):
        shutil.copyfile(base_dir() / name, out / name)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(base_dir())
    model = new_model(tokenizer, {**_TINY_TEXT, **text_overrides}, _TINY_VISION_WIDTH, seed)
    model.save_pretrained(out)
    return out


def new_model(
    tokenizer: PreTrainedTokenizerFast, text: dict[str, Any], vision_width: int, seed: int
) -> Gemma4ForConditionalGeneration:
    """A random float32 model for `tokenizer`, which stops where a turn ends."""
    token_id = tokenizer.convert_tokens_to_ids
    ids = {"pad_token_id": token_id("<pad>"), "bos_token_id": token_id("<bos>")}
    vocabulary = len(tokenizer)
    config = Gemma4Config(
        text_config=Gemma4TextConfig(
            **{
                "vocab_size": vocabulary,
                "vocab_size_per_layer_input": vocabulary,
                "eos_token_id": token_id("<eos>"),
                **ids,
                **text,
            }
        ),
        vision_config=Gemma4VisionConfig(
            hidden_size=vision_width,
            intermediate_size=2 * vision_width,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=vision_width // 2,
            position_embedding_size=256,
            standardize=True,
        ),
        audio_config=None,
        image_token_id=token_id("<|image|>"),
        boi_token_id=token_id("<|image>"),
        eoi_token_id=token_id("<image|>"),
        audio_token_id=token_id("<|audio|>"),
        boa_token_id=token_id("<|audio>"),
        eoa_token_index=token_id("<audio|>"),
        video_token_id=token_id(VIDEO_TOKEN),
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    model = Gemma4ForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        **ids, eos_token_id=[token_id("<eos>"), token_id(END_OF_TURN_TOKEN)], do_sample=False
    )
    return model


def new_processor(tokenizer: PreTrainedTokenizerFast) -> Gemma4Processor:
    """The processor that goes with such a model. Its audio and video parts are there because the class wants them."""
    return Gemma4Processor(
        feature_extractor=Gemma4AudioFeatureExtractor(),
        image_processor=Gemma4ImageProcessor(max_soft_tokens=_MAX_SOFT_TOKENS),
        tokenizer=tokenizer,
        video_processor=Gemma4VideoProcessor(),
        chat_template=tokenizer.chat_template,
        image_seq_length=_MAX_SOFT_TOKENS,
    )
