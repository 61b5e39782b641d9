"""Example -> token ids: the prompt's and the answer's, apart. Each image is looked at on the way.

An answer is trained on as exactly `tokens(prompt) + tokens(answer + END_OF_TURN)`: tokenised apart, so that the
generation prompt is a prefix of it, token for token, however many image tokens stand in front. Several answers of a
conversation share a training row where the later prompt begins with all of the earlier prompt and answer; with a
template that opens an answer with more than it keeps of it (chat.py), each has a row of its own.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from tqdm import tqdm

from finetune.chat import render_turns
from finetune.pictures import as_seen
from finetune.reader import Reader
from finetune.selection import SplitCounts
from finetune.tasks.base import Example, Unusable

IGNORED = -100
"""Label of a token that is not trained on (torch's cross-entropy default)."""
CHUNK = 512
"""Examples tokenised at a time: enough for the tokenizer's threads, few enough to look at none in vain."""


@dataclass(frozen=True)
class Turn:
    """Token ids of what the assistant should say once, and of all before it, in which there are `images`. `prompt`
    begins with the one BOS and ends where the model starts to write."""

    prompt: list[int]
    completion: list[int]
    images: int = 0


@dataclass(frozen=True)
class Encoded:
    """An example's token ids, by turn of the assistant. The last is the example's answer."""

    example: Example
    turns: tuple[Turn, ...]

    @property
    def prompt(self) -> list[int]:
        return self.turns[-1].prompt

    @property
    def completion(self) -> list[int]:
        return self.turns[-1].completion

    @property
    def longest(self) -> int:
        """Tokens of the longest row that is made of it."""
        return max(len(turn.prompt) + len(turn.completion) for turn in self.turns)


@dataclass(frozen=True)
class TrainingRow:
    """A training row: ids, and labels that are IGNORED but for what the assistant says; `images` stand in it."""

    ids: list[int]
    labels: list[int]
    images: int


def sequences(encoded: Encoded) -> list[TrainingRow]:
    """The training rows of an example: one, if each prompt goes on where the turn before ended."""
    made: list[TrainingRow] = []
    for turn in encoded.turns:
        ids, before = turn.prompt + turn.completion, made[-1] if made else None
        known = before.ids if before and turn.prompt[: len(before.ids)] == before.ids else []
        labels = before.labels if before and known else []
        made[-1:] = [] if known else made[-1:]
        unknown = [IGNORED] * (len(turn.prompt) - len(known))
        made.append(TrainingRow(ids, [*labels, *unknown, *turn.completion], turn.images))
    return made


def take(
    examples: Sequence[Example], wanted: int, reader: Reader, max_length: int, counts: SplitCounts
) -> list[Encoded]:
    """The first `wanted` examples whose images can be seen and that fit. Others are counted as dropped, never cut."""
    return list(islice(_fitting(examples, wanted, reader, max_length, counts), wanted))


def _fitting(
    examples: Sequence[Example], wanted: int, reader: Reader, max_length: int, counts: SplitCounts
) -> Iterator[Encoded]:
    images = any(example.images for example in examples[:CHUNK])
    seldom = 0.1 if sys.stderr.isatty() else 30.0  # seconds; a log collector keeps every redrawing
    total = min(wanted, len(examples))
    with (
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads,
        tqdm(total=total, desc="images", unit="row", mininterval=seldom, disable=not images or None) as bar,
    ):
        for start in range(0, len(examples), CHUNK):
            chunk = examples[start : start + CHUNK]
            sizes = threads.map(_sizes, chunk)
            for example, turns, found in zip(chunk, _tokenise(chunk, reader), sizes, strict=True):
                encoded = _assemble(example, turns, found, reader, max_length)
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


def _tokenise(examples: Sequence[Example], reader: Reader) -> list[list[Turn]]:
    """Ids of prompt and completion of each example's turns, an image still one placeholder."""
    rendered = [render_turns(reader.tokenizer, example) for example in examples]
    texts = [text for turns in rendered for text in turns]
    # Not verbose: rows that are too long are left out below, and its warning would say that they break the model.
    tokens = partial(reader.tokenizer, add_special_tokens=False, verbose=False)
    prompts = tokens([text.prompt for text in texts])["input_ids"]
    completions = tokens([text.completion for text in texts])["input_ids"]
    made = iter([Turn(*ids) for ids in zip(prompts, completions, strict=True)])
    return [list(islice(made, len(turns))) for turns in rendered]


def _assemble(
    example: Example, turns: list[Turn], sizes: list[tuple[int, int]] | Unusable, reader: Reader, max_length: int
) -> Encoded | Unusable:
    if isinstance(sizes, Unusable):
        return sizes
    tokenizer: Any = reader.tokenizer
    placeholder = getattr(tokenizer, "image_token_id", None)
    if sum(token == placeholder for token in turns[-1].prompt + turns[-1].completion) != len(sizes):
        return Unusable(f"its text holds the image token {tokenizer.image_token}")
    if sizes and reader.processor is None:
        return Unusable("it has images, and the model no image processor")
    images = [reader.image_tokens(*size) for size in sizes]
    encoded = Encoded(example, tuple(_with_images(turn, images, placeholder, tokenizer) for turn in turns))
    return encoded if encoded.longest <= max_length else Unusable(f"longer than --max-length {max_length}")


def _with_images(turn: Turn, images: Sequence[list[int]], placeholder: int | None, tokenizer: Any) -> Turn:
    """The turn, with BOS, and each image's tokens in place of its placeholder."""
    left = iter(images)
    whole = [] if turn.prompt[:1] == [tokenizer.bos_token_id] else [tokenizer.bos_token_id]
    for token in turn.prompt:
        whole += next(left) if token == placeholder else [token]
    return Turn(whole, turn.completion, turn.prompt.count(placeholder) if placeholder is not None else 0)
