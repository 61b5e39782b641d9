"""The safetensors files of a model: what their headers say, and whether they are whole. No tensor is read here."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from finetune.errors import ModelError
from finetune.storage import Folder

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SUFFIX = ".safetensors"
PREFIX = 8
"""Bytes of the header's length."""
POINTER = b"version https://git-lfs"
AGAIN = "download the model again"
READERS = 8


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies in its file: bytes `start` to `end`, counted from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Shard:
    """A safetensors file. `header` are its first bytes, length included; `tensors` stand in the file's order."""

    name: str
    header: bytes
    tensors: Mapping[str, Tensor]

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return len(self.header) + max((tensor.end for tensor in self.tensors.values()), default=0)


def weight_files(folder: Folder, files: Mapping[str, int]) -> list[str]:
    """The names of a model's shards, as transformers chooses them. Raises ModelError if they are not all there."""
    if INDEX not in files:
        if SINGLE in files:
            return [SINGLE]
        raise ModelError(f"{folder.url}: has no {SINGLE}, and no {INDEX}", AGAIN)
    try:
        names = sorted(set(json.loads(folder.read(INDEX))["weight_map"].values()))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{folder.url}: {INDEX} cannot be read", AGAIN) from error
    missing = [name for name in names if name not in files]
    if missing:
        what = f"{len(missing)} weight file{'s are' if len(missing) > 1 else ' is'} missing"
        raise ModelError(f"{folder.url}: {what}, such as {missing[0]}, which {INDEX} names", AGAIN)
    return [SINGLE] if SINGLE in files else names


def read_shards(folder: Folder, files: Mapping[str, int]) -> list[Shard]:
    """The headers of a model's shards. Raises ModelError for the first that is missing, no such file, or cut short."""
    names = weight_files(folder, files)
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda name: read_shard(folder, name, files[name]), names))


def read_shard(folder: Folder, name: str, size: int) -> Shard:
    """The header of a file of `size` bytes. Raises ModelError if it is no safetensors file, or not a whole one."""
    place = f"{folder.url}/{name}"
    try:
        prefix = folder.read(name, 0, PREFIX)
        if prefix == POINTER[:PREFIX]:
            hint = "git lfs was not there when it was cloned: `git lfs pull` there, or `hf download`"
            raise ModelError(f"{place} is a pointer to the weights, not the weights ({size} bytes)", hint)
        length = int.from_bytes(prefix, "little")
        text = folder.read(name, PREFIX, PREFIX + length) if length <= size else b""
        entries = json.loads(text)
        entries.pop("__metadata__", None)
        tensors = {
            key: Tensor(entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])
            for key, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"])
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{place} is not a safetensors file: {error}", AGAIN) from error
    shard = Shard(name, prefix + text, tensors)
    if size != shard.size or not _adjoin(list(tensors.values())):
        raise ModelError(f"{place} is not whole: {size:,} bytes, expected {shard.size:,}", AGAIN)
    return shard


def _adjoin(tensors: Sequence[Tensor]) -> bool:
    ends = [0, *(tensor.end for tensor in tensors)]
    return all(tensor.start == end for tensor, end in zip(tensors, ends, strict=False))
