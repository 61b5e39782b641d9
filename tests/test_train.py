"""The same rows give the same update however they are split; each row is seen once; bad losses are named."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from finetune import data, train
from finetune.data import IGNORED
from finetune.errors import TrainingError
from finetune.model import add_lora, load_base, load_tokenizer
from finetune.plan import Launch, Plan
from finetune.settings import Settings
from finetune.tasks import TASKS

ONE_CPU = Launch(accel_config="cpu.yaml", num_processes=1, fsdp=False, use_cpu=True, bf16=False)


def plan(model: Path, output_dir: Path, **changes: Any) -> Plan:
    settings = Settings(
        model_id=str(model),
        dataset="embedded",
        output_dir=str(output_dir),
        train_size=22,
        eval_size=0,
        lora_dropout=0.0,
        learning_rate=1e-2,
        num_train_epochs=1,
        warmup_ratio=0.0,
        save_strategy="no",
        activation_checkpointing=False,
        logging_steps=1,
    )
    return Plan("run", replace(settings, **changes), {}, "cpu", "a test", ONE_CPU, {})


def trained(plan: Plan) -> tuple[dict[str, torch.Tensor], train.ProgressLines]:
    """The adapter's tensors after a run of the plan, and its history."""
    tokenizer = load_tokenizer(plan.settings)
    prepared = data.prepare(TASKS["text-to-sql"], plan.settings, tokenizer, train=True)
    model = add_lora(load_base(plan, torch.device("cpu")), plan.settings)
    trainer, progress = train.build(plan, model, tokenizer, prepared.train)
    trainer.train()
    state = {name: value.detach().clone() for name, value in model.named_parameters() if value.requires_grad}
    return state, progress


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """How far apart two adapters are, as a share of the size of their B matrices, which start at zero.

    Not element by element: Adam turns the rounding noise of a near-zero gradient into a whole step.
    """
    assert one.keys() == other.keys()
    moved = [name for name in other if "lora_B" in name]
    apart = sum((one[name] - other[name]).square().sum().item() for name in moved)
    return (apart / sum(other[name].square().sum().item() for name in moved)) ** 0.5


@pytest.mark.parametrize("batching", ["length-grouped", "shuffled"])
def test_micro_batches_do_not_change_the_update(tiny_model: Path, tmp_path: Path, batching: str) -> None:
    whole, history = trained(
        plan(tiny_model, tmp_path, batching=batching, per_device_train_batch_size=8, gradient_accumulation_steps=1)
    )
    for size, steps in ((4, 2), (1, 8)):
        split, _ = trained(
            plan(
                tiny_model, tmp_path, batching=batching,
                per_device_train_batch_size=size, gradient_accumulation_steps=steps,
            )
        )  # fmt: skip
        assert distance(split, whole) < 1e-3
    assert len(history.history) == 3, "22 rows in steps of 8"
    assert history.history[-1]["loss"] < history.history[0]["loss"]
    assert all(entry["grad_norm"] > 0 for entry in history.history)


def test_activation_checkpointing_changes_nothing(tiny_model: Path, tmp_path: Path) -> None:
    plain, _ = trained(plan(tiny_model, tmp_path, per_device_train_batch_size=4))
    saving, _ = trained(plan(tiny_model, tmp_path, per_device_train_batch_size=4, activation_checkpointing=True))
    for name, value in plain.items():
        torch.testing.assert_close(saving[name], value, atol=1e-6, rtol=1e-5)


def rows(*lengths: int) -> Dataset:
    ids = [[5] * length for length in lengths]
    labels = [[IGNORED] * (length - 1) + [5] for length in lengths]
    return Dataset.from_dict({"input_ids": ids, "labels": labels, "row": list(range(len(lengths)))})


@pytest.mark.parametrize("lengths", [None, [9, 1, 5, 3, 7, 2, 8, 6, 4, 10]])
def test_every_epoch_holds_every_row_once_fillers_last(lengths: list[int] | None) -> None:
    order = train.EpochOrder(10, 2, step_rows=4, seed=1, lengths=lengths)
    epochs = []
    for epoch in (0, 1, 0):
        order.set_epoch(epoch)
        epochs.append(list(order))
        assert sorted(epochs[-1]) == list(range(12)) and epochs[-1][10:] == [10, 11]
    assert epochs[0] == epochs[2] != epochs[1]
    assert len(order) == 12


@pytest.mark.parametrize("count", [3, 4, 64, 67])
def test_steps_are_alike_in_length_but_come_in_no_order_of_length(count: int) -> None:
    lengths = [10 + 7 * index % 101 for index in range(count)]
    order = list(train.EpochOrder(count, 0, step_rows=4, seed=1, lengths=lengths))
    assert sorted(order) == list(range(count))
    longest = [max(lengths[index] for index in order[start : start + 4]) for start in range(0, count, 4)]
    assert longest[0] == max(lengths)
    if count >= 64:
        assert longest != sorted(longest, reverse=True)
        spreads = [
            longest[step] - min(lengths[index] for index in order[4 * step : 4 * step + 4]) for step in range(16)
        ]
        assert sum(spreads) / 16 < (max(lengths) - min(lengths)) / 4


@pytest.mark.parametrize(("count", "multiple", "expected"), [(5, 4, 8), (8, 4, 8), (1, 16, 16), (3, 1, 3)])
def test_fillers_make_whole_micro_batches_and_carry_no_labels(count: int, multiple: int, expected: int) -> None:
    filled = train.with_fillers(rows(*range(4, 4 + count)), multiple)
    assert len(filled) == expected
    for row in filled.to_list()[count:]:
        assert row["row"] == train.FILLER and set(row["labels"]) == {IGNORED}


def test_a_loss_that_is_no_number_names_the_rows(tiny_model: Path, tmp_path: Path) -> None:
    bad = plan(tiny_model, tmp_path, per_device_train_batch_size=4)
    tokenizer = load_tokenizer(bad.settings)
    prepared = data.prepare(TASKS["text-to-sql"], bad.settings, tokenizer, train=True)
    model = add_lora(load_base(bad, torch.device("cpu")), bad.settings)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(float("nan"))
    trainer, _ = train.build(bad, model, tokenizer, prepared.train)
    with pytest.raises(TrainingError, match=r"the loss is nan at step 1; the batch held rows \d+, \d+, \d+, \d+\n"):
        trainer.train()


def test_warm_up_is_a_share_of_all_steps(tiny_model: Path, tmp_path: Path) -> None:
    arguments = train.training_arguments(plan(tiny_model, tmp_path, warmup_ratio=0.1, num_train_epochs=3), tmp_path, 20)
    assert arguments.warmup_steps == 6
    arguments = train.training_arguments(plan(tiny_model, tmp_path, warmup_ratio=0.1, max_steps=50), tmp_path, 20)
    assert (arguments.warmup_steps, arguments.max_steps) == (5, 50)
