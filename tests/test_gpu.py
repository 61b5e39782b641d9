"""The job on real NVIDIA GPUs, with the toy model: `make test-gpu`. Skipped where there is none.

On a machine with 8 x B200 this is the check of FSDP2, bf16 and NCCL to make before the 31B; it takes minutes.
"""

import json
from pathlib import Path

import pytest

from finetune.hardware import detect
from tests.test_end_to_end import entrypoint
from tests.test_fsdp2 import adapter

GPUS = len(detect().gpus)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS == 0, reason="no NVIDIA GPU")]
CASES = [
    pytest.param("gpu", "none", id="one GPU, bf16"),
    pytest.param("gpu", "nf4", id="one GPU, NF4"),
    pytest.param("multi-gpu", "none", id="all GPUs, FSDP2", marks=pytest.mark.skipif(GPUS < 2, reason="one GPU alone")),
]


@pytest.mark.parametrize(("profile", "quantization"), CASES)
def test_the_toy_learns_on_gpus(tmp_path: Path, profile: str, quantization: str) -> None:
    done = entrypoint(
        "run", "--profile", profile, "--model-id", "embedded", "--quantization", quantization, "--train-size", "800",
        "--eval-size", "50", "--activation-checkpointing", "true", "--output-dir", "out", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(value.isfinite().all() and value.abs().sum() > 0 for value in adapter(tmp_path / "out").values())
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    history = run["training"]["history"]
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert ("uint8" if quantization == "nf4" else "bfloat16") in run["model"]["dtypes"]
