"""Reading a model's repository on the hub: its files with their checksums, and any bytes of them."""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from httpx2 import HTTPError
from huggingface_hub import HfApi, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    filter_repo_objects,
    hf_raise_for_status,
    http_backoff,
)
from tqdm.asyncio import tqdm_asyncio

from finetune.errors import DeliveryError, FinetuneError, ModelError
from finetune.hub import FAILURES, reason

IGNORED = [".gitattributes", "*.bin", "*.gguf", "*.onnx", "*.pth", "original/*"]
"""Other forms of the weights, where a repository has them: a run reads safetensors."""
TIMEOUT_S = 60.0
NOT_GIVEN = "see that the name is right, accept the model's licence on its page, and set HF_TOKEN"


@dataclass(frozen=True)
class File:
    """A file of a repository. `checksum` is the SHA-256 of a large one, git's blob id of a small one."""

    name: str
    size: int
    checksum: str
    large: bool

    def digest(self) -> Any:
        """A hash that gives `checksum` once it has been fed the whole file."""
        return hashlib.sha256() if self.large else hashlib.sha1(f"blob {self.size}\0".encode())

    def spans(self, size: int) -> list[tuple[int, int]]:
        """The file in parts of `size` bytes: from this byte up to that."""
        return [(start, min(start + size, self.size)) for start in range(0, max(self.size, 1), size)]


class Lines(tqdm_asyncio):  # type: ignore[type-arg]
    """huggingface_hub's bars, redrawn every half minute where the log is no terminal."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("name", None)
        super().__init__(*args, **{**kwargs, "mininterval": 0.1 if sys.stderr.isatty() else 30})


def list_files(api: HfApi, model: str) -> tuple[str, list[File]]:
    """The commit that the model stands at, and its files. Raises ModelError if there are no safetensors."""
    commit = api.model_info(model).sha
    tree = [
        entry for entry in api.list_repo_tree(model, recursive=True, revision=commit) if isinstance(entry, RepoFile)
    ]
    wanted = filter_repo_objects(tree, ignore_patterns=IGNORED, key=lambda entry: entry.path)
    files = [File(e.path, e.size, e.lfs.sha256 if e.lfs else e.blob_id, bool(e.lfs)) for e in wanted]
    if not any(file.name.endswith(".safetensors") for file in files):
        raise ModelError(f"{model} has no .safetensors file", "write a model such as google/gemma-4-31B-it")
    return str(commit), files


def fetch(model: str, commit: str, name: str, span: tuple[int, int]) -> bytes:
    """Some bytes of a file on the hub. huggingface_hub tries five times more while the hub is busy or out of reach."""
    start, end = span
    if start == end:
        return b""
    with from_hub(model):
        headers = {**build_hf_headers(), "Range": f"bytes={start}-{end - 1}"}
        response = http_backoff("GET", hf_hub_url(model, name, revision=commit), headers=headers, timeout=TIMEOUT_S)
        hf_raise_for_status(response)
    if len(response.content) != end - start:
        raise ModelError(f"{name}: the hub gave {len(response.content)} bytes, not {end - start}", "try again")
    return response.content


@contextmanager
def from_hub(model: str) -> Iterator[None]:
    """What goes wrong with the hub in the block, told by its reason; also what goes wrong with the disk."""
    try:
        yield
    except FAILURES as error:
        if isinstance(error, FinetuneError):
            raise
        if isinstance(error, OSError) and not isinstance(error, HTTPError) and error.filename:
            raise DeliveryError(f"{error.filename}: {error.strerror}", "write another --to") from error
        status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
        hint = NOT_GIVEN if status in (401, 403, 404) else "run the same command again: it goes on from here"
        raise ModelError(f"{model} was not read from the hub: {reason(error)}", hint) from error
