"""The same rows give the same update however they are split; each row is seen once; bad losses are named."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from PIL import Image
from transformers import TrainerCallback

from finetune import data, train
from finetune.encode import IGNORED
from finetune.errors import TrainingError
from finetune.model import add_lora
from finetune.order import FILLER, EpochOrder, with_fillers
from finetune.plan import Launch, Plan
from finetune.reader import load_reader
from finetune.settings import Settings
from finetune.tasks import TASKS
from tests.loading import base_of, trainer_of

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


class Gradients(TrainerCallback):
    """The adapter's gradient at every optimizer step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        found = {name: value.grad for name, value in model.named_parameters() if value.requires_grad}
        self.steps.append({name: value.clone() for name, value in found.items() if value is not None})


def trained(plan: Plan) -> tuple[list[dict[str, torch.Tensor]], train.ProgressLines]:
    """The gradients of a run of the plan, step by step, and its history."""
    task = TASKS[plan.settings.task]
    reader = load_reader(plan.settings, task.IMAGES)
    prepared = data.prepare(task, plan.settings, reader, train=True)
    model = add_lora(base_of(plan), plan.settings)
    trainer, progress = trainer_of(plan, model, reader, prepared)
    gradients = Gradients()
    trainer.add_callback(gradients)
    trainer.train()
    return gradients.steps, progress


def assert_same_gradients(
    one: list[dict[str, torch.Tensor]], other: list[dict[str, torch.Tensor]], tolerance: float
) -> None:
    """Equal to rounding, module by module, as a share of the whole gradient.

    Not the weights: Adam turns the rounding noise of a gradient that is zero into a whole step.
    """
    assert len(one) == len(other) > 0
    for step, (left, right) in enumerate(zip(one, other, strict=True)):
        size = sum(value.square().sum() for value in right.values()) ** 0.5
        assert left.keys() == right.keys() and size > 0
        for name, value in right.items():
            assert (left[name] - value).norm() / size < tolerance, f"step {step}: {name}"


def split_alike(model: Path, folder: Path, **changes: Any) -> list[dict[str, torch.Tensor]]:
    """The gradients of steps of 8 rows, after seeing that they are the same in micro-batches of 4 and of 1."""
    changes = {"learning_rate": 1e-6, **changes}  # the steps' weights must stay comparable
    whole, _ = trained(plan(model, folder, **changes, per_device_train_batch_size=8))
    for size, steps in ((4, 2), (1, 8)):
        shared = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps}
        split, _ = trained(plan(model, folder, **changes, **shared))
        assert_same_gradients(split, whole, tolerance=1e-5)
    return whole


@pytest.mark.parametrize("batching", ["length-grouped", "shuffled"])
def test_micro_batches_do_not_change_the_update(tiny_model: Path, tmp_path: Path, batching: str) -> None:
    assert len(split_alike(tiny_model, tmp_path, batching=batching)) == 3, "22 rows in steps of 8"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of 2 x 7 images of many shapes."""
    for number in range(14):
        folder = tmp_path / "photos" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        image = Image.effect_mandelbrot((60 + 20 * number, 100), (-2, -1.5, 1, 1.5), 20 + 9 * number)
        image.convert("RGB").save(folder / f"{number}.png")
    return tmp_path / "photos"


def test_micro_batches_of_images_do_not_change_the_update(tiny_model: Path, tmp_path: Path, photos: Path) -> None:
    """Fillers, which have an image as well, change nothing either: 11 rows to train on."""
    changes = {"task": "pets", "dataset": str(photos), "train_size": 11, "lora_targets": "all-linear"}
    whole = split_alike(tiny_model, tmp_path, **changes)
    assert any("vision_tower" in name and value.abs().sum() > 0 for name, value in whole[0].items())


def test_training_lowers_the_loss_and_keeps_its_history(tiny_model: Path, tmp_path: Path) -> None:
    _, progress = trained(plan(tiny_model, tmp_path, per_device_train_batch_size=8))
    assert [entry["step"] for entry in progress.history] == [1, 2, 3]
    assert progress.history[-1]["loss"] < progress.history[0]["loss"]
    assert all(entry["grad_norm"] > 0 and entry["tokens_per_second"] > 0 for entry in progress.history)


def test_activation_checkpointing_changes_nothing(tiny_model: Path, tmp_path: Path) -> None:
    changes = {"per_device_train_batch_size": 4, "learning_rate": 1e-6}
    plain, _ = trained(plan(tiny_model, tmp_path, **changes))
    saving, _ = trained(plan(tiny_model, tmp_path, **changes, activation_checkpointing=True))
    assert_same_gradients(saving, plain, tolerance=1e-5)


def rows(*lengths: int) -> Dataset:
    ids = [[5] * length for length in lengths]
    labels = [[IGNORED] * (length - 1) + [5] for length in lengths]
    return Dataset.from_dict({"input_ids": ids, "labels": labels, "row": list(range(len(lengths)))})


@pytest.mark.parametrize("lengths", [None, [9, 1, 5, 3, 7, 2, 8, 6, 4, 10]])
def test_every_epoch_holds_every_row_once_fillers_last(lengths: list[int] | None) -> None:
    order = EpochOrder(10, 2, step_rows=4, seed=1, lengths=lengths)
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
    order = list(EpochOrder(count, 0, step_rows=4, seed=1, lengths=lengths))
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
    filled = with_fillers(rows(*range(4, 4 + count)), multiple)
    assert len(filled) == expected
    for row in filled.to_list()[count:]:
        assert row["row"] == FILLER and set(row["labels"]) == {IGNORED}


def test_a_loss_that_is_no_number_names_the_rows(tiny_model: Path, tmp_path: Path) -> None:
    bad = plan(tiny_model, tmp_path, per_device_train_batch_size=4)
    reader = load_reader(bad.settings, images=False)
    prepared = data.prepare(TASKS["text-to-sql"], bad.settings, reader, train=True)
    model = add_lora(base_of(bad), bad.settings)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(float("nan"))
    trainer, _ = trainer_of(bad, model, reader, prepared)
    with pytest.raises(TrainingError, match=r"the loss is nan at step 1; the batch held rows \d+, \d+, \d+, \d+\n"):
        trainer.train()


def test_warm_up_is_a_share_of_all_steps(tiny_model: Path, tmp_path: Path) -> None:
    arguments = train.training_arguments(plan(tiny_model, tmp_path, warmup_ratio=0.1, num_train_epochs=3), tmp_path, 20)
    assert arguments.warmup_steps == 6
    arguments = train.training_arguments(plan(tiny_model, tmp_path, warmup_ratio=0.1, max_steps=50), tmp_path, 20)
    assert (arguments.warmup_steps, arguments.max_steps) == (5, 50)
