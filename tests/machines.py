"""What nvidia-smi says on the machines that the tests plan for, in the order of hardware.FIELDS."""

from shutil import _ntuple_diskusage

from finetune.hardware import GIB, Machine, in_use, one_slice, parse_gpus, parse_slices, visible


def smi(
    count: int, name: str, mib: str, capability: str, driver: str = "580.95.05", mig: str = "Disabled", used: str = "4"
) -> str:
    """The lines of `count` alike GPUs."""
    return "".join(
        f"{index}, GPU-{index:08x}-5c1d-9a3b-7f21-0d5e8c4b9a10, {name}, {mib}, {used}, {driver}, {capability}, {mig}\n"
        for index in range(count)
    )


SMI = {
    "b200x8": smi(8, "NVIDIA B200", "183359", "10.0"),
    "b200x4": smi(4, "NVIDIA B200", "183359", "10.0"),
    "b200x1": smi(1, "NVIDIA B200", "183359", "10.0"),
    "gb200x8": smi(8, "NVIDIA GB200", "189471", "10.0"),
    "gb200x4": smi(4, "NVIDIA GB200", "189471", "10.0"),
    "rtx-pro-server": smi(1, "NVIDIA RTX PRO 6000 Blackwell Server Edition", "97887", "12.0", mig="[N/A]"),
    "rtx-pro-workstation": smi(1, "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "97887", "12.0", mig="[N/A]"),
    "rtx-pro-max-q": smi(1, "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "97887", "12.0", mig="[N/A]"),
    "rtx-pro-x4": smi(4, "NVIDIA RTX PRO 6000 Blackwell Server Edition", "97887", "12.0", mig="[N/A]"),
    "rtx-6000-ada": smi(1, "NVIDIA RTX 6000 Ada Generation", "49140", "8.9", mig="[N/A]"),
    "h100x8": smi(8, "NVIDIA H100 80GB HBM3", "81559", "9.0"),
    "h100x3": smi(3, "NVIDIA H100 80GB HBM3", "81559", "9.0"),
    "h200x1": smi(1, "NVIDIA H200", "143771", "9.0"),
    "a100-40x2": smi(2, "NVIDIA A100-SXM4-40GB", "40960", "8.0"),
    "a100-80x1": smi(1, "NVIDIA A100-SXM4-80GB", "81920", "8.0"),
    "b300x8": smi(8, "NVIDIA B300 SXM6 AC", "275040", "10.3"),
    "gb300x4": smi(4, "NVIDIA GB300", "284208", "10.3"),
    "rtx-4090": smi(1, "NVIDIA GeForce RTX 4090", "24564", "8.9", mig="[N/A]"),
    "rtx-5090": smi(1, "NVIDIA GeForce RTX 5090", "32607", "12.0", mig="[N/A]"),
    "v100x8": smi(8, "Tesla V100-SXM2-16GB", "16384", "7.0", mig="[N/A]"),
    "busy": smi(1, "NVIDIA H100 80GB HBM3", "81559", "9.0", used="43008"),
    "l4x1": smi(1, "NVIDIA L4", "23034", "8.9", mig="[N/A]"),
    "l4x4": smi(4, "NVIDIA L4", "23034", "8.9", mig="[N/A]"),
    "t4x1": smi(1, "Tesla T4", "15360", "7.5", mig="[N/A]"),
    "mig": smi(1, "NVIDIA H100 80GB HBM3", "81559", "9.0", mig="Enabled"),
    "unified": smi(1, "NVIDIA GB10", "[N/A]", "12.1", mig="[N/A]"),
    "mixed": smi(2, "NVIDIA H100 80GB HBM3", "81559", "9.0")
    + "2, GPU-77777777-0000-0000-0000-000000000000, Tesla T4, 15360, 0, 580.95.05, 7.5, [N/A]\n",
    "none": "No devices were found\n",
}

MIG_LIST = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-5c1d-9a3b-7f21-0d5e8c4b9a10)
  MIG 3g.40gb     Device  0: (UUID: MIG-1a2b3c4d-0000-5000-8000-000000000000)
  MIG 1g.20gb     Device  1: (UUID: MIG-1a2b3c4d-0000-5000-8000-000000000001)
"""
"""What `nvidia-smi -L` says on "mig"."""


def machine(name: str, cuda_visible_devices: str | None = None) -> Machine:
    """The machine that nvidia-smi's text of that name describes: 32 cores, 256 GiB."""
    listed = parse_gpus(SMI[name])
    gpus, note = visible(listed, cuda_visible_devices)
    if any(gpu.mig for gpu in gpus):
        gpus, note = one_slice(gpus, parse_slices(MIG_LIST), cuda_visible_devices)
    note = "; ".join(part for part in (note, in_use(gpus)) if part)
    return Machine(gpus, listed[0].driver if listed else None, 32, 256.0, note)


NO_GPU = Machine((), None, 2, 16.0, "no NVIDIA driver here (nvidia-smi is not installed)")


def disk(free_gib: float) -> _ntuple_diskusage:
    """What shutil.disk_usage says of a disk that is half full."""
    free = int(free_gib * GIB)
    return _ntuple_diskusage(2 * free, free, free)
