"""TRL's SFTTrainer, with what this job needs on top.

* The loss is the mean over all supervised tokens of an optimizer step, so the same rows give the same
  update however they are split over micro-batches and ranks.
* Every row is seen exactly once an epoch, in an order that depends on the seed and the epoch alone.
* A loss that is no longer finite stops the run, and says which rows were in the batch.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, concatenate_datasets
from peft import PeftModel
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils.data import Sampler
from tqdm import tqdm
from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.trainer_pt_utils import get_length_grouped_indices
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from finetune.checkpoint import save_adapter
from finetune.data import IGNORED, Pictures, Prepared
from finetune.errors import TrainingError
from finetune.plan import Plan
from finetune.reader import Reader

SCHEDULERS = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
"""Our names -> transformers', all of which begin with the warm-up."""
FILLER = -1
"""Row number of a row without labels, which fills the last micro-batches of an epoch."""
IMAGE_WORKERS = 2
"""Processes a GPU that read images ahead: some 20 ms an image, else waited for in every micro-batch."""


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


class Collator(DataCollatorForLanguageModeling):
    """TRL's collator, plus the images, and the rows' numbers, so that a bad batch can be named.

    `pictures` are those of each row, by its place. For rows with images the result is that of TRL's own collator for
    vision models, which would tokenise every text anew in every epoch.
    """

    def __init__(self, reader: Reader, pictures: Pictures) -> None:
        super().__init__(pad_token_id=reader.tokenizer.pad_token_id)
        self.reader, self.pictures = reader, pictures

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super().torch_call(examples)
        shown = [picture for example in examples for picture in self.pictures[example["place"]]]
        return {
            **batch,
            **self.reader.pixels(shown),
            **self.reader.token_types(batch["input_ids"]),
            "row": torch.tensor([example["row"] for example in examples]),
        }


