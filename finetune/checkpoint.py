"""The state of training as files: the adapter, the optimizer's moments, and the rest as JSON; and back again.

Gathered over ranks, written by the first, and given back from there: no rank needs the files but that one, and a
checkpoint can be read with another number of them. Tensors are in safetensors files; nothing is pickled.
"""

import base64
import json
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from peft import PeftModel, get_peft_model_state_dict
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import distributed
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.trainer_callback import TrainerState

from finetune.errors import TrainingError
from finetune.journal import STATE
from finetune.reader import Reader
from finetune.storage import LocalFolder

ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
OPTIMIZER_FILE = "optimizer.safetensors"
TRAINER_FILE = "trainer_state.json"
SCHEDULER = ("last_epoch", "_step_count", "_last_lr", "base_lrs")
"""What of a learning rate's schedule is not in the plan."""


def adapter_state(model: PeftModel) -> dict[str, Any]:
    """The adapter's whole tensors, on the CPU, by PEFT's names. Every rank must call it; under FSDP2
    only rank 0 receives tensors. The frozen base is not gathered: for the 31B it is 62.5 GB."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    trainable = get_model_state_dict(model, options=options)
    return dict(get_peft_model_state_dict(model, state_dict=trainable)) if trainable else {}


def save_adapter(model: PeftModel, folder: Path, reader: Reader | None = None) -> None:
    """Write adapter_config.json and adapter_model.safetensors (and the reader's files) to a local folder, on rank 0;
    every rank must call it.

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


def place_adapter(source: Path, target: Path) -> None:
    """Copy a local adapter to `target`, which may be on a mounted bucket, where safetensors cannot write.

    adapter_config.json comes last: without it, nothing takes a folder for an adapter.
    """
    folder = LocalFolder(target)
    folder.delete(ADAPTER_CONFIG)
    names = sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())
    for name in sorted(names, key=lambda name: name == ADAPTER_CONFIG):
        folder.put(name, source / name)
    shutil.rmtree(source)


def write_state(trainer: Any, folder: Path | None, further: Mapping[str, Any]) -> None:
    """Write all that training goes on from to the local `folder`, None on other ranks than the first. Every rank must
    call it. `further` is put into the state as it is."""
    model, optimizer = trainer.model, trainer.optimizer.optimizer
    save_adapter(model, folder or Path())
    moments = {}
    for name, parameter in _trainable(model):
        for key, value in optimizer.state.get(parameter, {}).items():
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            if folder:
                moments[f"{name}/{key}"] = whole.detach().cpu().contiguous().clone()
    randoms = gather_object([_random_state()])
    losses = gather_object([trainer._tr_loss.item()])
    if folder:
        (folder / "README.md").unlink(missing_ok=True)  # an empty form that PEFT leaves
        save_file(moments, str(folder / OPTIMIZER_FILE))
        schedule = trainer.lr_scheduler.state_dict()
        groups = [{key: v for key, v in group.items() if key != "params"} for group in optimizer.param_groups]
        state = {
            "trainer": asdict(trainer.state),
            "schedule": {key: schedule[key] for key in SCHEDULER},
            "groups": groups,
            "random": randoms,
            "losses": losses,
            "last_logged": trainer._globalstep_last_logged,
            **further,
        }
        (folder / STATE).write_text(json.dumps(state), encoding="utf-8")


def write_trainer_state(state: Mapping[str, Any], folder: Path, arguments: Any) -> None:
    """The part that transformers reads by itself, on each rank. How often to log and save is told anew."""
    known = {**state["trainer"], "logging_steps": arguments.logging_steps, "save_steps": arguments.save_steps}
    folder.mkdir(parents=True, exist_ok=True)
    TrainerState(**known).save_to_json(str(folder / TRAINER_FILE))


