"""memory.py: what can be measured without a GPU is measured here, on the real classes, and compared."""

from dataclasses import replace
from typing import Any

import pytest

from finetune.fit import judge
from finetune.hardware import GIB
from finetune.known_models import GEMMA4_12B, GEMMA4_26B_A4B, GEMMA4_31B, GEMMA4_E2B, GEMMA4_E4B, KNOWN_CONFIGS
from finetune.memory import NF4_BYTES, Work, _answers, _layer_bytes, estimate, remedies
from finetune.parameters import count
from finetune.settings import DEFAULTS

TEXT: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_global_key_value_heads": 1,
    "head_dim": 256,
    "global_head_dim": 512,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "vocab_size": 64,
    "layer_types": ["sliding_attention", "full_attention"],
}
WORK = Work.of({**DEFAULTS, "max_length": 1024}, images=False, gpus=1, bf16=True)


@pytest.mark.parametrize("dropout", [0.0, 0.05])
@pytest.mark.parametrize("bf16", [True, False])
def test_what_a_layer_keeps_for_its_backward_pass(bf16: bool, dropout: float) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from torch.autograd.graph import saved_tensors_hooks
    from transformers import AutoModelForCausalLM, Gemma4TextConfig

    from finetune.model import TEXT_PROJECTIONS

    net = AutoModelForCausalLM.from_config(Gemma4TextConfig(**TEXT), dtype=torch.bfloat16 if bf16 else torch.float32)
    projections = TEXT_PROJECTIONS.replace(r"language_model\.", "")
    net = get_peft_model(
        net.requires_grad_(False), LoraConfig(r=16, lora_alpha=32, lora_dropout=dropout, target_modules=projections)
    )
    for parameter in net.parameters():
        parameter.data = parameter.data.float() if parameter.requires_grad else parameter.data
    net.train().enable_input_require_grads()
    weights = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}
    kept: list[dict[int, int]] = []
    for layer in net.base_model.model.model.layers:
        kept.append({})
        layer.forward = _counting(layer.forward, kept[-1], weights, saved_tensors_hooks)
    tokens = 512
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        net(input_ids=torch.randint(0, 64, (1, tokens)), use_cache=False)
    measured = [sum(found.values()) / tokens for found in kept]
    expected = list(_layer_bytes(TEXT, replace(WORK, bf16=bf16, lora_dropout=dropout)))
    assert expected == pytest.approx(measured, rel=0.15)


def _counting(forward: Any, kept: dict[int, int], weights: set[int], hooks: Any) -> Any:
    """A layer's forward that notes the storages that it keeps, once each, but for weights."""

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            held.append(tensor)  # or its address would be used again
        return tensor

    def call(*args: Any, **kwargs: Any) -> Any:
        with hooks(pack, lambda tensor: tensor):
            return forward(*args, **kwargs)

    held: list[Any] = []
    return call


def test_a_packed_weight_is_what_bitsandbytes_makes_of_it() -> None:
    import torch
    from bitsandbytes.functional import quantize_4bit

    weight = torch.randn(1024, 2048)
    packed, state = quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    parts = (packed, state.absmax, state.state2.absmax)
    size = sum(part.numel() * part.element_size() for part in parts)
    assert size == pytest.approx(NF4_BYTES * weight.numel(), rel=1e-3)


@pytest.mark.parametrize("member", ["31b", "e2b", "12b"])
def test_keys_and_values_are_those_of_the_real_cache(member: str, tmp_path: Any) -> None:
    import json

    import torch
    from transformers import AutoModelForMultimodalLM

    from tests.family import make_member

    folder = make_member(member, tmp_path)
    net = AutoModelForMultimodalLM.from_pretrained(folder)
    length = 40  # less than the window: no layer has forgotten anything
    cache = net(input_ids=torch.full((1, length), 7), use_cache=True).past_key_values
    held = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers if layer.keys is not None)
    text = json.loads((folder / "config.json").read_text())["text_config"]
    work = replace(WORK, bf16=False, eval_batch=1, max_new_tokens=0)
    at = [_answers({"text_config": text}, replace(work, max_length=tokens)) for tokens in (0, length)]
    at_work = length * (6 * text["hidden_size"] + 3 * text["intermediate_size"] + 4 * 4 * text["head_dim"])
    assert at[1] - at[0] == 4 * (held + at_work)


