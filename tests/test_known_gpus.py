"""GPUs by name: their rows, and what a user may write for a machine that is not here."""

from dataclasses import replace

import pytest

from finetune.errors import UsageError
from finetune.hardware import Gpu
from finetune.known_gpus import GPUS, assumed, parse_gpus, price, rates
from tests.machines import SMI, machine

H100S = assumed(8, "H100")


def test_every_gpu_of_the_fixtures_has_a_row_but_those_that_no_one_lists() -> None:
    names = {gpu.name for name in SMI for gpu in machine(name).gpus}
    unknown = {name for name in names if rates(Gpu(0, name, 80.0, 9.0)) is None}
    assert unknown == {"NVIDIA GB10"} and len(names) >= 17
    assert len({row.rates.words for row in GPUS}) == len(GPUS)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A10G", "A10G"),
    ],
)
def test_the_row_of_a_gpu(name: str, words: str) -> None:
    found = rates(Gpu(0, name, 80.0, 9.0))
    assert found and found.words == words


def test_a_slice_of_a_gpu_has_its_part_and_no_price() -> None:
    whole, part = rates(H100S[0]), rates(replace(H100S[0], name="NVIDIA H100 80GB HBM3 MIG 3g.40gb", mig=True))
    assert whole and part
    assert part.tflops == pytest.approx(whole.tflops * 3 / 7) and part.dollars is None


def test_all_gpus_of_all_nodes_are_paid_for() -> None:
    assert price(H100S, 2) == (
        pytest.approx(2 * 8 * 11.06),
        "$11.06 an hour for each H100 (a3-highgpu-8g), list price on demand",
    )
    assert price(assumed(1, "GB300"), 1) is None, "no list price is known"
    assert price([], 1) is None


def test_the_rows_are_what_nvidia_smi_told_of_such_gpus() -> None:
    recorded = {gpu.name: gpu for name in SMI for gpu in machine(name).gpus if not gpu.mig and gpu.memory_gib}
    known = {kind.name: kind for kind in GPUS}
    assert len(recorded.keys() & known.keys()) >= 12
    for name in recorded.keys() & known.keys():
        assert known[name].memory_gib == pytest.approx(recorded[name].memory_gib, abs=0.15), name
        assert known[name].compute_capability == recorded[name].compute_capability
    for kind in GPUS:
        assert rates(Gpu(0, kind.name, kind.memory_gib, kind.compute_capability)) is kind.rates, kind.name


@pytest.mark.parametrize(
    ("text", "count", "name"),
    [
        ("8 x H100", 8, "NVIDIA H100 80GB HBM3"),
        ("8xH100", 8, "NVIDIA H100 80GB HBM3"),
        ("h100x8", 8, "NVIDIA H100 80GB HBM3"),
        ("b200 x 4", 4, "NVIDIA B200"),
        ("4 \N{MULTIPLICATION SIGN} L4", 4, "NVIDIA L4"),
        ("2 T4", 2, "Tesla T4"),
        ("rtx pro 6000", 1, "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        ("NVIDIA H200", 1, "NVIDIA H200"),
        ("1 x NVIDIA GeForce RTX 4090", 1, "NVIDIA GeForce RTX 4090"),
    ],
)
def test_a_machine_may_be_written_in_any_of_these_ways(text: str, count: int, name: str) -> None:
    gpus = parse_gpus(text)
    assert [gpu.index for gpu in gpus] == list(range(count))
    assert {gpu.name for gpu in gpus} == {name}


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("8 x H1000", "'H1000' is not known", "did you mean 8 x H100?"),
        ("b2000", "'b2000' is not known", "did you mean 1 x B200?"),
        ("a laptop", "'a laptop' is not known; expected GB300, B300, ", "write 8 x H100, for example"),
        ("0 x L4", "0 GPUs are no machine", "write 1 to 64: 8 x L4"),
        ("900 x L4", "900 GPUs are no machine", "write 1 to 64: 8 x L4"),
    ],
)
def test_a_machine_that_is_not_known(text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_gpus(text)
    assert raised.value.message.startswith(f"--machine: {message}") and raised.value.hint == hint
