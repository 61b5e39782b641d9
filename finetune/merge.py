"""Base + LoRA adapter -> one standalone model, file by file: the base's own shards, with the adapted weights changed.

No model is built in memory. Each shard is read once, from its first byte to its last, and written as it is read:
same name, same header, same tensors in the same dtypes. Held at a time are the adapter and one adapted weight: for
the 31B and r 16 about 0.8 GB, where its weights are 62.5 GB. Nothing is renamed: an output folder may be a mounted
bucket.
"""

import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import torch
from httpx2 import HTTPError
from huggingface_hub import snapshot_download, try_to_load_from_cache
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForMultimodalLM
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from finetune.errors import ModelError, UsageError
from finetune.lora import Lora, read_adapter
from finetune.reader import source as origin_of
from finetune.reader import unreadable
from finetune.shards import INDEX, SINGLE, Shard, Tensor, read_shards
from finetune.sources import fetch
from finetune.storage import LocalFolder, is_bucket, open_folder

CONFIG = "config.json"
"""Written last: without it, nothing takes a folder for a model."""
OTHER_WEIGHTS = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx", "*.ot")
NOT_OF_A_MODEL = (*OTHER_WEIGHTS, "*.safetensors", INDEX, CONFIG, "README.md", ".*")
TEMPLATES = "additional_chat_templates"
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
CHUNK = 2**24  # bytes
BLOCK = 2**22
"""Numbers of a weight that are computed at a time: 16 MB in fp32."""


@dataclass(frozen=True)
class Merged:
    """What a merge did. `is_base`: the adapter is all zero, and so the result is the base."""

    folder: Path
    weights: int
    is_base: bool


def base_folder(model_id: str, scratch: Path) -> Path:
    """The folder of a base model. One in a bucket is copied to `scratch`. One of the hub is completed in its cache, at
    the revision that is there already: the one that the adapter was trained on. Raises ModelError if there is no way
    to it, StorageError for a bucket."""
    if is_bucket(model_id):
        folder = open_folder(model_id)
        fetch(folder, list(folder.files()), scratch / "base")
        return scratch / "base"
    origin = origin_of(model_id)
    if Path(origin).is_dir():
        return Path(origin)
    cached = try_to_load_from_cache(origin, CONFIG)
    found = Path(cached).parent if isinstance(cached, str) else None
    try:
        revision = found.name if found else None
        return Path(snapshot_download(origin, revision=revision, ignore_patterns=list(OTHER_WEIGHTS)))
    except (HTTPError, OSError, ValueError) as error:
        if found is None:
            raise unreadable(model_id, error) from error
        return found


def merge(base: Path, adapter: Path, target: Path, *, trust_remote: bool = False) -> Merged:
    """Write the model that `base` is with `adapter` on it to the folder `target`, replacing what is there.

    All is checked before the first byte is written. Raises ModelError for a base or an adapter that cannot be
    merged, UsageError if the disk is too small.
    """
    if target.resolve() == base.resolve():
        raise UsageError(f"--output-dir: {target} is the base model itself", "write another --output-dir")
    _refuse_quantized(base)
    folder = LocalFolder(base)
    shards = read_shards(folder, folder.files())
    loras = read_adapter(adapter)
    adapted = _match(loras, shards, _names_in_model(base, shards, trust_remote), adapter)
    others = _other_files(base, sharded=any(shard.name != SINGLE for shard in shards))
    size = sum(shard.size for shard in shards)
    _check_space(size + sum(path.stat().st_size for path in others), target)
    _clear(target)
    seldom = 0.1 if sys.stderr.isatty() else 30.0  # seconds; a log collector keeps every redrawing
    with tqdm(total=size, desc="merge", unit="B", unit_scale=True, mininterval=seldom) as bar:
        for shard in shards:
            _write(shard, base / shard.name, target / shard.name, adapted, bar)
    for path in others:
        (target / path.relative_to(base)).parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target / path.relative_to(base))
    shutil.copyfile(base / CONFIG, target / CONFIG)
    return Merged(target, len(adapted), all(lora.is_zero for lora in loras.values()))


def is_finished(folder: Path) -> bool:
    """Whether a merge into the folder came to its end."""
    return (folder / CONFIG).is_file()


