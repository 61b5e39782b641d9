"""What stands between a chat and the model: its tokenizer and, for a task with images, its processor."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoProcessor, AutoTokenizer

from finetune.chat import END_OF_TURN_TOKEN, check_image_template, check_template
from finetune.embedded import EMBEDDED, base_dir
from finetune.errors import DataError, ModelError
from finetune.pictures import as_seen
from finetune.settings import Settings
from finetune.tasks.base import Picture, Unusable


@dataclass(frozen=True)
class Reader:
    """Text and images -> a model's inputs. `processor` is None for a task without images.

    `dtype` is the model's. Pixels have it too: an NF4 layer gives what it is given, and fp32 pixels would make the
    whole vision tower run in fp32.
    """

    tokenizer: Any
    processor: Any = None
    dtype: torch.dtype = torch.float32

    def image_tokens(self, height: int, width: int) -> list[int]:
        """The ids that stand for an image of that size, begin and end of image included."""
        found = self.processor._get_num_multimodal_tokens(image_sizes=[(height, width)])
        (count,) = found["num_image_tokens"]
        begin, image, end = self.tokenizer.convert_tokens_to_ids(
            [self.tokenizer.boi_token, self.tokenizer.image_token, self.tokenizer.eoi_token]
        )
        return [begin, *[image] * count, end]

    def pixels(self, pictures: Sequence[Picture]) -> dict[str, torch.Tensor]:
        """The model's image inputs: for Gemma 4 `pixel_values` [images, patches, 3 x 16 x 16] in 0..1 and
        `image_position_ids` [images, patches, 2], padded to the same number of patches."""
        if not pictures:
            return {}
        inputs = self.processor.image_processor(images=[seen(picture) for picture in pictures], return_tensors="pt")
        wanted = {name: value for name, value in inputs.items() if name != "num_soft_tokens_per_image"}
        return {name: value.to(self.dtype) if value.is_floating_point() else value for name, value in wanted.items()}

    def token_types(self, input_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        """`mm_token_type_ids`, of `input_ids`' shape: 1 on image tokens, which attend to each other both ways."""
        if self.processor is None:
            return {}
        return {"mm_token_type_ids": (input_ids == self.tokenizer.image_token_id).long()}

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files, or the processor's with them."""
        (self.processor or self.tokenizer).save_pretrained(str(folder))


def seen(picture: Picture) -> Any:
    """The picture as PIL.Image in RGB. Every one was looked at before training: raises DataError if it is gone."""
    image = as_seen(picture)
    if isinstance(image, Unusable):
        raise DataError(
            f"{picture.name}: {image.reason}, but it could be read when the run began",
            "do not change the data set while a run reads it; start the run again",
        )
    return image


def load_reader(settings: Settings, images: bool | None, bf16: bool = False) -> Reader:
    """The model's own tokenizer (and processor), checked: Gemma 4 turns, BOS and end of turn. Raises ModelError.

    With `images` None there is a processor if the model has one that knows images.
    """
    origin, trust = source(settings.model_id), settings.trust_remote
    try:
        if images is not False:
            processor = AutoProcessor.from_pretrained(origin, trust_remote_code=trust)
            tokenizer = getattr(processor, "tokenizer", processor)
            if images is None and not getattr(processor, "image_processor", None):
                processor = None
        else:
            processor, tokenizer = None, AutoTokenizer.from_pretrained(origin, trust_remote_code=trust)
    except (OSError, ValueError) as error:  # ValueError: files that are there, but are no model
        raise unreadable(settings.model_id, error) from error
    check_tokenizer(tokenizer)
    check_template(tokenizer)
    if images and not getattr(processor, "image_processor", None):
        raise ModelError(
            f"--model-id {settings.model_id}: has no image processor",
            "copy processor_config.json and preprocessor_config.json from the model, or choose a task without images",
        )
    if processor is not None:
        check_image_template(tokenizer)
    return Reader(tokenizer, processor, torch.bfloat16 if bf16 else torch.float32)


def check_tokenizer(tokenizer: Any) -> None:
    """Raise ModelError unless the tokenizer knows BOS and Gemma 4's end of turn as single tokens."""
    vocabulary: Mapping[str, int] = tokenizer.get_vocab()
    for name, token in (("BOS", tokenizer.bos_token), ("end-of-turn", END_OF_TURN_TOKEN)):
        if token not in vocabulary:
            raise ModelError(f"the tokenizer has no {name} token ({token})", "use the tokenizer that came with Gemma 4")


def source(model_id: str) -> str:
    """Where from_pretrained finds the model: 'embedded' is a folder of this package."""
    return str(base_dir()) if model_id == EMBEDDED else model_id


def unreadable(model_id: str, error: Exception) -> ModelError:
    """The error for a model that transformers cannot load."""
    offline = os.environ.get("HF_HUB_OFFLINE") == "1"
    return ModelError(
        f"--model-id {model_id}: cannot be loaded: {str(error).strip().splitlines()[0]}",
        "give a local folder, or check the name, HF_TOKEN and the licence on the hub"
        + ("; HF_HUB_OFFLINE=1 is set" if offline else ""),
    )
