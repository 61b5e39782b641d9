"""merge.py, lora.py and merge_check.py: base + adapter in the base's own files, and nothing else changed."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMultimodalLM, AutoProcessor

from finetune import merge as merging
from finetune import merge_check
from finetune.checkpoint import save_adapter
from finetune.embedded.tiny import make_tiny
from finetune.errors import ModelError, UsageError
from finetune.lora import read_adapter
from finetune.merge import base_folder, is_finished, merge
from finetune.model import add_lora
from finetune.shards import read_shard
from finetune.storage import LocalFolder
from tests.loading import base_of
from tests.test_train import plan

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def stir(net: Any, std: float = 0.2) -> None:
    """Give an adapter an effect, as training would."""
    torch.manual_seed(1)
    for name, parameter in net.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=std)


def make_adapter(base: Path, folder: Path, **settings: Any) -> Path:
    """An adapter as a run leaves it."""
    asked = plan(base, folder, lora_r=4, lora_alpha=8, **settings)
    net = add_lora(base_of(asked), asked.settings)
    stir(net)
    save_adapter(net, folder / "adapter")
    return folder / "adapter"


def logits(model: Any, base: Path) -> list[torch.Tensor]:
    """What a model answers to a chat prompt and to a picture."""
    return merge_check._logits(model.eval(), merge_check.probes(AutoProcessor.from_pretrained(base)))


def load(folder: Path) -> Any:
    return AutoModelForMultimodalLM.from_pretrained(folder, dtype="auto")


def with_peft(base: Path, adapter: Path) -> Any:
    """PEFT's own base + adapter: what a merge has to equal."""
    return PeftModel.from_pretrained(load(base), str(adapter)).get_base_model()


@pytest.fixture(scope="module")
def sharded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model in several files, with more beside it than a model needs."""
    folder = tmp_path_factory.mktemp("sharded") / "model"
    shutil.copytree(tiny_model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    load(tiny_model).save_pretrained(folder, max_shard_size="100KB")
    for name in ("README.md", ".gitattributes", "pytorch_model.bin", "model.gguf", "tokenizer.model", "LICENSE"):
        (folder / name).write_text(name)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tools.jinja").write_text("{{ messages }}")
    (folder / "original").mkdir()
    (folder / "original" / "weights.txt").write_text("no part of the model")
    return folder


@pytest.fixture(scope="module")
def adapter(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter on every linear layer, vision tower included. Not to be changed."""
    return make_adapter(tiny_model, tmp_path_factory.mktemp("trained"), lora_targets="all-linear")


@pytest.fixture
def own(adapter: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(adapter, tmp_path / "adapter"))


@pytest.mark.parametrize("targets", ["text", "all-linear"])
def test_the_merged_model_answers_as_base_and_adapter_do(tiny_model: Path, tmp_path: Path, targets: str) -> None:
    adapter = make_adapter(tiny_model, tmp_path, lora_targets=targets)
    done = merge(tiny_model, adapter, tmp_path / "merged")
    assert done.weights == len(load_file(adapter / WEIGHTS)) / 2 and not done.is_base
    found, plain = logits(load(tmp_path / "merged"), tiny_model), logits(load(tiny_model), tiny_model)
    tuned = logits(with_peft(tiny_model, adapter), tiny_model)
    for prompt in range(2):  # the text alone, and with a picture
        assert merge_check.distance(found[prompt : prompt + 1], tuned[prompt : prompt + 1]) < 1e-4
        assert merge_check.distance(found[prompt : prompt + 1], plain[prompt : prompt + 1]) > 0.1


