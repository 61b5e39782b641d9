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
SEVERAL = pytest.mark.skipif(GPUS < 2, reason="one GPU alone")
CASES = [
    pytest.param("text-to-sql", "gpu", "none", id="one GPU, bf16"),
    pytest.param("text-to-sql", "gpu", "nf4", id="one GPU, NF4"),
    pytest.param("text-to-sql", "multi-gpu", "none", id="all GPUs, FSDP2", marks=SEVERAL),
    pytest.param("pets", "gpu", "nf4", id="images, one GPU, NF4"),
    pytest.param("pets", "multi-gpu", "none", id="images, all GPUs, FSDP2", marks=SEVERAL),
]


@pytest.mark.parametrize(("task", "profile", "quantization"), CASES)
def test_the_toy_learns_on_gpus(tmp_path: Path, task: str, profile: str, quantization: str) -> None:
    done = entrypoint(
        "run", "--task", task, "--profile", profile, "--model-id", "embedded", "--quantization", quantization,
        "--train-size", "800", "--eval-size", "50", "--activation-checkpointing", "true", "--output-dir", "out",
        "--merge", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "warning: not merged" not in done.stderr
    assert all(value.isfinite().all() and value.abs().sum() > 0 for value in adapter(tmp_path / "out").values())
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    planned, measured = run["memory"]["planned"]["stages_gib"], run["memory"]["measured_gib"]
    assert 0 < measured["train"] < 2 * sum(planned["training"].values()), "of the toy's: CUDA and NCCL, mostly"
    history = run["training"]["history"]
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert ("uint8" if quantization == "nf4" else "bfloat16") in run["model"]["dtypes"]
    assert run["model"]["dtypes"]["float32"]["bytes"] == 4 * run["model"]["trainable"], "the adapter alone is in fp32"
