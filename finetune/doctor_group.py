"""Do a machine's GPUs hear each other? A real sum over all of them, by processes of their own. Called by
doctor_worker.py, with NCCL on GPUs and gloo without."""

import json
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from finetune.doctor import Check

NUMBERS = 16 * 1024 * 1024
"""fp32 numbers that each process brings: 64 MiB."""
TIMEOUT_S = 120.0
REMEDY = "see NCCL_DEBUG=INFO, the driver, and /dev/shm; one GPU alone: --profile gpu"


def check_group(name: str, backend: str, processes: int, folder: Path, numbers: int = NUMBERS) -> Check:
    """Have `processes` processes, a GPU each, add their numbers up, and see that all have the same sum. `folder` is
    empty."""
    told = folder / "seconds.json"
    group = spawn(  # type: ignore[no-untyped-call]
        _add_up, (processes, backend, str(folder), numbers), nprocs=processes, join=False
    )
    end = time.monotonic() + TIMEOUT_S
    try:
        while not group.join(timeout=1.0):
            if time.monotonic() > end:
                for process in group.processes:
                    process.kill()
                found = f"{processes} processes did not hear each other in {TIMEOUT_S:.0f} s"
                return Check(name, "fail", found, REMEDY)
    except (ProcessRaisedException, ProcessExitedException) as error:
        return Check(name, "fail", str(error).strip().splitlines()[-1], REMEDY)
    seconds = json.loads(told.read_text())
    # What each sends and receives in a ring: all but its own part, twice.
    speed = 2 * (processes - 1) / processes * 4 * numbers / seconds / 1e9
    found = f"{processes} processes added {4 * numbers / 1024**2:.0f} MiB up in {1000 * seconds:.1f} ms"
    return Check(name, "ok", f"{found}: {speed:.3g} GB/s")


def _add_up(rank: int, processes: int, backend: str, folder: str, numbers: int) -> None:
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group(
        backend,
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=processes,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    for turn in range(2):  # the first opens the connections
        own = torch.full((numbers,), float(rank + 1), device=device)
        begun = time.monotonic()
        distributed.all_reduce(own)
        wrong = int((own != processes * (processes + 1) / 2).sum())  # waits for the device
        seconds = time.monotonic() - begun
        if wrong:
            raise ValueError(f"{wrong:,} of {numbers:,} sums are wrong on rank {rank}")
        if turn and rank == 0:
            Path(folder, "seconds.json").write_text(json.dumps(seconds))
    distributed.destroy_process_group()