def test_the_published_sizes() -> None:
    """In billions: 31.3 (62.5 GB in bf16), and of the model cards 11.95 (12B), 5.1 (E2B) and 8 (E4B)."""
    sizes = [count(config).total / 1e9 for config in (GEMMA4_31B, GEMMA4_12B, GEMMA4_E2B, GEMMA4_E4B)]
    assert sizes == pytest.approx([31.27, 11.95, 5.1, 7.95], rel=2e-3)
    assert estimate(GEMMA4_31B, WORK).stages["loading"]["weights"] == pytest.approx(62.5e9 / GIB, rel=2e-3)
    nf4 = replace(WORK, quantization="nf4")
    assert estimate(GEMMA4_31B, nf4).stages["loading"]["weights"] == pytest.approx(17.0, abs=0.1)
    experts = count(GEMMA4_26B_A4B)
    assert estimate(GEMMA4_26B_A4B, nf4).stages["loading"]["weights"] > 2 * experts.experts / GIB, "not packed"
    assert len(KNOWN_CONFIGS) == 10


def test_what_is_shared_out_and_what_is_not() -> None:
    one, eight = estimate(GEMMA4_31B, WORK), estimate(GEMMA4_31B, replace(WORK, gpus=8))
    assert eight.of("training") < one.of("training") / 2
    assert eight.stages["loading"]["weights"] == one.stages["loading"]["weights"], "loaded whole, then sharded"
    assert eight.host > one.host > 2 * count(GEMMA4_31B).total / GIB
    assert set(estimate(GEMMA4_31B, replace(WORK, trains=False)).stages) == {"loading", "measuring"}
    assert set(estimate(GEMMA4_31B, replace(WORK, measures=False)).stages) == {"loading", "training"}


@pytest.mark.parametrize(
    ("change", "stage", "part"),
    [
        ({"micro_batch": 4}, "training", "activations"),
        ({"max_length": 2048}, "training", "activations"),
        ({"checkpointing": False}, "training", "activations"),
        ({"images": True}, "training", "activations"),
        ({"lora_r": 64}, "training", "adapter"),
        ({"lora_targets": "all-linear"}, "training", "adapter"),
        ({"eval_batch": 16}, "measuring", "answers"),
        ({"bf16": False}, "loading", "weights"),
    ],
)
def test_what_costs_more(change: dict[str, Any], stage: str, part: str) -> None:
    less, more = estimate(GEMMA4_31B, WORK), estimate(GEMMA4_31B, replace(WORK, **change))
    assert more.stages[stage][part] > less.stages[stage][part]
    assert more.of(stage) > less.of(stage)


def test_what_would_make_it_fit_does() -> None:
    work = replace(WORK, micro_batch=8, eval_batch=16, checkpointing=False)
    assert judge(GEMMA4_E4B, work, 140.0) == ("", True)
    said, _ = judge(GEMMA4_E4B, work, 80.0)
    assert "not fit: " in said and "GiB too much; " in said and "would make it fit" in said
    for there in (32.0, 64.0, 80.0, 110.0):
        for flag in remedies(GEMMA4_E4B, work, there):
            name, _, value = flag.removeprefix("--").partition(" ")
            changed = {
                "eval-batch-size": {"eval_batch": 1},
                "activation-checkpointing": {"checkpointing": True},
                "per-device-train-batch-size": {"micro_batch": 1},
                "max-length": {"max_length": 512},
                "quantization": {"quantization": value},
            }[name]
            assert estimate(GEMMA4_E4B, replace(work, **changed)).peak <= there
    assert judge(GEMMA4_31B, WORK, 4.0)[0].endswith("only larger GPUs would do")
    assert judge(GEMMA4_31B, WORK, 17.0)[0].endswith("--model-id google/gemma-4-E4B-it would fit")


def test_a_smaller_adapter_is_proposed_and_what_only_helps_together() -> None:
    work = replace(WORK, quantization="nf4", lora_r=64)
    of_16, of_32 = (estimate(GEMMA4_31B, replace(work, lora_r=rank)).peak for rank in (16, 32))
    assert "--lora-r 16" in remedies(GEMMA4_31B, work, of_16)
    assert "--lora-r 32" in remedies(GEMMA4_31B, work, of_32)
    both = replace(work, eval_batch=1, lora_r=8)
    assert remedies(GEMMA4_31B, work, estimate(GEMMA4_31B, both).peak) == ["--eval-batch-size 1 with --lora-r 8"]
