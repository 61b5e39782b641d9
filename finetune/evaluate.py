"""Generate answers to held-out prompts, over all ranks, and have the task score them.

Greedy, left-padded, in batches of like length; stops at the end of the turn. Works on a plain model
and on one that FSDP2 has sharded, where every rank must take part in every step of every batch.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch.distributed.fsdp import FSDPModule
from tqdm import tqdm
from transformers import GenerationConfig

from finetune.chat import END_OF_TURN_TOKEN
from finetune.data import Prompts
from finetune.errors import Interrupted
from finetune.journal import Answers
from finetune.reader import Reader

NOTHING = Answers()
Keep = Callable[[Answers], None]
Pause = Callable[[], tuple[bool, bool]]


def keep_nothing(answers: Answers) -> None:
    """For an evaluation that begins anew each time."""


def never() -> tuple[bool, bool]:
    """For one that nobody stops."""
    return False, False


def batches(lengths: Sequence[int], batch_size: int, world_size: int) -> list[list[int]]:
    """Divide the indices of `lengths` into batches: longest first, so that a batch that is too large for the
    memory fails at once, and their number a multiple of `world_size` (the last ones may be empty)."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    found = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    return found + [[]] * (-len(found) % world_size)


def generate(
    model: Any,
    reader: Reader,
    prompts: Prompts,
    *,
    batch_size: int,
    max_new_tokens: int,
    label: str,
    kept: Answers = NOTHING,
    keep: Keep = keep_nothing,
    pause: Pause = never,
) -> list[str]:
    """One completion a prompt, in the prompts' order, the same list on every rank. It has no special tokens.

    `kept` is what an earlier start has answered; `pause` is asked after every batch whether to stop, and whether it is
    time to `keep` (on the first process) what is answered so far. Raises Interrupted once that is done.
    """
    state, tokenizer = PartialState(), reader.tokenizer
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=[tokenizer.convert_tokens_to_ids(END_OF_TURN_TOKEN), tokenizer.eos_token_id],
        pad_token_id=tokenizer.pad_token_id,
    )
    training = model.training
    model.eval()
    answers: list[tuple[int, str]] = []
    lengths = [len(ids) for ids in prompts.ids]
    shortest = min(range(len(prompts)), key=lengths.__getitem__)
    mine = batches(lengths, batch_size, state.num_processes)[state.process_index :: state.num_processes]
    if not kept.goes_on(len(mine), batch_size, state.num_processes):
        kept = Answers(0, len(mine), batch_size, state.num_processes, losses=kept.losses)

    def gather(rounds: int) -> Answers:
        found = replace(kept, rounds=rounds, texts={**kept.texts, **dict(gather_object(answers))})
        if state.is_main_process:
            keep(found)
        return found

    # Not inference_mode: FSDP2 would keep tensors made here, and they could not take part in training.
    with torch.no_grad(), _bar(label, len(prompts), len(kept.texts), state) as bar:
        for rounds, batch in enumerate(mine[kept.rounds :], start=kept.rounds + 1):
            # A rank without rows left answers the shortest prompt again: under FSDP2 it must keep step.
            texts = _answer(model, reader, prompts, batch or [shortest], config)
            answers.extend(zip(batch, texts, strict=False))
            bar.update(min(len(batch) * state.num_processes, len(prompts) - bar.n))
            stop, due = pause() if rounds < len(mine) else (False, False)
            if stop or due:
                so_far = len(gather(rounds).texts)
            if stop:
                message = f"{so_far} of {len(prompts)} rows were answered ({label})"
                raise Interrupted(message, "the same command goes on from there")
    model.train(training)
    found = kept if kept.rounds == len(mine) else gather(len(mine))
    return [found.texts[index] for index in range(len(prompts))]


def _answer(model: Any, reader: Reader, prompts: Prompts, places: Sequence[int], config: GenerationConfig) -> list[str]:
    rows = [prompts.ids[place] for place in places]
    width = max(len(row) for row in rows)
    ids = torch.tensor([[reader.tokenizer.pad_token_id] * (width - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    pixels = reader.pixels([picture for place in places for picture in prompts.pictures[place]])
    inputs = {"input_ids": ids, "attention_mask": mask, **reader.token_types(ids), **pixels}
    device = PartialState().device
    output = model.generate(
        **{name: value.to(device) for name, value in inputs.items()},
        generation_config=config,
        # Every rank must take part in every layer's gathering until the last one has finished its answers.
        # transformers sees that by itself only for models that it has sharded itself.
        synced_gpus=isinstance(model, FSDPModule),
    )
    texts: list[str] = reader.tokenizer.batch_decode(output[:, width:], skip_special_tokens=True)
    return texts


def _bar(label: str, total: int, done: int, state: PartialState) -> "tqdm[NoReturn]":
    """A bar on the main process that counts the rows of all ranks."""
    seldom = 0.1 if sys.stderr.isatty() else 30.0  # seconds; a log collector keeps every redrawing
    hidden = not state.is_main_process or done == total
    return tqdm(total=total, initial=done, desc=label, unit="row", mininterval=seldom, disable=hidden)
