"""What makes a run the run it is: the settings that change its result. A checkpoint goes with them.

How the rows of a step are divided over micro-batches and processes does not change the result (but for rounding, and
for what dropout draws), where the results go even less.
"""

from collections.abc import Mapping
from typing import Any

from finetune.plan import Plan
from finetune.settings import flag

OF_THE_DATA = ("task", "dataset", "image_column", "label_column", "train_size", "max_length", "seed")
OF_THE_MODEL = ("model_id", "quantization", "attn_implementation")
OF_THE_ADAPTER = ("lora_r", "lora_alpha", "lora_dropout", "lora_targets")
OF_THE_TRAINING = (
    *("num_train_epochs", "max_steps", "learning_rate", "lr_scheduler_type", "warmup_ratio", "weight_decay"),
    *("max_grad_norm", "batching"),
)
OF_THE_MEASUREMENT = ("eval_size", "max_new_tokens")
SETTINGS = (*OF_THE_DATA, *OF_THE_MODEL, *OF_THE_ADAPTER, *OF_THE_TRAINING, *OF_THE_MEASUREMENT)
ROWS_PER_STEP, PRECISION, PROCESSES = "rows_per_step", "precision", "processes"
SPELLED = {
    ROWS_PER_STEP: "rows of a step (--per-device-train-batch-size x --gradient-accumulation-steps x GPUs)",
    PRECISION: "precision (bf16 on GPUs, fp32 on a CPU)",
}


def identity(plan: Plan) -> dict[str, Any]:
    """What a checkpoint of this plan is marked with. `processes` may differ: see `compare`."""
    return {
        **{name: getattr(plan.settings, name) for name in SETTINGS},
        ROWS_PER_STEP: plan.rows_per_step,
        PRECISION: "bf16" if plan.launch.bf16 else "fp32",
        PROCESSES: plan.launch.num_processes,
    }


def compare(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    """What differs, each as `--learning-rate 2e-05, then 1e-05`. Fewer or more processes are no difference."""
    names = [name for name in now if name != PROCESSES and now[name] != then.get(name)]
    return [f"{SPELLED.get(name) or flag(name)} {_shown(now[name])}, then {_shown(then.get(name))}" for name in names]


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)