def read_state(trainer: Any, folder: Path | None, state: Mapping[str, Any]) -> None:
    """Give adapter, optimizer and schedule what `write_state` wrote to `folder` (None on other ranks than the first).
    Every rank must call it."""
    model, optimizer = trainer.model, trainer.optimizer.optimizer
    adapter = load_file(str(folder / ADAPTER_FILE)) if folder else {}
    moments = load_file(str(folder / OPTIMIZER_FILE)) if folder else {}
    names = [list(moments)]
    if PartialState().num_processes > 1:
        distributed.broadcast_object_list(names, 0)
    with torch.no_grad():
        for name, parameter in _trainable(model):
            parameter.copy_(_spread(adapter.get(_peft_name(name)), parameter))
    found: dict[Any, dict[str, Any]] = {}
    for name, parameter in _trainable(model):
        keys = [key for key in names[0] if key.rpartition("/")[0] == name]
        found[parameter] = {key.rpartition("/")[2]: _moment(moments.get(key), key, parameter) for key in keys}
    numbered = optimizer.state_dict()
    order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in numbered["param_groups"] for number in group["params"]]
    groups = [{**now, **then} for now, then in zip(numbered["param_groups"], state["groups"], strict=True)]
    optimizer.load_state_dict(
        {
            "state": {number: found[p] for number, p in zip(numbers, order, strict=True) if found.get(p)},
            "param_groups": groups,
        }
    )
    trainer.lr_scheduler.load_state_dict({**trainer.lr_scheduler.state_dict(), **state["schedule"]})


def read_randomness(state: Mapping[str, Any], seed: int) -> None:
    """This rank's random numbers go on; where there were other ranks, from a seed of their own."""
    here, known = PartialState(), state["random"]
    if len(known) != here.num_processes:
        torch.manual_seed((seed * 1_000_003 + state["trainer"]["global_step"]) * 1_009 + here.process_index)
        return
    mine = known[here.process_index]
    version, numbers, following = mine["python"]
    random.setstate((version, tuple(numbers), following))
    kind, keys, *rest = mine["numpy"]
    numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), *rest))
    torch.set_rng_state(_bytes(mine["cpu"]))
    if mine["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state(_bytes(mine["cuda"]), here.device)


def read_losses(trainer: Any, state: Mapping[str, Any]) -> None:
    """Losses since the last line of the log, which the next one is the mean of."""
    known, here = state["losses"], PartialState()
    mine = known[here.process_index] if len(known) == here.num_processes else sum(known) / len(known)
    trainer._tr_loss = torch.tensor(mine, device=trainer.args.device)
    trainer._globalstep_last_logged = state["last_logged"]


def _random_state() -> dict[str, Any]:
    kind, keys, *rest = numpy.random.get_state()
    device = PartialState().device
    return {
        "python": random.getstate(),
        "numpy": [kind, numpy.asarray(keys).tolist(), *rest],
        "cpu": _text(torch.get_rng_state()),
        "cuda": _text(torch.cuda.get_rng_state(device)) if device.type == "cuda" else None,
    }


def _text(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def _trainable(model: Any) -> Iterator[tuple[str, Any]]:
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def _peft_name(name: str) -> str:
    """A parameter's name in an adapter's file."""
    return name.replace(".default.", ".").replace("_fsdp_wrapped_module.", "")


def _moment(whole: torch.Tensor | None, key: str, parameter: Any) -> Any:
    """A tensor of the optimizer: shared out as its parameter is, or a number of steps, the same everywhere."""
    return _spread(whole, torch.zeros(()) if key.endswith("/step") else parameter)


def _spread(whole: torch.Tensor | None, like: Any) -> Any:
    """A tensor of rank 0 for every rank, or of a sharded one the part that is this rank's."""
    if PartialState().num_processes == 1:
        assert whole is not None
        return whole
    device = PartialState().device
    everywhere = torch.empty(like.shape, dtype=torch.float32, device=device) if whole is None else whole.to(device)
    distributed.broadcast(everywhere, 0)
    if isinstance(like, DTensor):
        return distribute_tensor(everywhere, like.device_mesh, like.placements, src_data_rank=None)
    return everywhere


def _check_complete(model: PeftModel, path: Path) -> None:
    expected = {_peft_name(name): tuple(parameter.shape) for name, parameter in _trainable(model)}
    with safe_open(str(path), "pt") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (no mapping)
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if wrong:
        named = ", ".join(wrong[:5])
        raise TrainingError(f"{path} lost tensors while saving: {named} ({len(wrong)} of {len(expected)})")
