"""Every size of Gemma 4, in small: both tasks train on it, and what is adapted, saved and merged is as planned."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from finetune import data, evaluate, train
from finetune.checkpoint import ADAPTER_FILE, save_adapter
from finetune.merge import merge
from finetune.merge_check import compare
from finetune.model import add_lora, describe, load_adapter
from finetune.plan import Plan
from finetune.reader import load_reader
from finetune.shapes import TEXT_LAYER_CLASS, adapter_size
from finetune.tasks import TASKS
from tests.family import MEMBERS, make_member
from tests.loading import base_of, trainer_of
from tests.test_fsdp2 import MACHINE, results, start, two_ranks
from tests.test_fsdp2 import adapter as saved_adapter
from tests.test_train import assert_same_gradients, photos, plan, trained

__all__ = ["photos"]
CPU = torch.device("cpu")
STEP = 0.001
"""Along the gradient: seen in a loss in fp32, and short enough for it to be straight."""
BOTH_TASKS = pytest.mark.parametrize("task", TASKS)


@pytest.fixture(scope="module", params=MEMBERS)
def member(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random model."""
    return make_member(request.param, tmp_path_factory.mktemp("family") / request.param)


def job(member: Path, folder: Path, photos: Path, task: str, **changes: Any) -> Plan:
    """Two steps of four rows, on every linear layer."""
    dataset = str(photos) if task == "pets" else "embedded"
    common: dict[str, Any] = {"task": task, "dataset": dataset, "lora_targets": "all-linear", "train_size": 8}
    common |= {"per_device_train_batch_size": 4, "learning_rate": 1e-6, "lora_r": 4, "lora_alpha": 4}
    return plan(member, folder, **common | changes)


@BOTH_TASKS
def test_activation_checkpointing_changes_no_gradient(member: Path, tmp_path: Path, photos: Path, task: str) -> None:
    """Layers that share keys and values (e2b) hand them from layer to layer, past the checkpoints."""
    plain, _ = trained(job(member, tmp_path, photos, task))
    saving, _ = trained(job(member, tmp_path, photos, task, activation_checkpointing=True))
    assert_same_gradients(saving, plain, tolerance=1e-5)
    untouched = [name for name, value in plain[0].items() if "lora_B" in name and not value.any()]
    assert not untouched, "every adapted module gets a gradient"


@pytest.mark.parametrize("member", [name for name in MEMBERS if name != "26b"], indirect=True)
def test_gradients_are_those_of_the_loss(member: Path, tmp_path: Path, photos: Path) -> None:
    """Checked against differences of the loss itself, part by part: also through keys and values that layers share.

    Not with experts: where a token is sent to another one, the loss jumps.
    """
    run = job(member, tmp_path, photos, "pets", train_size=2)
    inputs = load_reader(run.settings, images=True)
    prepared = data.prepare(TASKS["pets"], run.settings, inputs, train=True)
    net = add_lora(base_of(run), run.settings).train()
    net.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
    torch.manual_seed(3)
    adapted = {name: value for name, value in net.named_parameters() if value.requires_grad}
    for name, value in adapted.items():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.02)
    rows = [{**row, "place": place} for place, row in enumerate(prepared.train.to_list())]
    batch = train.Collator(inputs, prepared.pictures)(rows)
    batch.pop("row")

    def loss() -> torch.Tensor:
        found: torch.Tensor = net(**batch, use_cache=False).loss
        return found

    torch.autograd.backward(loss())
    for part in ("k_proj", "q_proj", "o_proj", "mlp", "vision_tower" if member.name != "12b" else "embed_vision"):
        slopes = {name: value.grad for name, value in adapted.items() if part in name and value.grad is not None}
        size = sum(float(slope.square().sum()) for slope in slopes.values()) ** 0.5
        losses = []
        with torch.no_grad():
            for step in (STEP, -2 * STEP, STEP):  # ahead along the gradient, behind, and back
                for name, slope in slopes.items():
                    adapted[name] += step * slope / size
                losses.append(float(loss()))
        assert (losses[0] - losses[1]) / (2 * STEP) == pytest.approx(size, rel=0.01), part


@pytest.mark.parametrize("targets", ["text", "all-linear"])
def test_the_plan_counts_what_is_adapted(member: Path, tmp_path: Path, photos: Path, targets: str) -> None:
    run = job(member, tmp_path, photos, "pets", lora_targets=targets)
    found = describe(add_lora(base_of(run), run.settings))
    planned = adapter_size(json.loads((member / "config.json").read_text()), targets, 4)
    assert {part: count for part, count in found.adapted_by_part.items() if count} == planned.modules
    assert found.trainable == planned.total_parameters
    assert ("vision" in planned.modules) is (targets == "all-linear")


