"""weights.py: files are read once, front to back, by one process a node; the model is the one transformers loads."""

import json
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMultimodalLM

from finetune import storage, weights
from finetune.embedded.tiny import make_tiny
from finetune.errors import ModelError, StorageError
from finetune.plan import Plan
from finetune.settings import Settings
from finetune.shards import INDEX
from finetune.storage import LocalFolder, open_folder
from tests import family, fuse_mount
from tests.loading import base_of
from tests.test_fsdp2 import MACHINE, start, two_ranks
from tests.test_train import plan

pytest_plugins = ("tests.places",)


def same(one: Any, other: Any) -> bool:
    """Whether two models have the same parameters and buffers, to the bit."""
    found = [dict((*model.named_parameters(), *model.named_buffers())) for model in (one, other)]
    if weights.layout(one) != weights.layout(other):
        return False
    return all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("member", family.MEMBERS)
def test_every_size_is_loaded_as_transformers_loads_it(tmp_path: Path, member: str, bf16: bool) -> None:
    run = plan(family.make_member(member, tmp_path / "model"), tmp_path / "out")
    run = replace(run, launch=replace(run.launch, bf16=bf16))
    dtype = torch.bfloat16 if bf16 else torch.float32
    ours = base_of(run)
    theirs = AutoModelForMultimodalLM.from_pretrained(tmp_path / "model", dtype=dtype)
    assert same(ours, theirs)
    assert not ours.training and ours.name_or_path == str(tmp_path / "model")
    assert ours.generation_config.to_diff_dict() == theirs.generation_config.to_diff_dict()


def test_a_model_is_loaded_from_wherever_it_is(place: str, tiny_model: Path, tmp_path: Path) -> None:
    """Also from a bucket, with no copy of the weights on the disk."""
    folder = open_folder(place)
    for path in tiny_model.iterdir():
        folder.put(path.name, path)
    run = plan(tiny_model, tmp_path / "out")
    remote = replace(run, settings=replace(run.settings, model_id=place))
    from finetune.model import load_base
    from finetune.sources import gather

    sources = gather(remote, tmp_path / "scratch")
    assert same(load_base(remote, torch.device("cpu"), sources), base_of(run))
    assert list((tmp_path / "scratch").rglob("*.safetensors")) == []


@pytest.mark.slow
def test_two_ranks_read_a_mount_once_from_front_to_back(tmp_path: Path) -> None:
    source = tmp_path / "source"
    make_tiny(source / "one", hidden_size=512, intermediate_size=8192)
    shards = _shard(source / "one", source / "model", 4)
    size = sum(path.stat().st_size for path in shards)
    assert size > 60e6
    settings = Settings(
        model_id=str(tmp_path / "mount" / "model"), dataset="embedded", train_size=8, eval_size=0, max_steps=1,
        output_dir=str(tmp_path / "out"), save_strategy="no", per_device_train_batch_size=1,
    )  # fmt: skip
    with fuse_mount.mounted(source, tmp_path / "mount") as log:
        done = start(Plan("run", settings, {}, "two", "a test", two_ranks(tmp_path), MACHINE), tmp_path)
        assert done.returncode == 0, done.stderr[-4000:]
        found = [entry for entry in fuse_mount.reads(log) if entry["path"].endswith(".safetensors")]
    ends = {f"/model/{path.name}": path.stat().st_size for path in shards}
    spans = [(e["path"], e["offset"], min(e["offset"] + e["size"], ends[e["path"]])) for e in found]
    read = sum(end - begin for _, begin, end in spans)
    by_file = {name: [span for span in spans if span[0] == name] for name in ends}
    following = sum(b[2] - b[1] for of in by_file.values() for a, b in pairwise(of) if b[1] == a[2])
    print(f"{read / size:.3f} x the weights were read, {following / read:.1%} of it in sequence")
    assert read <= 1.05 * size
    assert following >= 0.95 * read


def _shard(one: Path, to: Path, count: int) -> list[Path]:
    """The same model with its weights in `count` files."""
    shutil.copytree(one, to, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = load_file(one / "model.safetensors")
    index = {}
    for number in range(count):
        name = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        part = dict(list(tensors.items())[number::count])
        save_file(part, to / name, {"format": "pt"})
        index |= dict.fromkeys(part, name)
    (to / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))
    shutil.rmtree(one)
    return sorted(to.glob("*.safetensors"))


def test_a_file_that_is_cut_while_it_is_read_is_told(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = LocalFolder.stream
    monkeypatch.setattr(LocalFolder, "stream", lambda self, name: iter([next(stream(self, name))[:-100]]))
    with pytest.raises(ModelError, match=r"model.safetensors became shorter while it was read"):
        base_of(plan(tiny_model, tmp_path / "out"))


def test_a_mount_that_goes_away_is_told(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def read(self, size: int) -> bytes:
            raise OSError(107, "Transport endpoint is not connected")

    def stream(self: LocalFolder, name: str) -> Any:
        with storage.told(f"{self.url}/{name}"):
            yield Gone().read(1)

    monkeypatch.setattr(LocalFolder, "stream", stream)
    with pytest.raises(StorageError, match=r"model.safetensors: Transport endpoint is not connected"):
        base_of(plan(tiny_model, tmp_path / "out"))


def test_a_tensor_is_kept_once() -> None:
    """62 GB on the host are the weights, not twice that."""
    arriving = weights.Arriving()
    arriving.future.set_result(torch.ones(3))
    assert torch.equal(arriving[...], torch.ones(3))
    assert not arriving.future.done()