class Trainer(SFTTrainer):
    """SFTTrainer with this project's order of rows, loss check and adapter files."""

    def __init__(self, *, order: EpochOrder, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # TRL casts the adapter of a quantized base to bf16, where a step of 5e-5 on a weight of 0.02 is lost in
        # rounding. It trains in fp32 everywhere, as PEFT made it.
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(torch.float32)
        plugin = self.accelerator.state.fsdp_plugin if self.is_fsdp_enabled else None
        if plugin is not None and plugin.mixed_precision_policy is not None:
            # accelerate's policy is bf16 throughout: gradients would be summed over micro-batches and ranks in bf16,
            # and the loss be rounded to it.
            plugin.mixed_precision_policy = MixedPrecisionPolicy(
                param_dtype=plugin.mixed_precision_policy.param_dtype, reduce_dtype=torch.float32
            )
        self.order = order
        # Gemma 4 classes say False, and the Trainer would average means of micro-batches. The loss is TRL's,
        # which does divide by the tokens of the whole step.
        self.model_accepts_loss_kwargs = True

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> EpochOrder:
        return self.order

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        rows = inputs.pop("row")
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if not torch.isfinite(loss):
            named = ", ".join(str(row) for row in rows.tolist() if row != FILLER)
            raise TrainingError(
                f"the loss is {loss.item()} at step {self.state.global_step + 1}; the batch held rows {named}",
                "look at those rows; a lower --learning-rate or --max-grad-norm may help",
            )
        return loss

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the adapter alone. (The Trainer's own way gathers all of a sharded base first.)"""
        save_adapter(self.model, Path(output_dir or self.args.output_dir))


class ProgressLines(ProgressCallback):
    """A bar, and above it one line a log step. Also keeps the history for the report."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[dict[str, float]] = []
        self.tokens = 0.0
        self._begun = self._since = time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begun = self._since = time.monotonic()
        self.current_step = 0
        if state.is_world_process_zero:
            # disable=None: no bar where stderr is a file or a log collector; the lines say it all
            self.training_bar = tqdm(total=state.max_steps, desc="train", unit="step", disable=None, dynamic_ncols=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_step_end(args, state, control, **kwargs)
        control.should_log |= state.global_step >= state.max_steps  # the last steps count as well

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if not logs or "loss" not in logs or not state.is_world_process_zero:
            return
        now = time.monotonic()
        tokens = logs.get("num_tokens", 0.0)
        rate = (tokens - self.tokens) / max(now - self._since, 1e-9)
        self.tokens, self._since = tokens, now
        entry = {
            "step": state.global_step,
            "epoch": logs.get("epoch", 0.0),
            "loss": logs["loss"],
            "learning_rate": logs["learning_rate"],
            "grad_norm": logs.get("grad_norm", 0.0),
            "tokens_per_second": rate,
        }
        self.history.append(entry)
        left = (now - self._begun) / state.global_step * (state.max_steps - state.global_step)
        line = (
            f"step {state.global_step}/{state.max_steps}  loss {entry['loss']:.4f}  lr {entry['learning_rate']:.2e}"
            f"  grad-norm {entry['grad_norm']:.3g}  {rate:,.0f} tokens/s  {tqdm.format_interval(left)} left"
        )
        self.training_bar.write(line, file=sys.stderr)


class OneGroup(TrainerCallback):
    """Stops the run if several processes are about to train separate models."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        from torch.distributed.fsdp import FSDPModule
        from torch.nn.parallel import DistributedDataParallel

        if args.world_size > 1 and not isinstance(model, (FSDPModule, DistributedDataParallel)):
            raise TrainingError(f"{args.world_size} processes, but the model is not shared between them")


def training_arguments(plan: Plan, run_dir: Path, steps_per_epoch: int) -> SFTConfig:
    """The plan's settings in TRL's words. Warm-up is a share of all steps."""
    settings = plan.settings
    total = settings.max_steps or int(steps_per_epoch * settings.num_train_epochs)
    return SFTConfig(
        output_dir=str(run_dir / "checkpoints"),
        seed=settings.seed,
        num_train_epochs=settings.num_train_epochs,
        max_steps=settings.max_steps or -1,
        per_device_train_batch_size=settings.per_device_train_batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=SCHEDULERS[settings.lr_scheduler_type],
        warmup_steps=round(total * settings.warmup_ratio),
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        activation_checkpointing=settings.activation_checkpointing,
        activation_checkpointing_kwargs={"use_reentrant": False},
        bf16=plan.launch.bf16,
        use_cpu=plan.launch.use_cpu,
        logging_steps=settings.logging_steps,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        report_to=["tensorboard"],
        save_strategy=settings.save_strategy,
        save_steps=settings.save_steps,
        save_total_limit=settings.save_total_limit,
        remove_unused_columns=False,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        average_tokens_across_devices=True,
        dataloader_pin_memory=not plan.launch.use_cpu,
    )


def build(plan: Plan, model: PeftModel, reader: Reader, prepared: Prepared) -> tuple[Trainer, ProgressLines]:
    """The trainer, ready to train, and the callback that collects its history."""
    settings, run_dir, train = plan.settings, plan.run_dir, prepared.train
    world_size = plan.launch.num_processes
    placed = train.add_column("place", list(range(len(train))))
    filled = with_fillers(placed, settings.per_device_train_batch_size * world_size)
    step_rows = settings.per_device_train_batch_size * settings.gradient_accumulation_steps * world_size
    lengths = [len(ids) for ids in train["input_ids"]] if settings.batching == "length-grouped" else None
    order = EpochOrder(len(train), len(filled) - len(train), step_rows, settings.seed, lengths)
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(run_dir / "logs")
    progress = ProgressLines()
    arguments = training_arguments(plan, run_dir, -(-len(filled) // step_rows))
    if reader.processor and not plan.launch.use_cpu:
        arguments.dataloader_num_workers = IMAGE_WORKERS
    trainer = Trainer(
        order=order,
        model=model,
        args=arguments,
        train_dataset=filled,
        processing_class=reader.tokenizer,
        data_collator=Collator(reader, prepared.pictures),
        callbacks=[progress, OneGroup()],
    )
    trainer.remove_callback(PrinterCallback)  # disable_tqdm brings it in; ProgressLines says it better
    return trainer, progress


def record(trainer: Trainer, progress: ProgressLines, seconds: float) -> dict[str, Any]:
    """The training part of run.json. Tokens are those of all ranks, prompts included, padding not."""
    tokens = int(progress.tokens)
    return {
        "steps": trainer.state.global_step,
        "epochs": trainer.state.epoch,
        "tokens": tokens,
        "tokens_per_second": round(tokens / seconds, 1),
        "final_loss": progress.history[-1]["loss"],
        "history": progress.history,
    }
