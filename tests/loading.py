"""Models and trainers of a plan whose files are all on this machine."""

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from finetune import data, train
from finetune.journal import Journal
from finetune.model import load_base
from finetune.plan import Plan
from finetune.reader import Reader
from finetune.sources import gather
from finetune.training_log import ProgressLines

CPU = torch.device("cpu")


def base_of(plan: Plan) -> Any:
    """The plan's base model, on the CPU."""
    return load_base(plan, CPU, gather(plan, Path("no scratch is needed")))


def trainer_of(plan: Plan, model: PeftModel, reader: Reader, prepared: data.Prepared) -> tuple[Any, ProgressLines]:
    """A trainer of that model, and what it logs."""
    journal = Journal(plan, plan.run_dir / "scratch", print, dict)
    return train.build(plan, model, reader, prepared, journal, plan.run_dir / "logs")
