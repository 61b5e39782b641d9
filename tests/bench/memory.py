"""How near the memory estimate comes: `python -m tests.bench.memory`. Prints ratios, asserts nothing.

Each line is a training step of a small Gemma 4 with LoRA on the CPU, in fp32 or in bf16 with autocast, in a process of
its own: how much the process's peak grew from before the model was there, and what finetune/memory.py says of weights,
adapter and activations.
"""

import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from finetune.hardware import GIB
from finetune.memory import Work, estimate
from finetune.settings import DEFAULTS

TEXT: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_global_key_value_heads": 1,
    "head_dim": 128,
    "global_head_dim": 256,
    "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0,
    "vocab_size": 1024,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    "sliding_window": 512,
}
WORK = replace(Work.of({**DEFAULTS, "max_length": 512}, images=False, gpus=1, bf16=False), measures=False)
CASES: list[dict[str, Any]] = [
    {"bf16": bf16, "micro_batch": rows, "checkpointing": checkpointing, "lora_dropout": dropout}
    for bf16 in (False, True)
    for rows in (2, 8)
    for checkpointing, dropout in ((False, 0.0), (False, 0.05), (True, 0.0))
]


def step(work: Work) -> float:
    """GiB by which this process's peak grows in a training step."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Gemma4TextConfig

    from finetune.model import TEXT_PROJECTIONS

    before = _peak()
    precision = torch.bfloat16 if work.bf16 else torch.float32
    net = AutoModelForCausalLM.from_config(Gemma4TextConfig(**TEXT), dtype=precision).requires_grad_(False)
    projections = TEXT_PROJECTIONS.replace(r"language_model\.", "")
    lora = LoraConfig(r=work.lora_r, lora_alpha=32, lora_dropout=work.lora_dropout, target_modules=projections)
    model = get_peft_model(net, lora).train()  # the adapter of bf16 weights is fp32, as that of a run
    model.enable_input_require_grads()
    if work.checkpointing:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    ids = torch.randint(0, TEXT["vocab_size"], (work.micro_batch, work.max_length))
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
    with torch.autocast("cpu", torch.bfloat16, enabled=work.bf16):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    return _peak() - before


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB


def main() -> None:
    if len(sys.argv) > 1:
        print(step(replace(WORK, **json.loads(sys.argv[1]))))
        return
    root = Path(__file__).parents[2]
    # Else glibc keeps freed blocks of up to 32 MiB, and the peak tells of its fragments too.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    for case in CASES:
        command = [sys.executable, "-m", "tests.bench.memory", json.dumps(case)]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
        measured = float(done.stdout)
        stage = estimate({"model_type": "gemma4", "text_config": TEXT}, replace(WORK, **case)).stages["training"]
        said = sum(stage.get(part, 0.0) for part in ("weights", "adapter", "activations", "logits"))
        name = ", ".join(f"{key} {value}" for key, value in case.items())
        print(f"{name}: estimate / measured = {said / measured:.2f} ({said:.2f} and {measured:.2f} GiB)", flush=True)


if __name__ == "__main__":
    main()
