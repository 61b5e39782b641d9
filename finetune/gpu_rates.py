"""What GPUs do in a second and cost in an hour, by name: the one table behind every estimate of time and money.

Read on 2026-12-05. Speeds are NVIDIA's data sheets: dense bf16 with fp32 sums, without sparsity (fp32 where a GPU has
no bf16); memory; and the link to the machine's other GPUs, one way. `share` of the peak is what training reaches, as a
rule of thumb: nothing of it was measured here, and the first steps of a run correct it. Prices are Google Cloud's list
prices on demand in us-central1 (https://cloud.google.com/compute/gpus-pricing, .../accelerator-optimized-machines), the
whole machine's divided by its GPUs. Reservations, spot and other regions differ, and lists change: --price-per-hour
says what you pay. None: no list price on demand is known.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from finetune.hardware import Gpu

CPU_CORE_TFLOPS = 0.06
"""fp32 of one core: two fused multiply-adds of 8 lanes a cycle, at 2 GHz."""
MIG_PARTS = 7
"""Compute slices of a GPU that is split with MIG."""


@dataclass(frozen=True)
class Rates:
    """One GPU. `words` stand in its name. TFLOP/s, GB/s, dollars an hour, and the machine type that costs that."""

    words: str
    tflops: float
    memory_gb_s: float
    link_gb_s: float
    share: float
    dollars: float | None = None
    machine: str = ""


GPUS: tuple[Rates, ...] = (
    Rates("GB300", 2500, 8000, 900, 0.3),
    Rates("B300", 2250, 8000, 900, 0.3),
    Rates("GB200", 2500, 8000, 900, 0.3),
    Rates("B200", 2250, 8000, 900, 0.3),
    Rates("H200", 989, 4800, 450, 0.4, 10.60, "a3-ultragpu-8g"),
    Rates("H100 NVL", 835, 3900, 300, 0.4),
    Rates("H100 PCIe", 756, 2000, 64, 0.4),
    Rates("H100", 989, 3350, 450, 0.4, 11.06, "a3-highgpu-8g"),
    Rates("A100-SXM4-80GB", 312, 2039, 300, 0.5, 5.07, "a2-ultragpu"),
    Rates("A100", 312, 1555, 300, 0.5, 3.67, "a2-highgpu"),
    Rates("RTX PRO 6000", 500, 1597, 64, 0.4),
    Rates("RTX 6000 Ada", 364, 960, 32, 0.4),
    Rates("L40S", 362, 864, 32, 0.4),
    Rates("L4", 121, 300, 32, 0.5, 0.71, "g2-standard-4"),
    Rates("RTX 5090", 209, 1792, 64, 0.5),
    Rates("RTX 4090", 165, 1008, 32, 0.5),
    Rates("A10G", 70, 600, 32, 0.5),
    Rates("A10", 125, 600, 32, 0.5),
    Rates("V100", 15.7, 900, 150, 0.6),
    Rates("T4", 8.1, 320, 16, 0.5, 0.54, "n1-standard-4 with a T4"),
)
"""The first that fits a name counts."""


def rates(gpu: Gpu) -> Rates | None:
    """The row of a GPU, None if it has none. A slice of a GPU has its part of everything, and no price."""
    found = next((row for row in GPUS if re.search(rf"(?<!\w){re.escape(row.words)}(?!\w)", gpu.name)), None)
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
