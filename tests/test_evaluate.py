"""Batched, padded, sorted generation gives what one prompt at a time gives, in the prompts' order."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForMultimodalLM

from finetune import evaluate
from finetune.chat import END_OF_TURN_TOKEN
from finetune.data import Prompts
from finetune.embedded import base_dir
from finetune.reader import Reader


@given(
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 8),
)
def test_batches_hold_every_row_once_and_every_rank_has_as_many(
    lengths: list[int], batch_size: int, world_size: int
) -> None:
    found = evaluate.batches(lengths, batch_size, world_size)
    rows = [index for batch in found for index in batch]
    assert sorted(rows) == list(range(len(lengths)))
    assert len(found) % world_size == 0
    assert all(len(batch) <= batch_size for batch in found)
    assert [lengths[index] for index in rows] == sorted(lengths, reverse=True)


@pytest.fixture(scope="module")
def base() -> Any:
    return AutoModelForMultimodalLM.from_pretrained(base_dir(), dtype=torch.float32)


def prompts(reader: Reader) -> Prompts:
    texts = [
        f"<bos><|turn>user\n{'How many birds are there? ' * count}<turn|>\n<|turn>model\n" for count in (1, 9, 3, 6, 2)
    ]
    ids: list[list[int]] = reader.tokenizer(texts, add_special_tokens=False)["input_ids"]
    return Prompts(ids, [()] * len(ids))


def test_batching_does_not_change_answers_or_their_order(base: Any, reader: Reader) -> None:
    asked = prompts(reader)
    alone = [
        evaluate.generate(base, reader, Prompts([ids], [()]), batch_size=1, max_new_tokens=12, label="alone")[0]
        for ids in asked.ids
    ]
    together = evaluate.generate(base, reader, asked, batch_size=2, max_new_tokens=12, label="together")
    assert together == alone
    assert len(set(alone)) > 1, "the prompts must tell the answers apart"


def test_generation_stops_at_the_end_of_the_turn(base: Any, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of turn is made by far the likeliest token: nothing may come after it, nor be shown."""
    end = reader.tokenizer.convert_tokens_to_ids(END_OF_TURN_TOKEN)
    forward = base.forward

    @functools.wraps(forward)  # generate() reads the signature
    def ends_at_once(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        output.logits[..., end] = 1e4
        return output

    monkeypatch.setattr(base, "forward", ends_at_once)
    answers = evaluate.generate(base, reader, prompts(reader), batch_size=5, max_new_tokens=30, label="x")
    assert answers == [""] * 5


def test_the_model_is_left_in_the_mode_it_was_in(base: Any, reader: Reader) -> None:
    for training in (True, False):
        base.train(training)
        evaluate.generate(base, reader, prompts(reader), batch_size=1, max_new_tokens=2, label="x")
        assert base.training is training


def test_the_tiny_model_generates(tiny_model: Path, reader: Reader) -> None:
    model = AutoModelForMultimodalLM.from_pretrained(tiny_model, dtype=torch.float32)
    answers = evaluate.generate(model, reader, prompts(reader), batch_size=3, max_new_tokens=5, label="x")
    assert len(answers) == 5
