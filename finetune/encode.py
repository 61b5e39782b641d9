"""Example -> token ids: the prompt's and the answer's, apart. Each image is looked at on the way.

A training row is exactly `tokens(prompt) + tokens(answer + END_OF_TURN)`: tokenised apart, so that the generation
prompt is a prefix of it, token for token, and the answer's labels are its last ones, however many image tokens
stand in front.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tqdm import tqdm

from finetune.chat import render
from finetune.pictures import as_seen
from finetune.reader import Reader
from finetune.selection import SplitCounts
from finetune.tasks.base import Example, Unusable

CHUNK = 512
"""Examples tokenised at a time: enough for the tokenizer's threads, few enough to look at none in vain."""


@dataclass(frozen=True)
class Encoded:
    """An example's token ids. `prompt` begins with the one BOS and ends where the model starts to write."""

    example: Example
    prompt: list[int]
    completion: list[int]


def take(
    examples: Sequence[Example], wanted: int, reader: Reader, max_length: int, counts: SplitCounts
) -> list[Encoded]:
    """The first `wanted` examples whose images can be seen and that fit. Others are counted as dropped, never cut."""
    return list(islice(_fitting(examples, wanted, reader, max_length, counts), wanted))


def _fitting(
    examples: Sequence[Example], wanted: int, reader: Reader, max_length: int, counts: SplitCounts
) -> Iterator[Encoded]:
    images = any(example.images for example in examples[:1])
    seldom = 0.1 if sys.stderr.isatty() else 30.0  # seconds; a log collector keeps every redrawing
    total = min(wanted, len(examples))
    with (
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads,
        tqdm(total=total, desc="images", unit="row", mininterval=seldom, disable=not images or None) as bar,
    ):
        for start in range(0, len(examples), CHUNK):
            chunk = examples[start : start + CHUNK]
            sizes = threads.map(_sizes, chunk)
            for example, ids, found in zip(chunk, _tokenise(chunk, reader), sizes, strict=True):
                encoded = _assemble(example, *ids, found, reader, max_length)
                bar.update()
                if isinstance(encoded, Encoded):
                    yield encoded
                else:
                    counts.drop(encoded.reason, example.images[0].name if example.images else example.row)


def _sizes(example: Example) -> list[tuple[int, int]] | Unusable:
    """Height and width of each image. The whole image is decoded: half a file has a whole header."""
    sizes = []
    for picture in example.images:
        image = as_seen(picture)
        if isinstance(image, Unusable):
            return image
        sizes.append((image.height, image.width))
    return sizes


def _tokenise(examples: Sequence[Example], reader: Reader) -> list[tuple[list[int], list[int]]]:
    """Ids of prompt and completion for each example, an image still one placeholder."""
    rendered = [render(reader.tokenizer, example) for example in examples]
    prompts = reader.tokenizer([text.prompt for text in rendered], add_special_tokens=False)["input_ids"]
    completions = reader.tokenizer([text.completion for text in rendered], add_special_tokens=False)["input_ids"]
    return list(zip(prompts, completions, strict=True))


def _assemble(
    example: Example,
    prompt: list[int],
    completion: list[int],
    sizes: list[tuple[int, int]] | Unusable,
    reader: Reader,
    max_length: int,
) -> Encoded | Unusable:
    if isinstance(sizes, Unusable):
        return sizes
    tokenizer: Any = reader.tokenizer
    placeholder = getattr(tokenizer, "image_token_id", None)
    if sum(token == placeholder for token in prompt + completion) != len(sizes):
        return Unusable(f"its text holds the image token {tokenizer.image_token}")
    left = iter(sizes)
    whole = [] if prompt[:1] == [tokenizer.bos_token_id] else [tokenizer.bos_token_id]
    for token in prompt:
        whole += reader.image_tokens(*next(left)) if token == placeholder else [token]
    if len(whole) + len(completion) > max_length:
        return Unusable(f"longer than --max-length {max_length}")
    return Encoded(example, whole, completion)
