"""`python -m tests.two_cpu_ranks PLAN`: the worker, with FSDP2 made to run on CPU ranks. For tests alone.

Accelerate turns FSDP on only where it sees accelerators. Told that these ranks are some (over gloo), it shards,
gathers and saves for real.
"""

import os
import sys
from typing import Any

import torch
import transformers
from accelerate import PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import fully_shard


def _prepare_backend(self: PartialState, *args: Any, **kwargs: Any) -> tuple[str, DistributedType]:
    return "gloo", DistributedType.MULTI_XPU


def _set_device(self: PartialState) -> None:
    self.device = torch.device("cpu")


def _fully_shard(module: Any, **kwargs: Any) -> Any:
    """FSDP2's own, which says with what precision it is asked for."""
    print("precision:", kwargs["mp_policy"], file=sys.stderr)
    return fully_shard(module, **kwargs)


def patch() -> None:
    """Before anything else is done in the process."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        PartialState._prepare_backend = _prepare_backend
        PartialState.set_device = _set_device
        transformers.training_args.is_torch_bf16_gpu_available = lambda: True
        torch.distributed.fsdp.fully_shard = _fully_shard


if __name__ == "__main__":
    patch()
    from finetune.worker import start

    start(sys.argv[1])
