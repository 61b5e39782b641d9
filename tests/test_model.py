"""The adapter goes where the plan says: the text projections, never the vision tower; dtypes are tallied."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from finetune import reader
from finetune.checkpoint import ADAPTER_FILE, adapter_state, save_adapter
from finetune.errors import ModelError, TrainingError
from finetune.model import add_lora, describe, load_adapter
from finetune.reader import load_reader
from tests.loading import base_of
from tests.test_train import plan

CPU = torch.device("cpu")


def test_text_targets_are_the_seven_projections_of_every_text_layer(tiny_model: Path, tmp_path: Path) -> None:
    run = plan(tiny_model, tmp_path)
    net = add_lora(base_of(run), run.settings)
    adapted = [name for name, module in net.named_modules() if hasattr(module, "lora_A")]
    assert all(".language_model.layers." in name for name in adapted)
    layers = net.config.get_text_config().num_hidden_layers
    # full-attention layers use their keys as values, and have no v_proj
    assert len(adapted) == 7 * layers - net.config.get_text_config().layer_types.count("full_attention")
    assert any("vision_tower" in name and "q_proj" in name for name, _ in net.named_modules()), (
        "there is a tower to miss"
    )
    record = describe(net)
    assert record.adapted_by_part == {"text": len(adapted), "vision": 0, "audio": 0}
    assert record.trainable == sum(value.numel() for value in net.parameters() if value.requires_grad)
    assert record.dtypes["float32"]["bytes"] == 4 * record.parameters


def test_all_linear_reaches_the_vision_tower(tiny_model: Path, tmp_path: Path) -> None:
    run = plan(tiny_model, tmp_path, lora_targets="all-linear")
    record = describe(add_lora(base_of(run), run.settings))
    assert record.adapted_by_part["vision"] > 0 and record.adapted_by_part["text"] > 0


def test_nf4_keeps_the_count_of_parameters_and_needs_fewer_bytes(tiny_model: Path, tmp_path: Path) -> None:
    run = plan(tiny_model, tmp_path)
    full = describe(base_of(run))
    packed = describe(base_of(replace(run, settings=replace(run.settings, quantization="nf4"))))
    assert packed.parameters == full.parameters
    assert "uint8" in packed.dtypes
    assert sum(item["bytes"] for item in packed.dtypes.values()) < sum(item["bytes"] for item in full.dtypes.values())


def test_an_adapter_survives_saving(tiny_model: Path, tmp_path: Path) -> None:
    run = plan(tiny_model, tmp_path)
    net = add_lora(base_of(run), run.settings)
    for name, parameter in net.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    ids = {"input_ids": torch.tensor([[2, 5, 9, 11]])}
    expected = net.eval()(**ids).logits
    save_adapter(net, tmp_path / "adapter", load_reader(run.settings, images=False))
    loaded = load_adapter(base_of(run), str(tmp_path / "adapter")).eval()
    torch.testing.assert_close(loaded(**ids).logits, expected, rtol=0, atol=0)
    assert {path.name for path in (tmp_path / "adapter").iterdir()} >= {
        ADAPTER_FILE,
        "adapter_config.json",
        "tokenizer.json",
    }


def test_a_lost_tensor_is_an_error(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = plan(tiny_model, tmp_path)
    net = add_lora(base_of(run), run.settings)
    state = dict(sorted(adapter_state(net).items())[1:])
    monkeypatch.setattr("finetune.checkpoint.adapter_state", lambda _: state)
    with pytest.raises(TrainingError, match="lost tensors while saving"):
        save_adapter(net, tmp_path / "adapter")


def test_what_is_no_model_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    missing = plan(tmp_path, tmp_path)
    for load in (lambda: load_reader(missing.settings, images=False), lambda: base_of(missing)):
        with pytest.raises(ModelError, match=f"--model-id {tmp_path}") as caught:
            load()
        assert caught.value.hint
    with pytest.raises(ModelError, match="--adapter"):
        load_adapter(torch.nn.Linear(1, 1), str(tmp_path))


def test_the_embedded_model_is_a_folder_of_the_package() -> None:
    assert Path(reader.source("embedded"), "config.json").exists()
    assert reader.source("google/gemma-4-31B-it") == "google/gemma-4-31B-it"
