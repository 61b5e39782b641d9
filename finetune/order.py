"""The order of the rows: each seen exactly once an epoch, in an order that depends on the seed and the epoch alone."""

from collections.abc import Iterator, Sequence

import torch
from datasets import Dataset, concatenate_datasets
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import get_length_grouped_indices

from finetune.encode import IGNORED

FILLER = -1
"""Row number of a row without labels, which fills the last micro-batches of an epoch."""


def with_fillers(train: Dataset, multiple: int) -> Dataset:
    """Add rows without labels until the number of rows is a multiple of `multiple` (micro-batch x ranks).

    Without them Accelerate evens the ranks out by repeating rows: those would count twice. A filler is the shortest
    row, whole, so that with images every rank runs the vision tower in every step: under FSDP2 it has to.
    """
    missing = -len(train) % multiple
    if not missing:
        return train
    lengths = [len(ids) for ids in train["input_ids"]]
    shortest = min(range(len(train)), key=lengths.__getitem__)
    row = {**train[shortest], "row": FILLER}
    row["labels"] = [IGNORED] * len(row["labels"])
    return concatenate_datasets([train, Dataset.from_list([row] * missing, features=train.features)])


class EpochOrder(Sampler[int]):
    """Each epoch's order of the rows, from (seed, epoch) alone, so that it is the same on every rank.

    `lengths` in tokens, None for a plain shuffle. Rows of like length stand together, in groups of whole
    optimizer steps (`step_rows` each). Rows from `rows` on are fillers, and come last.
    """

    def __init__(self, rows: int, fillers: int, step_rows: int, seed: int, lengths: Sequence[int] | None) -> None:
        self.rows, self.fillers, self.step_rows, self.seed, self.lengths = rows, fillers, step_rows, seed, lengths
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.rows + self.fillers

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        if self.lengths is None:
            yield from torch.randperm(self.rows, generator=generator).tolist()
        else:
            yield from self._grouped(self.lengths, generator)
        yield from range(self.rows, self.rows + self.fillers)

    def _grouped(self, lengths: Sequence[int], generator: torch.Generator) -> Iterator[int]:
        # transformers sorts the rows of some 50 steps by length; left so, the loss would rise and fall with it.
        # The step with the longest row stays first (what does not fit into memory fails at once), a part of one last.
        order = get_length_grouped_indices(lengths, self.step_rows, generator=generator)
        starts = range(self.step_rows, self.rows - self.step_rows + 1, self.step_rows)
        yield from order[: self.step_rows]
        for place in torch.randperm(len(starts), generator=generator).tolist():
            yield from order[starts[place] : starts[place] + self.step_rows]
        yield from order[max(self.rows // self.step_rows, 1) * self.step_rows :]
