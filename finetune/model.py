"""The base model (bf16, fp32 or NF4) straight onto this rank's device, and its LoRA adapter."""

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from peft import LoraConfig, PeftModel, get_peft_model
from torch import distributed
from transformers import AutoConfig, AutoModelForMultimodalLM, BitsAndBytesConfig, GenerationConfig
from transformers.initialization import no_init_weights
from transformers.utils.logging import disable_progress_bar

from finetune import weights
from finetune.errors import FinetuneError, ModelError
from finetune.plan import Plan
from finetune.reader import source, unreadable
from finetune.settings import Settings
from finetune.shards import AGAIN
from finetune.sources import Sources

TEXT_PROJECTIONS = r".*language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"
"""The seven projections of a text layer. A bare "q_proj" would also match the vision tower, whose
projections are Gemma4ClippableLinear and no Linear."""
UNADAPTED = r".*(\.router\.|audio_tower|embed_audio).*"
"""What all-linear leaves out: the routers of experts, where a small change sends tokens elsewhere, and what hears,
since no task has sound."""
PARTS = {"vision": ("vision_tower", "embed_vision"), "audio": ("audio_tower", "embed_audio")}
"""Parts of the model other than text, by words in a module's path."""


@dataclass(frozen=True)
class ModelRecord:
    """What was loaded and adapted, for run.json. Parameters are counts of numbers, NF4 ones counted unpacked."""

    architecture: str
    parameters: int
    trainable: int
    adapted_modules: int
    adapted_by_part: dict[str, int]
    dtypes: dict[str, dict[str, int]]


def load_base(plan: Plan, device: torch.device, sources: Sources) -> Any:
    """The base model on `device`, frozen weights as they will stay. Every process must call it.

    The first process of a node reads the weights, and the others get them from its device: the 31B (62.5 GB in bf16)
    fits on each GPU before FSDP shards it. Host memory holds one copy a node, at most. Raises ModelError.
    """
    settings, state = plan.settings, PartialState()
    dtype = torch.bfloat16 if plan.launch.bf16 else torch.float32
    config = _read_config(settings, sources)
    # By part: the audio tower of E2B and E4B has no other kernel than its own, and refuses to load with one.
    attention = dict.fromkeys(("text_config", "vision_config"), settings.attn_implementation)
    build = partial(
        AutoModelForMultimodalLM.from_config,
        dtype=dtype,
        attn_implementation=attention,
        trust_remote_code=settings.trust_remote,
    )
    if state.is_local_main_process:
        with torch.device("meta"), no_init_weights():
            kind = type(build(config))
        model = _read(kind, config, plan, device, sources, dtype=dtype, attn_implementation=attention)
    else:
        with device, no_init_weights():
            model = build(config)
        model.tie_weights()
    if plan.launch.processes_per_node > 1:
        _share(model, plan)
    model.name_or_path = model.config._name_or_path = source(settings.model_id)
    model.generation_config = _generation_config(sources.model) or model.generation_config
    model.requires_grad_(False)
    return model.eval()


def _read_config(settings: Settings, sources: Sources) -> Any:
    try:
        return AutoConfig.from_pretrained(sources.model, trust_remote_code=settings.trust_remote)
    except (OSError, ValueError) as error:  # ValueError: files that are there, but are no model
        raise unreadable(settings.model_id, error) from error


def _read(kind: Any, config: Any, plan: Plan, device: torch.device, sources: Sources, **kwargs: Any) -> Any:
    """The model with the weights from their files, quantized on the way where the plan says so."""
    quantization = None
    if plan.settings.quantization == "nf4":
        quantization = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=kwargs["dtype"],
        )
    disable_progress_bar()  # one bar, over the bytes
    reading = weights.read(sources.weights, shown=PartialState().is_main_process)
    try:
        model = kind.from_pretrained(
            None,
            config=config,
            state_dict=dict(reading.tensors),
            device_map={"": device},
            quantization_config=quantization,
            **kwargs,
        )
    except (OSError, ValueError, RuntimeError) as error:
        failure = next(iter(reading.failures), error)  # transformers tells of a failed conversion instead
        if isinstance(failure, FinetuneError):
            raise failure from error
        raise unreadable(plan.settings.model_id, error) from error
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            # bitsandbytes repacks weights for CPUs that know bf16, if their rows come in 32s: the toy's do not.
            module.support_avx512bf16_for_cpu = False
    return model


def _share(model: Any, plan: Plan) -> None:
    """Give the weights of a node's first process to its others."""
    state = PartialState()
    group = distributed.new_subgroups(plan.launch.processes_per_node)[0] if plan.launch.num_nodes > 1 else None
    first = state.process_index - state.local_process_index
    mine = weights.layout(model)
    told = [mine]
    distributed.broadcast_object_list(told, first, group=group)
    if told[0] != mine:
        raise ModelError(f"--model-id {plan.settings.model_id}: its configuration and its weights differ", AGAIN)
    weights.share(model, group, first)


def _generation_config(folder: str) -> GenerationConfig | None:
    return GenerationConfig.from_pretrained(folder) if (Path(folder) / "generation_config.json").is_file() else None


def add_lora(model: Any, settings: Settings) -> PeftModel:
    """Wrap `model` with a fresh adapter: A random by settings.seed, B zero, so that it starts as the base."""
    config = LoraConfig(
        r=settings.lora_r,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules=TEXT_PROJECTIONS if settings.lora_targets == "text" else "all-linear",
        exclude_modules=UNADAPTED if settings.lora_targets == "all-linear" and _has(model, UNADAPTED) else None,
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(settings.seed)
    return get_peft_model(model, config)


def _has(model: Any, pattern: str) -> bool:
    return any(re.fullmatch(pattern, name) for name, _ in model.named_modules())


def load_adapter(model: Any, adapter: str) -> PeftModel:
    """Put a saved adapter on `model`, for scoring. Raises ModelError if there is none at `adapter`."""
    try:
        return PeftModel.from_pretrained(model, adapter)
    except (OSError, ValueError) as error:
        raise ModelError(f"--adapter {adapter}: cannot be loaded: {str(error).strip().splitlines()[0]}") from error


def describe(model: Any) -> ModelRecord:
    """Count parameters, adapted modules by part, and bytes by dtype."""
    adapted: dict[str, int] = {"text": 0, **dict.fromkeys(PARTS, 0)}
    for name, module in model.named_modules():
        if hasattr(module, "lora_A"):
            adapted[_part(name)] += 1
    dtypes: dict[str, dict[str, int]] = defaultdict(lambda: {"tensors": 0, "bytes": 0})
    parameters = trainable = 0
    for parameter in model.parameters():
        entry = dtypes[str(parameter.dtype).removeprefix("torch.")]
        entry["tensors"] += 1
        entry["bytes"] += parameter.numel() * parameter.element_size()
        # bitsandbytes packs two 4-bit numbers into a byte
        count = parameter.numel() * (2 if type(parameter).__name__ == "Params4bit" else 1)
        parameters += count
        trainable += count if parameter.requires_grad else 0
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    return ModelRecord(type(base).__name__, parameters, trainable, sum(adapted.values()), dict(adapted), dict(dtypes))


def _part(name: str) -> str:
    return next((part for part, words in PARTS.items() if any(word in name for word in words)), "text")