@pytest.mark.parametrize("kind", ["tiny_model", "sharded"])
def test_all_but_the_adapted_weights_is_the_bases(
    kind: str, adapter: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    base, merged = request.getfixturevalue(kind), tmp_path / "merged"
    merge(base, adapter, merged)
    shards = sorted(base.glob("*.safetensors"))
    assert len(shards) == (1 if kind == "tiny_model" else 3)
    changed = 0
    for path in shards:
        ours, theirs = (read_shard(LocalFolder(of), path.name, path.stat().st_size) for of in (merged, base))
        assert ours.header == theirs.header, "keys, shapes, dtypes, places and metadata"
        now, before = load_file(merged / path.name), load_file(path)
        changed += sum(not torch.equal(now[name], before[name]) for name in before)
    assert changed == len(load_file(adapter / WEIGHTS)) / 2
    names = {str(path.relative_to(base)) for path in base.rglob("*") if path.is_file()}
    left_out = {"README.md", ".gitattributes", "pytorch_model.bin", "model.gguf", "original/weights.txt"}
    assert {str(path.relative_to(merged)) for path in merged.rglob("*") if path.is_file()} == names - left_out
    for name in names - left_out - {path.name for path in shards}:
        assert (merged / name).read_bytes() == (base / name).read_bytes(), name
    assert logits(load(merged), base)[1].isfinite().all()


def test_a_bf16_base_stays_bf16(tiny_model: Path, adapter: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_model, base)
    AutoModelForMultimodalLM.from_pretrained(tiny_model, dtype=torch.bfloat16).save_pretrained(base)
    merge(base, adapter, tmp_path / "merged")
    assert {value.dtype for value in load_file(tmp_path / "merged" / "model.safetensors").values()} == {torch.bfloat16}
    found = merge_check.compare(base, adapter, tmp_path / "merged")
    assert found.is_right and found.pictures and found.to_tuned < 0.1 < 0.5 < found.to_base


def test_an_adapter_trained_on_nf4_goes_into_the_whole_weights(tiny_model: Path, tmp_path: Path) -> None:
    adapter = make_adapter(tiny_model, tmp_path, quantization="nf4", lora_targets="all-linear")
    merge(tiny_model, adapter, tmp_path / "merged")
    assert "quantization_config" not in json.loads((tmp_path / "merged" / "config.json").read_text())
    found, tuned = logits(load(tmp_path / "merged"), tiny_model), logits(with_peft(tiny_model, adapter), tiny_model)
    assert merge_check.distance(found, tuned) < 1e-4


@pytest.mark.parametrize(
    "config",
    [
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\..*": 3}, "alpha_pattern": {"layers.0.self_attn.k_proj": 30}},
    ],
)
def test_every_way_to_scale_plain_lora(tiny_model: Path, tmp_path: Path, config: dict[str, Any]) -> None:
    targets = r".*language_model\.layers.*_proj"
    net = get_peft_model(load(tiny_model), LoraConfig(r=4, lora_alpha=6, target_modules=targets, **config))
    stir(net)
    net.save_pretrained(tmp_path / "adapter")
    merge(tiny_model, tmp_path / "adapter", tmp_path / "merged")
    found, tuned = logits(load(tmp_path / "merged"), tiny_model), logits(net.get_base_model(), tiny_model)
    assert merge_check.distance(found, tuned) < 1e-4


def test_an_adapter_without_effect_is_noticed(tiny_model: Path, own: Path, tmp_path: Path) -> None:
    tensors = load_file(own / WEIGHTS)
    save_file({name: value * ("lora_A" in name) for name, value in tensors.items()}, own / WEIGHTS)
    assert merge(tiny_model, own, tmp_path / "merged").is_base
    name = "model.safetensors"
    assert (tmp_path / "merged" / name).read_bytes() == (tiny_model / name).read_bytes()


def set_in(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def rename(adapter: Path, old: str, new: str) -> None:
    save_file(
        {name.replace(old, new): value for name, value in load_file(adapter / WEIGHTS).items()}, adapter / WEIGHTS
    )


SPOILED: list[tuple[str, Callable[[Path, Path], Any], str]] = [
    ("DoRA", lambda _, adapter: set_in(adapter / CONFIG, use_dora=True), "has use_dora True"),
    ("embeddings", lambda _, adapter: set_in(adapter / CONFIG, modules_to_save=["lm_head"]), "modules_to_save"),
    ("biases", lambda _, adapter: set_in(adapter / CONFIG, bias="all"), "has bias 'all'"),
    ("experts", lambda _, adapter: set_in(adapter / CONFIG, target_parameters=["x"]), "target_parameters"),
    ("PiSSA", lambda _, adapter: set_in(adapter / CONFIG, init_lora_weights="pissa"), "'pissa'"),
    ("not LoRA", lambda _, adapter: set_in(adapter / CONFIG, peft_type="LOHA"), "'LOHA'"),
    ("another rank", lambda _, adapter: set_in(adapter / CONFIG, r=5), r"expected A \[5, in\] and B \[out, 5\]"),
    ("no configuration", lambda _, adapter: (adapter / CONFIG).write_text("[]"), "not the configuration of a LoRA"),
    ("no file", lambda _, adapter: (adapter / WEIGHTS).unlink(), "cannot be read as an adapter"),
    ("half a file", lambda _, adapter: (adapter / WEIGHTS).write_bytes(b"1234"), "cannot be read as an adapter"),
    (
        "half a pair",
        lambda _, adapter: rename(adapter, "layers.0.self_attn.q_proj.lora_A", "x.lora_A"),
        r"q_proj has B \[",
    ),
    ("no matrix", lambda _, adapter: rename(adapter, "lora_A.weight", "lora_embedding_A"), "no LoRA matrix"),
    ("another layer", lambda _, adapter: rename(adapter, "layers.0.mlp", "layers.9.mlp"), r"no weight for .*layers\.9"),
    ("quantized", lambda base, _: set_in(base / "config.json", quantization_config={"bits": 4}), "is quantized"),
    ("no weights", lambda base, _: (base / "model.safetensors").unlink(), "has no model.safetensors, and no"),
    ("half the weights", lambda base, _: cut(base / "model.safetensors", 5000), "is not whole"),
    ("half a header", lambda base, _: cut(base / "model.safetensors", 100), "is not a safetensors file"),
]


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size] if size < 1000 else path.read_bytes()[:-size])


