"""What does not go together in a run: contradictions that are told before any GPU time is spent. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finetune.errors import FinetuneError, UsageError
from finetune.facts import Facts
from finetune.fit import size_of
from finetune.hardware import Machine
from finetune.request import Request

HUB_REPO = re.compile(r"([\w.-]+/)?[\w.-]+")


@dataclass(frozen=True)
class Proposal:
    """A run about to be planned. `gpus` is how many GPUs the profile would use."""

    request: Request
    values: Mapping[str, Any]
    facts: Facts
    machine: Machine
    processes: int
    gpus: int


def find_problems(run: Proposal) -> list[FinetuneError]:
    """Everything that makes the run impossible, each as what was found, what was expected, and what to write."""
    where, values = run.request.where, run.values
    problems: list[FinetuneError] = []

    def wrong(name: str, message: str, hint: str) -> None:
        problems.append(UsageError(f"{where(name)}: {message}", hint))

    for trouble in run.facts.troubles:
        if trouble.setting == "adapter":
            problems.append(UsageError(f"--adapter: {trouble.message}", trouble.hint))
        else:
            wrong(trouble.setting, trouble.message, trouble.hint)
    if _replaces_results(run) and not run.request.what_if:
        wrong(
            "output_dir",
            f"{values['output_dir']} holds the results of an earlier run",
            "write another --output-dir, or add --overwrite to replace them",
        )
    if values["attn_implementation"] == "flash_attention_2":
        wrong(
            "attn_implementation",
            "flash_attention_2 takes heads of at most 256, and Gemma 4's full-attention layers have heads of 512",
            "write --attn-implementation sdpa",
        )
    if values["quantization"] == "nf4" and run.processes > 1:
        wrong(
            "quantization",
            f"nf4 runs on one GPU: FSDP2 cannot shard its packed weights over {run.processes}",
            f"write --profile gpu --quantization nf4 for one GPU, or --quantization none for all {run.processes}",
        )
    if values["push_to_hub"] and not run.facts.has_token:
        wrong(
            "push_to_hub",
            "there is no token for the hub",
            "set HF_TOKEN=... in the environment, or log in with `hf auth login`",
        )
    if values["hub_repo"] and not HUB_REPO.fullmatch(values["hub_repo"]):
        wrong("hub_repo", f"{values['hub_repo']!r} is no repository's name", "write NAME or ORG/NAME")
    bucket = values["gcs_output_path"]
    if bucket and not re.fullmatch(r"gs://[a-z0-9][\w.-]+(/.*)?", bucket):
        wrong("gcs_output_path", f"{bucket!r} is not a path in a bucket", "write gs://BUCKET/PATH")
    if values["max_new_tokens"] >= values["max_length"] and "max_new_tokens" in run.request.given:
        wrong(
            "max_new_tokens",
            f"an answer of {values['max_new_tokens']} tokens does not fit into rows of {values['max_length']}",
            f"write less than {values['max_length']}, or a higher --max-length",
        )
    positions = ((run.facts.model.config or {}).get("text_config") or {}).get("max_position_embeddings")
    if positions and values["max_length"] > positions:
        wrong(
            "max_length", f"{values['max_length']} is more than the model's {positions}", f"write {positions} or less"
        )
    if run.request.command == "evaluate" and values["eval_size"] == 0:
        wrong("eval_size", "0 rows leave nothing to evaluate", "write --eval-size 200, or leave it out")
    return problems


def find_notes(run: Proposal) -> list[str]:
    """What a user should know about values that have no effect, or not the one they may expect."""
    values, given = run.values, run.request.given
    table = (
        ("use_fast" in given, "use_fast has no effect: transformers 5 has only fast tokenizers"),
        (
            "save_steps" in given and values["save_strategy"] != "steps",
            f"save_steps has no effect with save_strategy {values['save_strategy']}",
        ),
        (
            "max_steps" in given and "num_train_epochs" in given,
            f"max_steps {values['max_steps']} ends training, whatever num_train_epochs says",
        ),
        ("hub_repo" in given and not values["push_to_hub"], "hub_repo has no effect without push_to_hub"),
        (_replaces_results(run), f"{values['output_dir']} holds earlier results: a run there needs --overwrite"),
        (values["trust_remote"], "trust_remote: code from the model's repository will run here"),
        (
            _too_large(run),
            f"the model needs about {_fp32_gib(run):.0f} GiB of RAM in fp32; there are {run.machine.ram_gib}",
        ),
        (
            bool(run.request.adapter_base) and "model_id" in given and run.request.adapter_base != values["model_id"],
            f"the adapter was trained on {run.request.adapter_base}, not on {values['model_id']}",
        ),
    )
    return [*run.facts.notes, *(note for applies, note in table if applies)]


def _replaces_results(run: Proposal) -> bool:
    return run.request.command == "run" and run.facts.has_results and not run.values["overwrite"]


def _fp32_gib(run: Proposal) -> float:
    """The model's weights in fp32, in GiB; 0 where its size is not known."""
    size = size_of(run.facts.model.name, run.facts.model.weights_gib)
    return 2 * size.bf16_gib if size else 0.0


def _too_large(run: Proposal) -> bool:
    return run.gpus == 0 and run.machine.ram_gib is not None and _fp32_gib(run) > run.machine.ram_gib