def _refuse_quantized(base: Path) -> None:
    try:
        config = json.loads((base / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{base / CONFIG} cannot be read: {error}", "download the model again") from error
    if config.get("quantization_config"):
        raise ModelError(
            f"{base} is quantized, and a merge into quantized weights loses the adapter in their rounding",
            "name the bf16 model that it was made from: --model-id google/gemma-4-31B-it, for example",
        )


def _names_in_model(base: Path, shards: Iterable[Shard], trust_remote: bool) -> dict[str, str]:
    """Name of a weight in the model -> its name in the files. They differ where transformers renames on loading.

    What it fuses from several tensors on loading is left out: no LoRA of a module goes into such a weight.
    """
    try:
        config = AutoConfig.from_pretrained(base, trust_remote_code=trust_remote)
        with torch.device("meta"):
            model = AutoModelForMultimodalLM.from_config(config, trust_remote_code=trust_remote)
    except (OSError, ValueError) as error:
        raise unreadable(str(base), error) from error
    conversions = get_model_conversion_mapping(model)
    renamings = [entry for entry in conversions if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in conversions if isinstance(entry, WeightConverter)]
    there = model.state_dict()
    found = {}
    for key in (key for shard in shards for key in shard.tensors):
        name, fused = rename_source_key(key, renamings, converters, model.base_model_prefix, there)
        if name not in there and key in there:
            name, fused = key, None
        if fused is None:
            found[name] = key
    return found


def _match(
    loras: Mapping[str, Lora], shards: Iterable[Shard], names: Mapping[str, str], adapter: Path
) -> dict[str, Lora]:
    """Weight's name in the files -> its LoRA. Raises ModelError unless every one has a weight of its shape."""
    tensors = {name: tensor for shard in shards for name, tensor in shard.tensors.items()}
    hint = "name the model that the adapter was trained on: --model-id"
    adapted = {}
    for module, lora in loras.items():
        key = names.get(f"{module}.weight")
        if key is None:
            raise ModelError(f"{adapter}: the base has no weight for the adapter's {module}", hint)
        tensor, expected = tensors[key], (lora.b.shape[0], lora.a.shape[1])
        if tensor.shape != expected:
            shapes = f"{_shape(tensor.shape)} in the base; the adapter was trained on {_shape(expected)}"
            raise ModelError(f"{adapter}: {key} is {shapes}", hint)
        if tensor.dtype not in DTYPES:
            raise ModelError(f"{key} is stored as {tensor.dtype}; expected one of {', '.join(DTYPES)}", hint)
        adapted[key] = lora
    return adapted


def _shape(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape))


def _other_files(base: Path, sharded: bool) -> list[Path]:
    """What belongs to the model besides its weights and config.json: tokenizer, processor, templates, index."""
    files = [path for path in sorted(base.iterdir()) if not any(path.match(pattern) for pattern in NOT_OF_A_MODEL)]
    files += sorted((base / TEMPLATES).glob("*.jinja"))
    return [path for path in files if path.is_file()] + ([base / INDEX] if sharded else [])


def _check_space(needed: int, target: Path) -> None:
    nearest = next(place for place in (target.absolute(), *target.absolute().parents) if place.exists())
    replaced = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    free = shutil.disk_usage(nearest).free + replaced
    if free < needed:
        raise UsageError(
            f"--output-dir: the merged model takes {needed / 1e9:.1f} GB, and {nearest} has {free / 1e9:.1f} GB free",
            "free some space, or write another --output-dir",
        )


def _clear(target: Path) -> None:
    """Make room. A finished model is unfinished first: cut short here, it must not look whole."""
    if is_finished(target):
        (target / CONFIG).unlink()
        shutil.rmtree(target)
    target.mkdir(parents=True, exist_ok=True)
    for stale in target.glob("*.safetensors*"):
        stale.unlink()


def _write(shard: Shard, source: Path, target: Path, adapted: Mapping[str, Lora], bar: Any) -> None:
    with source.open("rb") as reader, target.open("wb") as writer:
        writer.write(reader.read(len(shard.header)))
        for name, tensor in shard.tensors.items():
            if name in adapted:
                writer.write(_changed(reader, name, tensor, adapted[name]))
                bar.update(tensor.end - tensor.start)
            else:
                _copy(reader, writer, tensor.end - tensor.start, bar)
        bar.update(len(shard.header))
    if target.stat().st_size != shard.size:
        raise OSError(f"{target} has {target.stat().st_size:,} bytes after writing {shard.size:,}")


def _changed(reader: BufferedReader, name: str, tensor: Tensor, lora: Lora) -> bytearray:
    """The bytes of W + scale * B @ A: computed in fp32, rounded once, to the weight's own dtype."""
    raw = bytearray(tensor.end - tensor.start)
    if reader.readinto(raw) != len(raw):
        raise OSError(_SHORTER)
    weight = torch.frombuffer(raw, dtype=DTYPES[tensor.dtype]).view(tensor.shape)
    step = max(1, BLOCK // tensor.shape[1])  # rows
    for start in range(0, tensor.shape[0], step):
        part, b = weight[start : start + step], lora.b[start : start + step]
        whole = part.to(torch.promote_types(weight.dtype, torch.float32))
        whole.addmm_(b.to(whole.dtype), lora.a.to(whole.dtype), alpha=lora.scale)
        part.copy_(whole)
        if not part.isfinite().all():
            raise ModelError(f"{name} is not finite with the adapter on it", "train again with a lower --learning-rate")
    return raw


_SHORTER = "a weight file of the base became shorter while it was read"


def _copy(reader: BinaryIO, writer: BinaryIO, size: int, bar: Any) -> None:
    while size:
        chunk = reader.read(min(size, CHUNK))
        if not chunk:
            raise OSError(_SHORTER)
        writer.write(chunk)
        bar.update(len(chunk))
        size -= len(chunk)
