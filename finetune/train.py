"""TRL's SFTTrainer, with what this job needs on top.

* The loss is the mean over all supervised tokens of an optimizer step, so the same rows give the same
  update however they are split over micro-batches and ranks.
* Every row is seen exactly once an epoch, in an order that depends on the seed and the epoch alone.
* A loss that is no longer finite stops the run, and says which rows were in the batch.
"""

import os
import time
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset
from peft import PeftModel
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from finetune import checkpoint
from finetune.data import Pictures, Prepared
from finetune.errors import Interrupted, TrainingError
from finetune.journal import Journal, Recalled
from finetune.order import FILLER, EpochOrder, with_fillers
from finetune.plan import Plan
from finetune.reader import Reader
from finetune.stopping import Stop
from finetune.training_log import ProgressLines

SCHEDULERS = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
"""Our names -> transformers', all of which begin with the warm-up."""
TRAINER = "trainer"
"""Beginning of the name of a folder for what the Trainer reads by itself."""
IMAGE_WORKERS = 2
"""Processes a GPU that read images ahead: some 20 ms an image, else waited for in every micro-batch."""


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

    def __init__(self, *, order: EpochOrder, journal: Journal, progress: ProgressLines, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.journal, self.progress, self.recalled = journal, progress, Recalled()
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

    def train_from(self, recalled: Recalled) -> None:
        """Train, from a checkpoint where there is one."""
        self.recalled = recalled
        folder = None
        if recalled.step:
            self.progress.go_on(recalled.state["history"], recalled.state["tokens"])
            folder = self.journal.scratch / f"{TRAINER}-{PartialState().process_index}"
            checkpoint.write_trainer_state(recalled.state, folder, self.args)
            self._total_train_tokens = recalled.state["tokens"]
        self.train(str(folder) if folder else None)

    def _run_epoch(self, *args: Any, epoch: int, **kwargs: Any) -> None:
        # Accelerate and the Trainer tell it to the sampler themselves, but not to one of several ranks that begins in
        # the middle of an epoch: it would go on in the order of the first.
        self.order.set_epoch(epoch)
        if self.state.global_step >= self.state.max_steps:  # a checkpoint of the last step, and nothing left to do
            self.control.should_training_stop = True
        else:
            super()._run_epoch(*args, epoch=epoch, **kwargs)

    # The Trainer writes into place, pickles, and has every rank read every file.

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step = self.state.global_step
        folder = self.journal.step_folder(step) if PartialState().is_main_process else None
        further = {"tokens": self._total_train_tokens, "history": self.progress.history}
        checkpoint.write_state(self, folder, further)
        if folder:
            self.journal.keep_step(folder, step)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Together with the optimizer's part, once the model is sharded."""

    def _load_optimizer_and_scheduler(self, checkpoint_folder: str | None) -> None:
        if self.recalled.step:
            checkpoint.read_state(self, self.recalled.folder, self.recalled.state)

    def _load_rng_state(self, checkpoint_folder: str | None) -> None:
        if self.recalled.step:
            checkpoint.read_randomness(self.recalled.state, self.args.seed)


class Safekeeping(TrainerCallback):
    """Keeps checkpoints by the clock as well, and ends training after a step once the run was told to stop."""

    def __init__(self, trainer: Trainer, stop: Stop, plan: Plan) -> None:
        self.trainer, self.stop, self.stopped = trainer, stop, False
        self.saves = plan.settings.save_strategy != "no"
        self.every_s = 60 * plan.settings.save_minutes
        self._saved = time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._saved = time.monotonic()
        if self.trainer.recalled.step:
            checkpoint.read_losses(self.trainer, self.trainer.recalled.state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.trainer.journal.check()
        self.stopped, due = self.stop.agreed(time.monotonic() - self._saved > self.every_s)
        control.should_save |= self.saves and (self.stopped or due)
        control.should_training_stop |= self.stopped

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._saved = time.monotonic()


class OneGroup(TrainerCallback):
    """Stops the run if several processes are about to train separate models."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        from torch.distributed.fsdp import FSDPModule
        from torch.nn.parallel import DistributedDataParallel

        if args.world_size > 1 and not isinstance(model, (FSDPModule, DistributedDataParallel)):
            raise TrainingError(f"{args.world_size} processes, but the model is not shared between them")


def training_arguments(plan: Plan, folder: Path, steps_per_epoch: int) -> SFTConfig:
    """The plan's settings in TRL's words. Warm-up is a share of all steps."""
    settings = plan.settings
    total = settings.max_steps or int(steps_per_epoch * settings.num_train_epochs)
    return SFTConfig(
        output_dir=str(folder),
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
        remove_unused_columns=False,
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
        average_tokens_across_devices=True,
        dataloader_pin_memory=not plan.launch.use_cpu,
    )


def build(
    plan: Plan, model: PeftModel, reader: Reader, prepared: Prepared, journal: Journal, logs: Path
) -> tuple[Trainer, ProgressLines]:
    """The trainer, ready to train, and the callback that collects its history."""
    settings, train = plan.settings, prepared.train
    world_size = plan.launch.num_processes
    placed = train.add_column("place", list(range(len(train))))
    filled = with_fillers(placed, settings.per_device_train_batch_size * world_size)
    step_rows = settings.per_device_train_batch_size * settings.gradient_accumulation_steps * world_size
    lengths = [len(ids) for ids in train["input_ids"]] if settings.batching == "length-grouped" else None
    order = EpochOrder(len(train), len(filled) - len(train), step_rows, settings.seed, lengths)
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(logs)
    progress = ProgressLines(plan.time, lambda: sum(journal.about().get("seconds", {}).values()))
    arguments = training_arguments(plan, logs, -(-len(filled) // step_rows))
    if reader.processor and not plan.launch.use_cpu:
        arguments.dataloader_num_workers = IMAGE_WORKERS
    trainer = Trainer(
        order=order,
        journal=journal,
        progress=progress,
        model=model,
        args=arguments,
        train_dataset=filled,
        processing_class=reader.tokenizer,
        data_collator=Collator(reader, prepared.pictures),
        callbacks=[progress, OneGroup()],
    )
    trainer.remove_callback(PrinterCallback)  # disable_tqdm brings it in; ProgressLines says it better
    return trainer, progress


def train(trainer: Trainer, recalled: Recalled, stop: Stop, plan: Plan) -> None:
    """Train to the end, from a checkpoint where there is one. Raises Interrupted once a step is finished and kept, if
    the run was told to stop."""
    safekeeping = Safekeeping(trainer, stop, plan)
    trainer.add_callback(safekeeping)
    trainer.train_from(recalled)
    step, steps = trainer.state.global_step, trainer.state.max_steps
    if not safekeeping.stopped or step >= steps:
        return
    if PartialState().is_main_process:
        trainer.journal.wait()
    PartialState().wait_for_everyone()
    kept = f"kept in {trainer.journal.place}" if safekeeping.saves else "not kept: --save-strategy is no"
    raise Interrupted(f"after step {step} of {steps}, which is {kept}", "the same command goes on from there")


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
