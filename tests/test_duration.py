"""How long a run takes, by arithmetic: checked against sums done by hand, and against the real model's operations."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForMultimodalLM

from finetune.duration import LAYER_S, Lengths, Machines, estimate_duration, steps_of
from finetune.embedded import base_dir
from finetune.known_gpus import Rates
from finetune.known_models import GEMMA4_26B_A4B, GEMMA4_31B, GEMMA4_E2B
from finetune.settings import DEFAULTS

FAST = Rates("", 100, 4000, 500, 0.5)
ALONE = Machines(FAST, 1, True)
ROWS = Lengths(1_000, 100, 200.0, 50.0)
VALUES: dict[str, Any] = {**DEFAULTS, "activation_checkpointing": False, "num_train_epochs": 1.0}


def trained(config: Any, lengths: Lengths = ROWS, machines: Machines = ALONE, **changes: Any) -> float:
    return estimate_duration(config, {**VALUES, **changes}, lengths, machines).seconds["train"]


def test_a_row_of_the_31b_by_hand() -> None:
    """29.27e9 weights of linear layers (2 x 29.27e9 x 250), 262,144 x 5,376 of the output layer for 50 tokens, and the
    attention of 50 layers with 32 heads of 256 and 10 with 32 heads of 512; forward, and as much backward."""
    weights = 60 * 3 * 5376 * 21504 + 50 * 5376 * 256 * (2 * 32 + 2 * 16) + 10 * 5376 * 512 * (2 * 32 + 4)
    attention = 2 * (50 * 32 * 256 + 10 * 32 * 512) * 250**2
    forward = 2 * weights * 250 + 2 * 262_144 * 5_376 * 50 + attention
    found = estimate_duration(GEMMA4_31B, VALUES, ROWS, ALONE)
    assert found.flops_per_token == pytest.approx(2 * forward / 250, rel=1e-6)
    assert found.seconds["train"] == pytest.approx(1_000 * 2 * forward / 0.5e14, rel=1e-3)
    assert trained(GEMMA4_31B, activation_checkpointing=True) == pytest.approx(1.5 * found.seconds["train"], rel=1e-3)


def test_the_operations_of_a_forward_pass_are_those_that_torch_counts() -> None:
    """The embedded model, text alone: all logits are made, and the attention's square is not halved."""
    model = AutoModelForMultimodalLM.from_pretrained(base_dir(), dtype=torch.float32, attn_implementation="eager")
    ids = torch.randint(10, 200, (1, 64))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=ids, use_cache=False)
    config = model.config.to_dict()
    lengths = Lengths(1, 0, 0.0, 64.0)
    found = estimate_duration(config, VALUES, lengths, Machines(FAST, 1, False)).flops_per_token * 64 / 2
    text = config["text_config"]
    squares = 2 * text["num_hidden_layers"] * text["num_attention_heads"] * text["head_dim"] * 64**2
    assert counter.get_total_flops() == pytest.approx(found + squares, rel=0.1)


def test_experts_count_as_those_that_a_token_meets() -> None:
    all_of_them = {**GEMMA4_26B_A4B, "text_config": {**GEMMA4_26B_A4B["text_config"], "top_k_experts": 128}}
    few, many = (estimate_duration(c, VALUES, ROWS, ALONE) for c in (GEMMA4_26B_A4B, all_of_them))
    assert 5 < many.flops_per_token / few.flops_per_token < 12


def test_what_bounds_a_micro_batch() -> None:
    computed = trained(GEMMA4_31B)
    assert trained(GEMMA4_31B, quantization="nf4") > 1.1 * computed, "weights are unpacked"
    slow = replace(FAST, link_gb_s=10)
    shared = trained(GEMMA4_31B, machines=Machines(slow, 8, True), gradient_accumulation_steps=1)
    gathered = 2 * 7 / 8 * 62.5e9 / (0.6 * 10e9)
    assert shared == pytest.approx(125 * gathered, rel=0.02), "FSDP2 waits for its links"
    short = trained(GEMMA4_E2B, Lengths(1_000, 0, 1.0, 1.0))
    assert short == pytest.approx(1_000 * 3 * 35 * LAYER_S, rel=1e-3), "no pass is faster than its kernels are sent"


def test_images_cost_their_tower_once_or_with_its_gradients() -> None:
    seen = replace(ROWS, images=1.0)
    text, both = (trained(GEMMA4_31B, seen, lora_targets=targets) for targets in ("text", "all-linear"))
    assert trained(GEMMA4_31B) < text < both


def test_measuring_takes_as_long_as_its_answers() -> None:
    times = [
        estimate_duration(GEMMA4_31B, {**VALUES, "eval_batch_size": size, "max_new_tokens": most}, ROWS, ALONE)
        for size, most in ((8, 256), (16, 256), (8, 20))
    ]
    whole, fewer_batches, cut_short = (found.seconds["before"] for found in times)
    assert fewer_batches < whole and cut_short < whole
    assert "before" not in estimate_duration(GEMMA4_31B, VALUES, replace(ROWS, measured=0), ALONE).seconds
    alone = estimate_duration(GEMMA4_31B, VALUES, ROWS, ALONE, trains=False)
    assert set(alone.seconds) == {"load", "before"} and alone.steps == alone.tokens == 0


def test_steps() -> None:
    assert steps_of({"max_steps": None, "num_train_epochs": 3.0}, 10_000, 512) == 60
    assert steps_of({"max_steps": 7, "num_train_epochs": 3.0}, 10_000, 512) == 7
    assert steps_of({"max_steps": None, "num_train_epochs": 0.5}, 100, 10) == 5