@BOTH_TASKS
def test_nf4_leaves_the_rest_in_bf16_and_the_adapter_in_fp32(
    member: Path, tmp_path: Path, photos: Path, task: str
) -> None:
    """As the trainer will use it: TRL and PEFT have ways to upcast embeddings, norms and experts, or to cut LoRA."""
    run = job(member, tmp_path, photos, task, quantization="nf4")
    run = replace(run, launch=replace(run.launch, bf16=True))
    inputs = load_reader(run.settings, TASKS[task].IMAGES, bf16=True)
    prepared = data.prepare(TASKS[task], run.settings, inputs, train=True)
    net = add_lora(base_of(run), run.settings)
    trainer, _ = trainer_of(run, net, inputs, prepared)
    kinds = {str(value.dtype) for name, value in trainer.model.named_parameters() if "lora_" not in name}
    adapters = {str(value.dtype) for name, value in trainer.model.named_parameters() if "lora_" in name}
    assert (kinds, adapters) == ({"torch.uint8", "torch.bfloat16"}, {"torch.float32"})
    tally = describe(trainer.model).dtypes
    assert tally["float32"]["bytes"] == 4 * describe(trainer.model).trainable
    assert set(tally) == {"uint8", "bfloat16", "float32"}
    plain = [name for name, value in trainer.model.named_parameters() if str(value.dtype) == "torch.bfloat16"]
    if member.name == "26b":
        assert any("experts" in name for name in plain), "fused experts are no Linear: NF4 does not reach them"
    save_adapter(trainer.model, tmp_path / "adapter")
    assert {str(value.dtype) for value in load_file(tmp_path / "adapter" / ADAPTER_FILE).values()} == {"torch.float32"}
    loaded = load_adapter(base_of(run), str(tmp_path / "adapter"))
    assert {str(value.dtype) for name, value in loaded.named_parameters() if "lora_" in name} == {"torch.float32"}


@BOTH_TASKS
def test_answers_survive_saving_and_the_merge(member: Path, tmp_path: Path, photos: Path, task: str) -> None:
    run = job(member, tmp_path, photos, task, eval_size=4)
    inputs = load_reader(run.settings, TASKS[task].IMAGES)
    prepared = data.prepare(TASKS[task], run.settings, inputs, train=False)
    net = add_lora(base_of(run), run.settings)
    torch.manual_seed(1)
    for name, value in net.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(value, std=0.3)
    save_adapter(net, tmp_path / "adapter", inputs)

    def answers(model: Any) -> list[str]:
        return evaluate.generate(model, inputs, prepared.prompts, batch_size=3, max_new_tokens=6, label="x")

    expected = answers(net)
    assert answers(load_adapter(base_of(run), str(tmp_path / "adapter"))) == expected
    merged = merge(member, tmp_path / "adapter", tmp_path / "merged")
    assert merged.weights == describe(net).adapted_modules
    assert compare(member, tmp_path / "adapter", tmp_path / "merged").is_right
    whole = replace(run, settings=replace(run.settings, model_id=str(merged.folder)))
    assert answers(base_of(whole)) == expected


@pytest.mark.slow
def test_two_ranks_with_images_equal_one_process(member: Path, tmp_path: Path, photos: Path) -> None:
    """FSDP2 for real, on the layer class of this size; 11 rows do not divide by the ranks: fillers have images too."""
    kind = json.loads((member / "config.json").read_text())["model_type"]
    changes: dict[str, Any] = {"train_size": 11, "eval_size": 3, "max_new_tokens": 4, "max_grad_norm": 1.0}
    one = job(member, tmp_path / "one", photos, "pets", **changes, per_device_train_batch_size=8)
    shared = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "activation_checkpointing": True}
    two = job(member, tmp_path / "two", photos, "pets", **changes, **shared)
    launch = replace(two_ranks(tmp_path), fsdp_layer_class=TEXT_LAYER_CLASS[kind])
    done = start(replace(two, launch=launch, machine=MACHINE), tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    gradients, progress = trained(one)
    assert len(gradients) == 2
    history = results(tmp_path / "two", "run.json")["training"]["history"]
    for alone, together in zip(progress.history, history, strict=True):
        assert together["loss"] == pytest.approx(alone["loss"], rel=1e-4)
        assert together["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-3)
    assert all(value.isfinite().all() and value.any() for value in saved_adapter(tmp_path / "two").values())
    assert len((tmp_path / "two" / "predictions-after.jsonl").read_text().splitlines()) == 3
