"""The adapter as files: gathered over ranks, written, and read back to see that nothing was lost."""

from pathlib import Path
from typing import Any

from accelerate import PartialState
from peft import PeftModel, get_peft_model_state_dict
from safetensors import safe_open
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from finetune.errors import TrainingError
from finetune.reader import Reader

ADAPTER_FILE = "adapter_model.safetensors"


def adapter_state(model: PeftModel) -> dict[str, Any]:
    """The adapter's whole tensors, on the CPU, by PEFT's names. Every rank must call it; under FSDP2
    only rank 0 receives tensors. The frozen base is not gathered: for the 31B it is 62.5 GB."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    trainable = get_model_state_dict(model, options=options)
    return dict(get_peft_model_state_dict(model, state_dict=trainable)) if trainable else {}


def save_adapter(model: PeftModel, folder: Path, reader: Reader | None = None) -> None:
    """Write adapter_config.json and adapter_model.safetensors (and the reader's files), on rank 0; every rank must
    call it.

    Raises TrainingError if the file does not hold a whole tensor for every adapted module.
    """
    state = adapter_state(model)
    if PartialState().is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        # Handed over, or PEFT would save this rank's shards.
        model.save_pretrained(str(folder), state_dict=state, safe_serialization=True)
        if reader is not None:
            reader.save(folder)
        _check_complete(model, folder / ADAPTER_FILE)
    PartialState().wait_for_everyone()


def _check_complete(model: PeftModel, path: Path) -> None:
    expected = {
        name.replace(".default.", ".").replace("_fsdp_wrapped_module.", ""): tuple(parameter.shape)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    with safe_open(str(path), "pt") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if wrong:
        named = ", ".join(wrong[:5])
        raise TrainingError(f"{path} lost tensors while saving: {named} ({len(wrong)} of {len(expected)})")
