"""Results -> repositories on the hub: the adapter with its card and metrics.json, and the merged model.

Rows of the data set never leave: predictions and report stay in the run directory.
"""

import json
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from httpx2 import HTTPError, TransportError
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils.tqdm import disable_progress_bars

from finetune.errors import DeliveryError
from finetune.settings import Settings

Say = Callable[[str], None]
T = TypeVar("T")
PAUSES_S = (5.0, 20.0, 60.0)
"""Between tries of a whole step. Within one, huggingface_hub tries most requests six times in 23 s by itself."""
FAILURES = (HTTPError, OSError, RuntimeError, ValueError)
"""What huggingface_hub raises when the hub refuses, is out of reach, or answers with nonsense."""
PASSING = (408, 409, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class Upload:
    """What goes into a repository. `name` may lack its owner; `files` are by path in the repository."""

    name: str
    what: str
    folder: Path
    files: dict[str, Path]


def uploads(settings: Settings, adapter: Path, merged: Path | None) -> list[Upload]:
    """The adapter, its card and metrics.json in one repository; the merged model in another, so that
    `from_pretrained` takes each by its name."""
    name = settings.hub_repo or f"{Path(settings.model_id).name}-{settings.task}-lora"
    files = _files(adapter)
    if (adapter.parent / "metrics.json").is_file():
        files["metrics.json"] = adapter.parent / "metrics.json"
    found = [Upload(name, "adapter", adapter, files)]
    if merged:
        found.append(Upload(f"{name.removesuffix('-lora')}-merged", "merged model", merged, _files(merged)))
    return found


def push(upload: Upload, private: bool, say: Say) -> None:
    """One commit with all files. Raises DeliveryError, with what to run to push again, once the hub has refused or
    has not answered for some minutes."""
    if not sys.stderr.isatty():
        disable_progress_bars()  # a log collector keeps every redrawing
    say(f"> pushing the {upload.what} to {upload.name}")
    api = HfApi()
    operations = [CommitOperationAdd(path, str(file)) for path, file in upload.files.items()]
    try:
        name = _patiently(lambda: api.create_repo(upload.name, private=private, exist_ok=True).repo_id, say)
        if private and not _patiently(lambda: api.repo_info(name).private, say):
            message = f"{name} is public, and --hub-private-repo wants it private"
            raise DeliveryError(message, "make it private on the hub first (or publish there on purpose)")
        done = _patiently(lambda: api.create_commit(name, operations, commit_message=f"Add the {upload.what}"), say)
    except FAILURES as error:
        raise _failure(upload, private, error) from error
    say(f"  {len(operations)} files are in {done.repo_url} ({'private' if private else 'public'}); rows stay here")


def _files(folder: Path) -> dict[str, Path]:
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in found.items() if not any(part.startswith(".") for part in name.split("/"))}


def _patiently(call: Callable[[], T], say: Say) -> T:
    """Call, and again after each pause while the hub seems to be only busy or out of reach."""
    for pause in PAUSES_S:
        try:
            return call()
        except FAILURES as error:
            if not _passes(error):
                raise
            say(f"  the hub did not take it ({reason(error)}); trying again in {pause:g} s")
        time.sleep(pause)
    return call()


def _passes(error: BaseException) -> bool:
    """Whether a later try may do better. huggingface_hub wraps a file's failure in RuntimeError."""
    if isinstance(error, DeliveryError | OfflineModeIsEnabled):
        return False
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in PASSING
    if isinstance(error, TransportError | json.JSONDecodeError | ConnectionError | TimeoutError):
        return True  # JSONDecodeError: a page that says "busy" where an answer was expected
    return isinstance(error, RuntimeError) and (error.__cause__ is None or _passes(error.__cause__))


def _failure(upload: Upload, private: bool, error: Exception) -> DeliveryError:
    if isinstance(error, DeliveryError):
        why, hint = error.message, error.hint
    else:
        why, hint = reason(error), "the files are safe"
    again = [["hf", "upload", upload.name, str(upload.folder), "."]]
    again += [
        ["hf", "upload", upload.name, str(file), name]
        for name, file in upload.files.items()
        if not file.is_relative_to(upload.folder)
    ]
    commands = " && ".join(shlex.join([*words, "--private"] if private else words) for words in again)
    return DeliveryError(f"the {upload.what} was not pushed to the hub: {why}", f"{hint}; push again with `{commands}`")


def reason(error: BaseException) -> str:
    """One line, with the status that the hub gave."""
    cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()] or [type(cause).__name__]
    if isinstance(cause, HfHubHTTPError):
        status = cause.response.status_code
        refused = {401: "it does not know the token", 403: "the token may not write there"}
        return f"{status}: {refused.get(status) or cause.server_message or lines[0]}"
    return lines[0]
