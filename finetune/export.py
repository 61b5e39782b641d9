"""What happens to the results after training: merged model, hub, bucket, results file.

Training is finished by then, and its adapter is on disk: a failed delivery is told, with what to run to
repeat it, and never fails the run. The command `merge` does the same for an earlier run, and does fail.
"""

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import yaml

from finetune import bucket, hub
from finetune.errors import DeliveryError, FinetuneError, ModelError, StorageError
from finetune.facts import HUB_ID
from finetune.merge import base_folder, is_finished, merge
from finetune.merge_check import compare
from finetune.plan import Plan
from finetune.settings import Settings
from finetune.sources import fetch_adapter
from finetune.storage import is_bucket, open_folder, parent

Say = Callable[[str], None]
CARD = "README.md"


def deliver(plan: Plan, run_dir: Path, scratch: Path, say: Say) -> bool:
    """Do what the settings ask for, one after the other. On the main process only. Returns whether all was done."""
    settings, adapter = plan.settings, run_dir / "adapter"
    done = True
    if settings.results_file:
        try:
            target = Path(settings.results_file).name
            open_folder(parent(settings.results_file)).put(target, run_dir / "metrics.json")
        except StorageError as error:
            done = False
            say(f"warning: {settings.results_file} was not written: {error.message}")
            say(f"  hint: the same is in {plan.place}/metrics.json")
    merged = None
    if settings.merge:
        try:
            merged = run_dir / "merged" if merge_adapter(plan, run_dir, adapter, scratch, say) else None
        except FinetuneError as error:
            done = False
            again = shlex.join(["entrypoint.py", "merge", "--output-dir", plan.place, "--overwrite"])
            say(f"warning: not merged: {error.message}\n  hint: {error.hint}; merge again with `{again}`")
    failures = _hand_on(plan, run_dir, adapter, merged, say)
    for failure in failures:
        say(f"warning: {failure.message}\n  hint: {failure.hint}")
    return done and not failures


def merge_run(plan: Plan, run_dir: Path, scratch: Path, say: Say) -> None:
    """The command `merge`: do for an earlier run what --merge, --push-to-hub and --gcs-output-path do at a run's end.

    Raises ModelError if the adapter cannot be merged or the merged model is not base + adapter, and DeliveryError
    if it could not be handed on.
    """
    adapter = Path(plan.adapter_path or run_dir / "adapter")
    if plan.adapter_path and is_bucket(plan.adapter_path):
        adapter = fetch_adapter(plan.adapter_path, scratch)
    if not merge_adapter(plan, run_dir, adapter, scratch, say):
        raise ModelError(
            f"{plan.place}/merged is not clearly base + adapter: see above",
            "use the adapter as it is, with PEFT, or train longer",
        )
    failures = _hand_on(plan, run_dir, adapter, run_dir / "merged", say)
    if failures:
        raise DeliveryError(
            "; ".join(failure.message for failure in failures), "\n  hint: ".join(failure.hint for failure in failures)
        )


def merge_adapter(plan: Plan, run_dir: Path, adapter: Path, scratch: Path, say: Say) -> bool:
    """Write base + adapter to run_dir/merged, and compare. Returns whether it is clearly that, and says so.

    The base is the one on disk in its own precision, never the 4-bit one in memory. Raises FinetuneError of the
    kind that fits: a base or an adapter that cannot be merged, or a machine on which it could not be done.
    """
    target = run_dir / "merged"
    named = plan.adapter_path or f"{plan.place}/adapter"
    say(f"> merging {plan.settings.model_id} and {named} into {plan.place}/merged")
    try:
        return _merge_and_compare(plan, adapter, target, scratch, say)
    except FinetuneError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # the disk, the memory, what transformers cannot load
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        what = "was written, but could not be compared" if is_finished(target) else "could not be written"
        raise DeliveryError(f"{plan.place}/merged {what}: {reason}", "the adapter is safe") from error


def _merge_and_compare(plan: Plan, adapter: Path, target: Path, scratch: Path, say: Say) -> bool:
    settings = plan.settings
    base = base_folder(settings.model_id, scratch)
    done = merge(base, adapter, target, trust_remote=settings.trust_remote)
    (target / CARD).write_text(_card(settings), encoding="utf-8")
    say(f"  {done.weights} weights changed; keys, dtypes, tokenizer and configuration are the base's")
    if done.is_base:
        say("warning: the adapter is all zero, so the merged model is the base")
        say("  hint: it was never trained: more steps, or a higher --learning-rate")
        return True
    found = compare(base, adapter, target, ram_gib=plan.machine.get("ram_gib"), trust_remote=settings.trust_remote)
    say(f"  {found}")
    if not found.is_right:
        say("warning: the merged model is not clearly closer to base + adapter than to the base")
        say("  hint: the adapter changes about as little as rounding does: use it as it is, or train longer")
    return found.is_right


def _hand_on(plan: Plan, run_dir: Path, adapter: Path, merged: Path | None, say: Say) -> list[DeliveryError]:
    """Push and copy what the settings say. Returns what failed; one failure does not stop the others."""
    settings = plan.settings
    tasks: list[Callable[[], None]] = []
    if settings.push_to_hub:
        uploads = hub.uploads(settings, adapter, merged)
        tasks += [partial(hub.push, upload, settings.hub_private_repo, say) for upload in uploads]
    if settings.gcs_output_path:
        tasks.append(partial(bucket.copy, run_dir, settings.gcs_output_path, say, plan.place))
    failures = []
    for task in tasks:
        try:
            task()
        except DeliveryError as error:
            failures.append(error)
    return failures


def _card(settings: Settings) -> str:
    """The merged model's own card: what it is, and where to read how it was made."""
    is_hub_id = HUB_ID.fullmatch(settings.model_id) and not Path(settings.model_id).exists()
    front_matter = {
        **({"base_model": settings.model_id, "base_model_relation": "finetune"} if is_hub_id else {}),
        "library_name": "transformers",
        "tags": ["gemma4", "lora", settings.task],
    }
    base = f"`{settings.model_id}`" if is_hub_id else "a Gemma 4 kept in a folder"
    return (
        f"---\n{yaml.safe_dump(front_matter, sort_keys=False)}---\n\n# {settings.task}: Gemma 4, adapter merged in\n\n"
        f"This is {base} with a LoRA adapter for {settings.task} merged into its weights, by gemma4-finetune. It loads "
        "like the base, without PEFT. How it was trained and measured, and the prompt it expects, is in the card of "
        "the adapter.\n"
    )
