"""GPUs by name: memory, speed, and what they cost. The one table behind what a plan says of a machine that is not here,
and behind every estimate of time and money.

Of 2026-12-05. Memory and compute capability are what nvidia-smi tells of such a GPU. Speeds are NVIDIA's data sheets:
dense bf16 with fp32 sums, without sparsity (fp32 where a GPU has no bf16); memory; and the link to the machine's other
GPUs, one way. `share` of the peak is what training reaches, as a rule of thumb: it was not measured, and the first
steps of a run correct it.

Prices are Google Cloud's on demand in us-central1, the whole machine's divided by its GPUs. B200 (2026-07), H100
(2026-02) and RTX PRO 6000 (2025-10) were compared with copies of its billing catalog of those months; the others are
those of https://cloud.google.com/compute/gpus-pricing as remembered. Reservations, spot, Cloud Run and other regions
differ, and lists change: --price-per-hour says what you pay. None: no list price on demand is known.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from finetune.errors import UsageError
from finetune.hardware import Gpu

CPU_CORE_TFLOPS = 0.06
"""fp32 of one core: two fused multiply-adds of 8 lanes a cycle, at 2 GHz."""
MIG_PARTS = 7
"""Compute slices of a GPU that is split with MIG."""
MOST = 64
"""GPUs of a machine, at most."""


@dataclass(frozen=True)
class Rates:
    """What a GPU does: TFLOP/s, GB/s, the share of the peak that is reached; dollars an hour, and the machine type that
    costs that. `words` stand in its name."""

    words: str
    tflops: float
    memory_gb_s: float
    link_gb_s: float
    share: float
    dollars: float | None = None
    machine: str = ""


@dataclass(frozen=True)
class KnownGpu:
    """A kind of GPU: the name, the memory in GiB and the compute capability that nvidia-smi tells, and its rates."""

    name: str
    memory_gib: float
    compute_capability: float
    rates: Rates


GPUS: tuple[KnownGpu, ...] = (
    KnownGpu("NVIDIA GB300", 277.5, 10.3, Rates("GB300", 2500, 8000, 900, 0.3)),
    KnownGpu("NVIDIA B300 SXM6 AC", 268.6, 10.3, Rates("B300", 2250, 8000, 900, 0.3)),
    KnownGpu("NVIDIA GB200", 185.0, 10.0, Rates("GB200", 2500, 8000, 900, 0.3)),
    KnownGpu("NVIDIA B200", 179.1, 10.0, Rates("B200", 2250, 8000, 900, 0.3, 16.11, "a4-highgpu-8g")),
    KnownGpu("NVIDIA H200", 140.4, 9.0, Rates("H200", 989, 4800, 450, 0.4, 10.60, "a3-ultragpu-8g")),
    KnownGpu("NVIDIA H100 NVL", 93.6, 9.0, Rates("H100 NVL", 835, 3900, 300, 0.4)),
    KnownGpu("NVIDIA H100 PCIe", 79.6, 9.0, Rates("H100 PCIe", 756, 2000, 64, 0.4)),
    KnownGpu("NVIDIA H100 80GB HBM3", 79.6, 9.0, Rates("H100", 989, 3350, 450, 0.4, 11.06, "a3-highgpu-8g")),
    KnownGpu("NVIDIA A100-SXM4-80GB", 80.0, 8.0, Rates("A100-SXM4-80GB", 312, 2039, 300, 0.5, 5.07, "a2-ultragpu")),
    KnownGpu("NVIDIA A100-SXM4-40GB", 40.0, 8.0, Rates("A100", 312, 1555, 300, 0.5, 3.67, "a2-highgpu")),
    KnownGpu(
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        95.6,
        12.0,
        Rates("RTX PRO 6000", 500, 1597, 64, 0.4, 4.50, "g4-standard-48"),
    ),
    KnownGpu("NVIDIA RTX 6000 Ada Generation", 48.0, 8.9, Rates("RTX 6000 Ada", 364, 960, 32, 0.4)),
    KnownGpu("NVIDIA L40S", 45.0, 8.9, Rates("L40S", 362, 864, 32, 0.4)),
    KnownGpu("NVIDIA L4", 22.5, 8.9, Rates("L4", 121, 300, 32, 0.5, 0.71, "g2-standard-4")),
    KnownGpu("NVIDIA GeForce RTX 5090", 31.8, 12.0, Rates("RTX 5090", 209, 1792, 64, 0.5)),
    KnownGpu("NVIDIA GeForce RTX 4090", 24.0, 8.9, Rates("RTX 4090", 165, 1008, 32, 0.5)),
    KnownGpu("NVIDIA A10G", 22.5, 8.6, Rates("A10G", 70, 600, 32, 0.5)),
    KnownGpu("NVIDIA A10", 22.5, 8.6, Rates("A10", 125, 600, 32, 0.5)),
    KnownGpu("Tesla V100-SXM2-16GB", 16.0, 7.0, Rates("V100", 15.7, 900, 150, 0.6)),
    KnownGpu("Tesla T4", 15.0, 7.5, Rates("T4", 8.1, 320, 16, 0.5, 0.54, "n1-standard-4 with a T4")),
)
"""The first that fits a name counts."""


def rates(gpu: Gpu) -> Rates | None:
    """What a GPU does, None if it is in no row. A slice of a GPU has its part of everything, and no price."""
    found = next((kind.rates for kind in GPUS if _stands_in(kind.rates.words, gpu.name)), None)
    slices = re.search(r"MIG (\d)g\.", gpu.name)
    if found and slices:
        part = int(slices[1]) / MIG_PARTS
        return replace(found, tflops=found.tflops * part, memory_gb_s=found.memory_gb_s * part, dollars=None)
    return found


def cpu_rates(cores: int) -> Rates:
    """The same for a CPU of so many cores, one process."""
    return Rates("CPU", CPU_CORE_TFLOPS * cores, 20, 20, 0.3)


def price(gpus: Sequence[Gpu], nodes: int) -> tuple[float, str] | None:
    """Dollars an hour for all GPUs of all nodes, those that stand idle included, and how that was found."""
    found = [rates(gpu) for gpu in gpus]
    if not gpus or any(row is None or row.dollars is None for row in found):
        return None
    known = [row for row in found if row is not None]
    each = ", ".join(dict.fromkeys(f"${row.dollars:.2f} an hour for each {row.words} ({row.machine})" for row in known))
    return nodes * sum(row.dollars or 0.0 for row in known), f"{each}, list price on demand"


def assumed(count: int, words: str) -> tuple[Gpu, ...]:
    """So many GPUs of the kind of that row."""
    kind = next(kind for kind in GPUS if kind.rates.words == words)
    return tuple(Gpu(index, kind.name, kind.memory_gib, kind.compute_capability) for index in range(count))


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """The GPUs of `8 x H100`, `8xH100`, `h100x8` or `L4`. Raises UsageError with what to write."""
    spelled = " ".join(text.replace("\N{MULTIPLICATION SIGN}", "x").split())
    front = re.fullmatch(r"(\d+) ?[x*]? ?([a-z].*)", spelled, re.IGNORECASE)
    back = re.fullmatch(r"(.*?) ?[x*] ?(\d+)", spelled, re.IGNORECASE)
    number, name = (front[1], front[2]) if front else (back[2], back[1]) if back else ("1", spelled)
    known = {kind.rates.words.lower(): kind.rates.words for kind in GPUS}
    words = known.get(name.lower()) or next((row for row in known.values() if _stands_in(row, name)), None)
    if words is None:
        near = get_close_matches(name.lower(), known, 1, 0.5)
        hint = f"did you mean {number} x {known[near[0]]}?" if near else "write 8 x H100, for example"
        raise UsageError(f"--machine: {name!r} is not known; expected {', '.join(known.values())}", hint)
    if not 1 <= int(number) <= MOST:
        raise UsageError(f"--machine: {number} GPUs are no machine", f"write 1 to {MOST}: 8 x {words}")
    return assumed(int(number), words)


def _stands_in(words: str, name: str) -> bool:
    """Whether `words` stand in `name` as whole words, in whatever case."""
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", name, re.IGNORECASE) is not None