@pytest.mark.parametrize(("spoil", "message"), [row[1:] for row in SPOILED], ids=[row[0] for row in SPOILED])
def test_what_cannot_be_merged_is_refused_before_anything_is_written(
    tiny_model: Path, own: Path, tmp_path: Path, spoil: Callable[[Path, Path], Any], message: str
) -> None:
    base = Path(shutil.copytree(tiny_model, tmp_path / "base"))
    spoil(base, own)
    with pytest.raises(ModelError, match=message):
        merge(base, own, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_an_adapter_of_another_model_is_refused(own: Path, tmp_path: Path) -> None:
    other = make_tiny(tmp_path / "wider", intermediate_size=96)
    with pytest.raises(ModelError, match=r"mlp.*proj.weight is .* in the base; the adapter was trained on"):
        merge(other, own, tmp_path / "merged")


def test_room_on_the_disk_is_looked_for_first(
    tiny_model: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(UsageError, match=r"the merged model takes 0\.0 GB, and .* has 0\.0 GB free"):
        merge(tiny_model, adapter, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_the_base_is_not_written_over(tiny_model: Path, adapter: Path) -> None:
    with pytest.raises(UsageError, match="is the base model itself"):
        merge(tiny_model, adapter, tiny_model)
    assert is_finished(tiny_model)


@pytest.mark.parametrize("before", [False, True])
def test_an_interrupted_merge_is_no_model_and_can_be_run_again(
    sharded: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    merged, written = tmp_path / "merged", []
    if before:
        merge(sharded, adapter, merged)
    whole = merging._write

    def interrupted(shard: Any, *rest: Any) -> None:
        if len(written) == 2:
            raise OSError("no space left on device")
        whole(shard, *rest)
        written.append(shard)

    with monkeypatch.context() as patched, pytest.raises(OSError, match="no space"):
        patched.setattr(merging, "_write", interrupted)
        merge(sharded, adapter, merged)
    assert len(list(merged.iterdir())) == 2 and not is_finished(merged)
    with pytest.raises((OSError, ValueError)):
        load(merged)
    (merged / "model-99999-of-99999.safetensors").write_text("of an earlier merge, into other files")
    merge(sharded, adapter, merged)
    assert is_finished(merged) and len(list(merged.glob("*.safetensors"))) == len(list(sharded.glob("*.safetensors")))
    assert merge_check.compare(sharded, adapter, merged).is_right


@pytest.mark.parametrize("ram_gib", [None, 5e-4, 1e-9])
def test_the_check_is_the_same_wherever_the_model_lies(
    tiny_model: Path, adapter: Path, tmp_path: Path, ram_gib: float | None
) -> None:
    """In memory; in part in memory; all of it read from the disk, layer by layer."""
    merge(tiny_model, adapter, tmp_path / "merged")
    found = merge_check.compare(tiny_model, adapter, tmp_path / "merged", ram_gib=ram_gib)
    assert found.is_right and found.to_tuned < 1e-4
    placed = merge_check._load(tiny_model, str(tmp_path), ram_gib, False)
    merge_check.put_on(placed, read_adapter(adapter))
    expected = logits(with_peft(tiny_model, adapter), tiny_model)
    assert merge_check.distance(logits(placed, tiny_model), expected) < 1e-5, "the hooks do what PEFT does"


def test_the_check_tells_the_base_and_half_a_merge_from_the_merged_model(
    tiny_model: Path, adapter: Path, own: Path, tmp_path: Path
) -> None:
    assert not merge_check.compare(tiny_model, adapter, tiny_model).is_right
    kept = {name: value for name, value in load_file(own / WEIGHTS).items() if "vision_tower" not in name}
    save_file(kept, own / WEIGHTS)
    merge(tiny_model, own, tmp_path / "without-vision")
    half = merge_check.compare(tiny_model, adapter, tmp_path / "without-vision")
    assert half.to_tuned > 0.05, "a picture shows what text does not"


def test_distances_are_told_in_a_line() -> None:
    found = merge_check.Distances(0.00314, 0.214, pictures=True)
    assert str(found) == (
        "the merged model's logits are 0.31 % from those of base + adapter, 21 % from the base's "
        "(a chat prompt and a picture)"
    )
    assert found.is_right and not merge_check.Distances(0.02, 0.03, pictures=False).is_right


def test_a_hub_model_is_taken_from_the_cache_at_the_revision_that_is_there(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    revision = "a" * 40
    repository = tmp_path / "models--google--gemma-4-tiny"
    snapshot = Path(shutil.copytree(tiny_model, repository / "snapshots" / revision))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert base_folder("google/gemma-4-tiny", tmp_path) == snapshot
    with pytest.raises(ModelError, match="--model-id google/gemma-4-other: cannot be loaded"):
        base_folder("google/gemma-4-other", tmp_path)
