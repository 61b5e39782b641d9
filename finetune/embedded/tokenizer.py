"""The embedded model's tokenizer: byte-fallback BPE of about 1,900 tokens with Gemma 4's special tokens.

Any text survives the round trip, byte by byte where it must. What occurs in the embedded rows is short: a word
of the pools is one token, and so is each sentence of the fixed instructions, for two CPU cores have no time to
read them again in every row.
"""

import json
import re
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from finetune.tasks.text_to_sql import SYSTEM, user_prompt

# The order fixes the ids: pad 0, eos 1 and bos 2 are Gemma's.
SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>")
MEDIA = {
    "boi_token": "<|image>",
    "image_token": "<|image|>",
    "eoi_token": "<image|>",
    "boa_token": "<|audio>",
    "audio_token": "<|audio|>",
    "eoa_token": "<audio|>",
}
VIDEO_TOKEN = (
    "<|video|>"  # Gemma4Processor adds it by itself: it must be there before, or the ids would outgrow the model
)

# Spaces lead the word or the digit they stand before. Digits stay single, so that any number can be copied.
# A run of punctuation is one piece, spaces inside it too: rows of values are half punctuation.
_PIECES = Regex(r"[A-Za-z_]+\n| ?[A-Za-z_]+| ?[0-9]| ?[^\sA-Za-z_0-9]+(?: [^\sA-Za-z_0-9]+)*|\s")

_LEARNED_TOKENS = 1600
_BYTES = [f"<0x{value:02X}>" for value in range(256)]

CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- set role = 'model' if message.role == 'assistant' else message.role -%}
{{- '<|turn>' + role + '\\n' -}}
{%- if message.content is string -%}
{{- message.content | trim -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}
{{- '<|image|>' -}}
{%- elif part.type == 'text' -%}
{{- part.text | trim -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<turn|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|turn>model\\n' -}}
{%- endif -%}
"""


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Learn the merges from `texts`: rendered prompts and answers of both dialects."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = _pre_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=_LEARNED_TOKENS, initial_alphabet=["\n", *map(chr, range(32, 127))], show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    learned = json.loads(learner.to_str())["model"]

    # The trainer would make the bytes special tokens, and "<0x41>" in a text would then be read as "A".
    special = [*SPECIAL, *MEDIA.values(), VIDEO_TOKEN]
    pieces = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    vocabulary = {piece: index for index, piece in enumerate([*special, *_BYTES, *pieces])}
    merges = [tuple(pair) for pair in learned["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(special)
    # As Gemma's own tokenizer does: who tokenises a rendered chat has to say add_special_tokens=False.
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", vocabulary["<bos>"])]
    )
    tokenizer.add_tokens([AddedToken(phrase, normalized=False, special=False) for phrase in _fixed_phrases()])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
        extra_special_tokens=MEDIA,
        chat_template=CHAT_TEMPLATE,
    )


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(_PIECES, "isolated")


def _fixed_phrases() -> list[str]:
    """The parts of a text-to-SQL prompt that never change: each sentence of the instructions, each pair of tags."""
    sentences = re.findall(r"[^.]+\.", SYSTEM)
    before, between, after = re.split("[\0\1]", user_prompt("\0", "\1"))
    return [*sentences, before, between, after]
