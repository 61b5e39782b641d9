"""What this process woke up on: GPUs from one nvidia-smi call, CPU cores and memory from the kernel.

`detect` has the effects; `parse_gpus` and `visible` are pure. Counts are what this process may use: CPU
affinity, cgroup limits and CUDA_VISIBLE_DEVICES are respected.
"""

import math
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

FIELDS = ("index", "uuid", "name", "memory.total", "memory.used", "driver_version", "compute_cap", "mig.mode.current")
QUERY = ("nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
SLICES = ("nvidia-smi", "-L")
TIMEOUT_S: float = 30
"""The first call on a machine without a persistence daemon loads the driver: several seconds on 8 GPUs."""
CGROUP = Path("/sys/fs/cgroup")
GIB = 1024**3
IDLE_GIB = 1.0
"""What the driver itself takes of a GPU, at most: more is another process's."""
ASSUMED = "assumed, not found"
"""Machine.note of GPUs that are only planned for."""
SLICE_SHARE = 0.97
"""Of a MIG slice's size, as its name has it, what can be used."""


@dataclass(frozen=True)
class Gpu:
    """One GPU. `memory_gib` is None where the driver does not tell it. `mig` says that it is split into slices; where
    they are known it is one of them."""

    index: int
    name: str
    memory_gib: float | None
    compute_capability: float | None
    mig: bool = False
    used_gib: float = 0.0
    """In use already, by whatever process."""

    @property
    def free_gib(self) -> float | None:
        """What a run can have of it."""
        if self.memory_gib is None or self.used_gib <= IDLE_GIB:
            return self.memory_gib
        return round(self.memory_gib - self.used_gib, 1)

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
    asked = environ.get("CUDA_VISIBLE_DEVICES")
    gpus, note = visible(listed, asked)
    if any(gpu.mig for gpu in gpus):
        gpus, note = one_slice(gpus, parse_slices(_ask(SLICES)[0]), asked)
    note = "; ".join(part for part in (problem or note, in_use(gpus)) if part)
    return Machine(gpus, listed[0].driver if listed else None, _cpu_cores(), _ram_gib(), note)


def parse_gpus(text: str) -> list[Listed]:
    """Read nvidia-smi's CSV (FIELDS, no header, no units). Lines that are not a GPU's are left out."""
    found = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(FIELDS) or not values[0].isdigit():
            continue
        index, uuid, name, memory_mib, used_mib, driver, capability, mig = values
        gib = round(memory / 1024, 1) if (memory := _number(memory_mib)) is not None else None
        used = round((_number(used_mib) or 0.0) / 1024, 1)
        found.append(Listed(Gpu(int(index), name, gib, _number(capability), mig == "Enabled", used), uuid, driver))
    return found


def in_use(gpus: tuple[Gpu, ...]) -> str:
    """The GPUs that another process uses, as a note."""
    busy = [gpu for gpu in gpus if gpu.free_gib != gpu.memory_gib]
    return "; ".join(f"GPU {gpu.index}: {gpu.used_gib:.1f} of {gpu.memory_gib} GiB are in use already" for gpu in busy)


@dataclass(frozen=True)
class Slice:
    """A part of a GPU that is split with MIG, such as 3g.40gb on GPU 0."""

    gpu: int
    profile: str
    uuid: str

    @property
    def memory_gib(self) -> float | None:
        size = re.search(r"(\d+)gb", self.profile)
        return round(SLICE_SHARE * int(size[1]), 1) if size else None


def parse_slices(text: str) -> list[Slice]:
    """Read the list of `nvidia-smi -L`, in which the slices of a GPU stand below it."""
    found, index = [], 0
    for line in text.splitlines():
        if above := re.match(r"GPU (\d+):", line):
            index = int(above[1])
        elif below := re.match(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)", line):
            found.append(Slice(index, below[1], below[2]))
    return found


def one_slice(
    gpus: tuple[Gpu, ...], slices: list[Slice], cuda_visible_devices: str | None
) -> tuple[tuple[Gpu, ...], str]:
    """What CUDA shows of GPUs of which some are split: the whole ones; else one slice, the named one or the first."""
    whole = tuple(gpu for gpu in gpus if not gpu.mig)
    if whole:
        return whole, f"{len(gpus) - len(whole)} GPU(s) split with MIG are left out"
    named = (cuda_visible_devices or "").split(",")[0].strip()
    mine = [part for part in slices if part.gpu in [gpu.index for gpu in gpus]]
    chosen = next((part for part in slices if part.uuid == named), mine[0] if mine else None)
    if chosen is None:
        return gpus[:1], "split with MIG, and its slices are not listed"
    gpu = next((gpu for gpu in gpus if gpu.index == chosen.gpu), gpus[0])
    others = f", {len(slices) - 1} others are not used" if len(slices) > 1 else ""
    name, size = f"{gpu.name} MIG {chosen.profile}", chosen.memory_gib
    return (replace(gpu, name=name, memory_gib=size, used_gib=0.0),), f"a process has one slice{others}"


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
    text, problem = _ask(QUERY)
    listed = parse_gpus(text)
    said = text.strip().splitlines()
    return listed, problem or ("" if listed else f"nvidia-smi lists no GPU: {said[0] if said else 'no output'}")


def _ask(command: tuple[str, ...]) -> tuple[str, str]:
    """What nvidia-smi prints, or why it prints nothing."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except FileNotFoundError:
        return "", "no NVIDIA driver here (nvidia-smi is not installed)"
    except subprocess.TimeoutExpired:
        return "", f"nvidia-smi did not answer within {TIMEOUT_S} s"
    except OSError as error:
        return "", f"nvidia-smi cannot be started: {error.strerror}"
    said = (answer.stdout + answer.stderr).strip()
    first = said.splitlines()[0] if said else f"exit code {answer.returncode}, no output"
    if answer.returncode != 0:
        return "", f"nvidia-smi failed: {first}"
    return answer.stdout + answer.stderr, ""


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
