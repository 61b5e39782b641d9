"""The loss of a model on the answers of held-out rows, over all ranks: how likely it finds what should be said.

One row a forward pass, as long rows a piece at a time as the logits need: the vocabulary is large, and nothing is
padded. Works on a plain model and on one that FSDP2 has sharded, where every rank must take part in every pass.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch.nn.functional import cross_entropy

from finetune.data import Held
from finetune.encode import IGNORED
from finetune.reader import Reader
from finetune.tasks.base import Metric

PIECE = 1024
"""Tokens whose logits are made at a time: 1.6 GB, in bf16 and in fp32, of a vocabulary of 262,144."""
Losses = tuple[tuple[float, int], ...]
"""Of each row the sum of its tokens' losses in nats, and their number."""


@dataclass(frozen=True)
class _Pass:
    """One forward pass: a row, and those of its places whose next token is supervised."""

    row: int
    places: list[int]


def measure_losses(model: Any, reader: Reader, rows: Sequence[Held]) -> Losses:
    """The losses of all rows, the same on every rank. Every rank must call it."""
    state = PartialState()
    passes = [one for number, (row, _) in enumerate(rows) for one in _passes(number, row.labels)]
    mine = passes[state.process_index :: state.num_processes]
    # A rank without a pass left does the first again: under FSDP2 it must keep step.
    rounds = -(-len(passes) // state.num_processes)
    training = model.training
    model.eval()
    sums: list[tuple[int, float]] = []
    with torch.no_grad():
        for turn in range(rounds):
            one = mine[turn] if turn < len(mine) else passes[0]
            loss = _loss(model, reader, rows[one.row], one.places)
            if turn < len(mine):
                sums.append((one.row, loss))
    model.train(training)
    totals = [0.0] * len(rows)
    for number, loss in sorted(gather_object(sums)):
        totals[number] += loss
    return tuple(
        (total, sum(label != IGNORED for label in row.labels)) for total, (row, _) in zip(totals, rows, strict=True)
    )


def _passes(number: int, labels: Sequence[int]) -> list[_Pass]:
    places = [place - 1 for place, label in enumerate(labels) if label != IGNORED]
    return [_Pass(number, places[start : start + PIECE]) for start in range(0, len(places), PIECE)]


def _loss(model: Any, reader: Reader, held: Held, places: Sequence[int]) -> float:
    row, pictures = held
    device = PartialState().device
    ids = torch.tensor([row.ids])
    inputs = {"input_ids": ids, **reader.token_types(ids), **reader.pixels(pictures)}
    wanted = torch.tensor([row.labels[place + 1] for place in places], device=device)
    logits = model(
        **{name: value.to(device) for name, value in inputs.items()},
        logits_to_keep=torch.tensor(places, device=device),
        use_cache=False,
    ).logits[0]
    return float(cross_entropy(logits.float(), wanted, reduction="sum"))


def token_loss(losses: Losses) -> Metric:
    """The mean over all supervised tokens, with its standard error: that of a ratio of sums over rows, which are what
    was drawn (W. G. Cochran, "Sampling Techniques", 3rd ed., 1977, section 2.11)."""
    total, tokens = sum(loss for loss, _ in losses), sum(count for _, count in losses)
    mean, rows = total / tokens, len(losses)
    spread = sum((loss - mean * count) ** 2 for loss, count in losses)
    error = math.sqrt(spread * rows / (rows - 1)) / tokens if rows > 1 else 0.0
    return Metric("token_loss", mean, tokens, "nats a token", error)
