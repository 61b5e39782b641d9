"""What happens to the results after training: merged model, hub, bucket, results file.

Training is finished by then, and its adapter is on disk: a failed delivery is told, with what to run to
repeat it, and never fails the run.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from peft import PeftModel
from transformers import AutoModelForMultimodalLM, AutoProcessor

from finetune.model import source
from finetune.plan import Plan
from finetune.settings import Settings

Say = Callable[[str], None]


def deliver(plan: Plan, run_dir: Path, say: Say) -> None:
    """Do what the settings ask for, one after the other. On the main process only."""
    settings = plan.settings
    if settings.results_file:
        target = Path(settings.results_file)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(run_dir / "metrics.json", target)
    if settings.merge:
        say(f"> merging base and adapter into {run_dir / 'merged'}")
        merge(settings, run_dir / "adapter", run_dir / "merged")
    if settings.push_to_hub:
        _push(settings, run_dir / "adapter", say)
    if settings.gcs_output_path:
        _copy_to_bucket(run_dir, settings.gcs_output_path, say)


def merge(settings: Settings, adapter: Path, target: Path) -> None:
    """Write base + adapter as one bf16 model. The base is loaded anew: never merged into 4-bit weights."""
    origin = source(settings.model_id)
    base = AutoModelForMultimodalLM.from_pretrained(
        origin, dtype=torch.bfloat16, device_map={"": "cpu"}, trust_remote_code=settings.trust_remote
    )
    merged = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload(safe_merge=True)
    merged.save_pretrained(str(target), safe_serialization=True)
    AutoProcessor.from_pretrained(origin, trust_remote_code=settings.trust_remote).save_pretrained(str(target))


def _push(settings: Settings, adapter: Path, say: Say) -> None:
    api = HfApi()
    name = settings.hub_repo or f"{Path(settings.model_id).name}-{settings.task}-lora"
    try:
        repository = api.create_repo(name, private=settings.hub_private_repo, exist_ok=True).repo_id
        url = api.upload_folder(repo_id=repository, folder_path=adapter, commit_message="Add the adapter")
        say(f"pushed to {url}")
    except (HfHubHTTPError, OSError) as error:
        say(f"warning: not pushed to the hub: {str(error).splitlines()[0]}")
        say(f"  hint: the adapter is safe; push it again with `hf upload {name} {adapter} . --private`")


def _copy_to_bucket(run_dir: Path, bucket: str, say: Say) -> None:
    import gcsfs

    try:
        gcsfs.GCSFileSystem().put(f"{run_dir}/", bucket.rstrip("/") + "/", recursive=True)
        say(f"copied to {bucket}")
    except (OSError, gcsfs.retry.HttpError) as error:
        say(f"warning: not copied to {bucket}: {str(error).splitlines()[0]}")
        say(f"  hint: the results are safe; copy them with `gcloud storage cp -r {run_dir} {bucket}`")
