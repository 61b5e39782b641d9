"""What does not go together in a run: contradictions that are told before any GPU time is spent. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from finetune.earlier import Decision, Earlier
from finetune.embedded import EMBEDDED
from finetune.errors import FinetuneError, UsageError
from finetune.facts import HUB_ID, Facts
from finetune.gcs import IN_BUCKET
from finetune.hardware import GIB, Machine
from finetune.nodes import COUNT, find_missing
from finetune.parameters import count
from finetune.request import Request
from finetune.settings import Trouble
from finetune.storage import is_url
from finetune.tasks import TASKS

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
    problems += _node_problems(run)
    if run.request.command == "merge":
        problems += _merge_problems(run)
    if values["attn_implementation"] == "flash_attention_2":
        wrong(
            "attn_implementation",
            "flash_attention_2 takes heads of at most 256, and Gemma 4's full-attention layers have heads of 512",
            "write --attn-implementation sdpa",
        )
    one_node = f" (and unset {COUNT})" if run.request.nodes.count > 1 else ""
    if values["quantization"] == "nf4" and run.processes > 1:
        wrong(
            "quantization",
            f"nf4 runs on one GPU: FSDP2 cannot shard its packed weights over {run.processes}",
            f"write --profile gpu --quantization nf4 for one GPU{one_node}, or --quantization none "
            f"for all {run.processes}",
        )
    if values["push_to_hub"] and not run.facts.has_token:
        wrong(
            "push_to_hub",
            "there is no token for the hub",
            "set HF_TOKEN=... in the environment, or log in with `hf auth login`",
        )
    if values["hub_repo"] and not HUB_REPO.fullmatch(values["hub_repo"]):
        wrong("hub_repo", f"{values['hub_repo']!r} is no repository's name", "write NAME or ORG/NAME")
    if values["restart"] and values["resume_from"]:
        wrong("restart", "given together with --resume-from", "keep one of them")
    bucket = values["gcs_output_path"]
    if bucket and not IN_BUCKET.fullmatch(bucket):
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


def _node_problems(run: Proposal) -> list[FinetuneError]:
    nodes = run.request.nodes
    if nodes.count == 1:
        return []
    if run.request.command == "merge":
        return [UsageError(f"{COUNT}: {nodes.count}, but a merge is one machine's work", f"unset {COUNT}")]
    if not run.gpus:
        return [UsageError(f"{COUNT}: {nodes.count}, but there is no GPU to use here", f"unset {COUNT} on a CPU")]
    return [] if run.request.what_if else find_missing(nodes)


def find_earlier_problems(request: Request, earlier: Earlier, decision: Decision, out: str) -> list[FinetuneError]:
    """Why a run must not start where an earlier one has been."""
    if not decision.differs or request.what_if:
        return []
    where = request.where("output_dir")
    if earlier.last is None:
        hint = "write another --output-dir, or add --overwrite to replace them"
        return [UsageError(f"{where}: {out} holds the results of an earlier run: {decision.differs[0]}", hint)]
    hint = "write --restart to begin anew, --resume-anyway to go on from it all the same, or another --output-dir"
    message = f"{where}: {earlier.last.name} in {out} is that of another run: {'; '.join(decision.differs)}"
    return [UsageError(message, hint)]


def find_stage_problems(
    request: Request, model_id: str | None, to: str | None, trouble: Trouble | None
) -> list[FinetuneError]:
    """What is wrong with a command to copy a model from the hub. `trouble` is what was found at its target."""
    problems = list(request.problems)
    if not model_id:
        problems.append(UsageError("--model-id: which model?", "write --model-id google/gemma-4-31B-it"))
    elif not HUB_ID.fullmatch(model_id):
        hint = "write org/name, such as google/gemma-4-31B-it"
        problems.append(UsageError(f"--model-id: {model_id!r} is no hub id", hint))
    if not to:
        problems.append(UsageError("--to: where to?", "write --to gs://BUCKET/PATH, or --to FOLDER"))
    elif is_url(to) and not IN_BUCKET.fullmatch(to):
        problems.append(UsageError(f"--to: {to!r} is not a path in a bucket", "write gs://BUCKET/PATH, or a folder"))
    elif trouble:
        problems.append(UsageError(f"--to: {trouble.message}", trouble.hint))
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
        (
            values["dataset"] == EMBEDDED and values["model_id"] != EMBEDDED and "dataset" not in given,
            "on a CPU, with no data set named, the embedded rows are used to try things out; "
            f"for real ones, write --dataset {TASKS[values['task']].SOURCE.dataset or 'FILE.jsonl'}",
        ),
        (
            not TASKS[values["task"]].IMAGES and bool({"image_column", "label_column"} & given.keys()),
            f"image_column and label_column have no effect with task {values['task']}",
        ),
        (
            _has_experts(run),
            "the fused experts are no linear layers: LoRA does not adapt them"
            + (", and NF4 leaves them in bf16, so it saves little memory" if values["quantization"] == "nf4" else ""),
        ),
        (
            _too_large(run),
            f"the model needs about {_fp32_gib(run):.0f} GiB of RAM in fp32; there are {run.machine.ram_gib}",
        ),
    )
    return [*run.facts.notes, *(note for applies, note in table if applies), *find_merge_notes(run)]


def find_merge_notes(run: Proposal) -> list[str]:
    """The notes that concern a merge as well as a run."""
    values, given, base = run.values, run.request.given, run.request.adapter_base
    other = bool(base) and "model_id" in given and base != values["model_id"]
    table = (
        ("hub_repo" in given and not values["push_to_hub"], "hub_repo has no effect without push_to_hub"),
        (values["trust_remote"], "trust_remote: code from the model's repository will run here"),
        (other, f"the adapter was trained on {base}, not on {values['model_id']}"),
    )
    return [note for applies, note in table if applies]


def _merge_problems(run: Proposal) -> list[FinetuneError]:
    given, where, out = run.request.given, run.request.where, run.values["output_dir"]
    problems: list[FinetuneError] = []
    if "merge" in given and not given["merge"].value:
        problems.append(UsageError(f"{where('merge')}: the command is to merge", "leave it out"))
    if run.facts.earlier.has_merged and not run.values["overwrite"] and not run.request.what_if:
        hint = "add --overwrite to replace it, or write another --output-dir (with --adapter)"
        problems.append(UsageError(f"{where('output_dir')}: {out} holds a merged model already", hint))
    there = not any(trouble.setting == "adapter" for trouble in run.facts.troubles)
    if there and not run.request.adapter_base and "model_id" not in given:
        message = f"--model-id: {run.facts.adapter} does not say what it was trained on"
        problems.append(UsageError(message, "write the base model: --model-id google/gemma-4-31B-it, for example"))
    return problems


def _has_experts(run: Proposal) -> bool:
    return bool(((run.facts.model.config or {}).get("text_config") or {}).get("enable_moe_block"))


def _fp32_gib(run: Proposal) -> float:
    """The model's weights in fp32, in GiB; 0 where its size is not known."""
    config = run.facts.model.config
    return 4 * count(config).total / GIB if config else 0.0


def _too_large(run: Proposal) -> bool:
    return run.gpus == 0 and run.machine.ram_gib is not None and _fp32_gib(run) > run.machine.ram_gib
