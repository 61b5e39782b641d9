"""The loss on held-out answers is that of the model itself, whatever pieces it is made in, with an honest interval."""

import math
import random
from typing import Any

import pytest
import torch
from transformers import AutoModelForMultimodalLM

from finetune import token_loss
from finetune.embedded import base_dir
from finetune.encode import IGNORED, TrainingRow
from finetune.reader import Reader
from finetune.token_loss import measure_losses


@pytest.fixture(scope="module")
def base() -> Any:
    return AutoModelForMultimodalLM.from_pretrained(base_dir(), dtype=torch.float32)


def rows() -> list[Any]:
    draw = random.Random(1)
    made = []
    for length in (12, 30, 7, 21):
        ids = [2, *(draw.randrange(20, 900) for _ in range(length))]
        labels = [token if place > 2 and draw.random() < 0.6 else IGNORED for place, token in enumerate(ids)]
        made.append((TrainingRow(ids, labels, 0), ()))
    return made


def test_it_is_the_models_own_loss(base: Any, reader: Reader) -> None:
    base.train()
    found = measure_losses(base, reader, rows())
    assert base.training, "left as it was"
    base.eval()
    for (row, _), (total, tokens) in zip(rows(), found, strict=True):
        own = base(input_ids=torch.tensor([row.ids]), labels=torch.tensor([row.labels])).loss
        assert tokens == sum(label != IGNORED for label in row.labels)
        assert total / tokens == pytest.approx(own.item(), rel=1e-4)


def test_pieces_change_nothing(base: Any, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measure_losses(base, reader, rows())
    monkeypatch.setattr(token_loss, "PIECE", 3)
    for (one, count), (other, same) in zip(measure_losses(base, reader, rows()), whole, strict=True):
        assert count == same and one == pytest.approx(other, rel=1e-5)


def test_the_mean_is_over_tokens_and_its_interval_holds() -> None:
    metric = token_loss.token_loss(((6.0, 3), (1.0, 1), (2.0, 4)))
    assert (metric.name, metric.value, metric.total, metric.unit) == ("token_loss", 9 / 8, 8, "nats a token")
    assert token_loss.token_loss(((6.0, 3),)).error == 0
    draw, held = random.Random(7), 0
    for _ in range(400):  # rows of a known mean of 1 nat, whose tokens are alike within a row
        losses = []
        for _ in range(60):
            tokens, level = draw.randint(1, 40), draw.expovariate(1.0)
            losses.append((tokens * level, tokens))
        found = token_loss.token_loss(tuple(losses))
        held += abs(found.value - 1.0) < 1.96 * found.error
    assert 0.88 < held / 400 < 0.98
    assert not math.isnan(token_loss.token_loss(((0.0, 5), (0.0, 5))).error)
