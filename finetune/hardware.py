"""What this process woke up on: GPUs from one nvidia-smi call, CPU cores and memory from the kernel.

`detect` has the effects; `parse_gpus` and `visible` are pure. Counts are what this process may use: CPU
affinity, cgroup limits and CUDA_VISIBLE_DEVICES are respected.
"""

import math
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FIELDS = ("index", "uuid", "name", "memory.total", "driver_version", "compute_cap", "mig.mode.current")
QUERY = ("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
TIMEOUT_S: float = 30
"""The first call on a machine without a persistence daemon loads the driver: several seconds on 8 GPUs."""
CGROUP = Path("/sys/fs/cgroup")
GIB = 1024**3


@dataclass(frozen=True)
class Gpu:
    """One GPU. `memory_gib` is None where the driver does not tell it; `mig` says that it is split into slices."""

    index: int
    name: str
    memory_gib: float | None
    compute_capability: float | None
    mig: bool = False

    @property
    def bf16(self) -> bool:
        """Ampere (8.0) and later multiply in bf16. Unknown is taken as yes."""
        return self.compute_capability is None or self.compute_capability >= 8.0


@dataclass(frozen=True)
class Machine:
    """`note` says why there is no GPU, or which GPUs are hidden. `driver` is the NVIDIA driver's version."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cpu_cores: int = 1
    ram_gib: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Listed:
    """A line of nvidia-smi: the GPU, and the UUID that CUDA_VISIBLE_DEVICES may name it by."""

    gpu: Gpu
    uuid: str
    driver: str


def detect(environ: Mapping[str, str] = os.environ) -> Machine:
    """Look at this machine. Never fails: what cannot be read is absent, with the reason in `note`."""
    listed, problem = _ask_nvidia_smi()
    gpus, note = visible(listed, environ.get("CUDA_VISIBLE_DEVICES"))
    return Machine(gpus, listed[0].driver if listed else None, _cpu_cores(), _ram_gib(), problem or note)


def parse_gpus(text: str) -> list[Listed]:
    """Read nvidia-smi's CSV (FIELDS, no header, no units). Lines that are not a GPU's are left out."""
    found = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(FIELDS) or not values[0].isdigit():
            continue
        index, uuid, name, memory_mib, driver, capability, mig = values
        gib = round(memory / 1024, 1) if (memory := _number(memory_mib)) is not None else None
        found.append(Listed(Gpu(int(index), name, gib, _number(capability), mig == "Enabled"), uuid, driver))
    return found


def visible(listed: list[Listed], cuda_visible_devices: str | None) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs that CUDA will show, in its order, and a note if some are hidden.

    As CUDA does: entries are indices or (the beginning of) UUIDs, and the first that names no GPU ends
    the list. A MIG slice's own UUID does not say which GPU it is on: any that is split is taken.
    """
    if cuda_visible_devices is None:
        return tuple(item.gpu for item in listed), ""
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in cuda_visible_devices.split(",")):
        match = next((item.gpu for item in listed if _names(entry, item) and item.gpu not in chosen), None)
        if match is None:
            break
        chosen.append(match)
    if len(chosen) == len(listed):
        return tuple(chosen), ""
    return tuple(chosen), f"CUDA_VISIBLE_DEVICES={cuda_visible_devices} shows {len(chosen)} of {len(listed)} GPUs"


def _names(entry: str, item: Listed) -> bool:
    if entry.isdigit():
        return int(entry) == item.gpu.index
    if entry.startswith("MIG-"):
        return item.gpu.mig
    return entry.startswith("GPU-") and item.uuid.startswith(entry)


def _ask_nvidia_smi() -> tuple[list[Listed], str]:
    try:
        answer = subprocess.run(QUERY, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        return [], "no NVIDIA driver here (nvidia-smi is not installed)"
    except subprocess.TimeoutExpired:
        return [], f"nvidia-smi did not answer within {TIMEOUT_S} s"
    except OSError as error:
        return [], f"nvidia-smi cannot be started: {error.strerror}"
    said = (answer.stdout + answer.stderr).strip()
    first = said.splitlines()[0] if said else f"exit code {answer.returncode}, no output"
    if answer.returncode != 0:
        return [], f"nvidia-smi failed: {first}"
    listed = parse_gpus(answer.stdout)
    return listed, "" if listed else f"nvidia-smi lists no GPU: {first}"


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def _cpu_cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _read(CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def _ram_gib() -> float | None:
    limits = [
        int(text) for name in ("memory.max", "memory/memory.limit_in_bytes") if (text := _read(CGROUP / name)).isdigit()
    ]
    if "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return round(min(limits) / GIB, 1) if limits else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
