"""A model's weights from files to a device: each file is read once, from its first byte to its last, a few at a time.

Not by mapping it into memory: over a mounted bucket every page that is missing becomes a request of its own, in an
order that is the model's and not the file's, and once more for each process. One process a node reads; the others
get the tensors from it (`share`). Nothing is written to a disk, which on Cloud Run is memory.
"""

import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy
import torch
from torch import distributed
from tqdm import tqdm

from finetune.errors import ModelError
from finetune.shards import Shard, read_shards
from finetune.storage import Folder

FILES_AT_ONCE = 4
DTYPES = {
    **{"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16},
    **{"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8},
    **{"BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2},
}
"""safetensors' names of types."""


class Arriving:
    """A tensor that is being read. transformers takes it by `[...]`, once; it waits, and keeps no copy."""

    def __init__(self) -> None:
        self.future: Future[torch.Tensor] = Future()

    def __getitem__(self, key: Any) -> torch.Tensor:
        future, self.future = self.future, Future()
        return future.result()[key]


@dataclass
class Reading:
    """Weights on their way. `failures`: what went wrong, which is also raised where a tensor is taken."""

    tensors: Mapping[str, Arriving]
    failures: list[BaseException] = field(default_factory=list)


def read(folder: Folder, shown: bool) -> Reading:
    """Begin to read a model's weights: its tensors by name, each of which can be taken once.

    Raises ModelError for files that are not whole.
    """
    shards = read_shards(folder, folder.files(deep=False))
    reading = Reading({name: Arriving() for shard in shards for name in shard.tensors})
    seldom = 0.1 if sys.stderr.isatty() else 30.0  # seconds; a log collector keeps every redrawing
    size = sum(shard.size for shard in shards)
    bar = tqdm(total=size, desc="weights", unit="B", unit_scale=True, mininterval=seldom, disable=not shown, delay=2)
    pool = ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="weights")
    for shard in shards:
        futures = {name: reading.tensors[name].future for name in shard.tensors}
        file = pool.submit(_fill, shard, folder.stream(shard.name), futures, bar)
        file.add_done_callback(partial(_hand_over, futures, reading.failures))
    pool.shutdown(wait=False)
    return reading


def _hand_over(futures: Mapping[str, Future[torch.Tensor]], failures: list[BaseException], file: Future[None]) -> None:
    """Once a file is read: give what went wrong to whoever waits for a tensor of it."""
    error = file.exception()
    if error is not None:
        failures.append(error)
        for future in futures.values():
            if not future.done():
                future.set_exception(error)


def _fill(shard: Shard, chunks: Iterator[bytes], futures: Mapping[str, Future[torch.Tensor]], bar: Any) -> None:
    """Cut a file's bytes into its tensors."""
    rest = memoryview(b"")
    chunks = iter(chunks)

    def take(into: Any) -> None:
        nonlocal rest
        filled = 0
        while filled < len(into):
            if not rest:
                chunk = next(chunks, b"")
                if not chunk:
                    raise ModelError(f"{shard.name} became shorter while it was read", "download the model again")
                bar.update(len(chunk))
                rest = memoryview(chunk)
            count = min(len(rest), len(into) - filled)
            into[filled : filled + count] = numpy.frombuffer(rest[:count], numpy.uint8)
            filled, rest = filled + count, rest[count:]

    take(numpy.empty(len(shard.header), numpy.uint8))
    for name, place in shard.tensors.items():
        raw = torch.empty(place.end - place.start, dtype=torch.uint8)
        take(raw.numpy())
        futures[name].set_result(raw.view(DTYPES[place.dtype]).view(place.shape))
    for _ in chunks:  # the end: where a bucket's checksum is compared
        pass


def share(model: Any, group: Any, source: int) -> None:
    """Give every process of `group` the parameters and buffers of process `source`, in place."""
    for tensor in (*model.parameters(), *model.buffers()):
        distributed.broadcast(tensor.data, source, group=group)


def layout(model: Any) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and type of all that `share` gives."""
    named = (*model.named_parameters(), *model.named_buffers())
    return [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in named]
