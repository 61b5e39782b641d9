"""A row with an image: what is trained on, what reaches the model, and that it is what TRL and transformers make."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoModelForMultimodalLM
from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

from finetune import evaluate, train
from finetune.chat import END_OF_TURN, render
from finetune.data import Prompts
from finetune.encode import IGNORED, Encoded, take
from finetune.pictures import FilePicture, as_seen
from finetune.reader import Reader
from finetune.selection import SplitCounts
from finetune.tasks.base import Example, Message
from tests.loading import base_of
from tests.test_train import plan

SHAPES = [(500, 375), (100, 400), (64, 64), (700, 90)]


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> list[Example]:
    """Four images of four shapes, answers of several lengths."""
    folder = tmp_path_factory.mktemp("images")
    made = []
    for number, size in enumerate(SHAPES, start=1):
        path = folder / f"{number}.png"
        Image.effect_mandelbrot(size, (-2, -1.5, 1, 1.5), 50 + number).convert("RGB").save(path)
        prompt = (Message("user", "What does the picture show? " * number),)
        made.append(Example(number, prompt, "a cat " * number, (FilePicture(str(path), path.name),)))
    return made


@pytest.fixture(scope="module")
def encoded(examples: list[Example], image_reader: Reader) -> list[Encoded]:
    return take(examples, 4, image_reader, 2048, SplitCounts(4))


@pytest.fixture(scope="module")
def tiny(tiny_model: Path) -> Any:
    return AutoModelForMultimodalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()


def collated(encoded: list[Encoded], reader: Reader) -> dict[str, Any]:
    rows = [
        {
            "input_ids": row.prompt + row.completion,
            "labels": [IGNORED] * len(row.prompt) + row.completion,
            "row": row.example.row,
            "place": place,
        }
        for place, row in enumerate(encoded)
    ]
    return train.Collator(reader, [row.example.images for row in encoded])(rows)


def test_the_batch_is_the_one_that_trl_makes(
    examples: list[Example], encoded: list[Encoded], image_reader: Reader
) -> None:
    """TRL's collator finds the labels by tokenising prompt and completion apart, with the images in the prompt."""
    rendered = [render(image_reader.tokenizer, example) for example in examples]
    seen = [[as_seen(picture) for picture in example.images] for example in examples]
    theirs = DataCollatorForVisionLanguageModeling(image_reader.processor, completion_only_loss=True)(
        [
            {"prompt": text.prompt, "completion": text.completion, "images": images}
            for text, images in zip(rendered, seen, strict=True)
        ]
    )
    ours = collated(encoded, image_reader)
    compared = {name: value for name, value in theirs.items() if name != "num_soft_tokens_per_image"}
    assert compared.keys() == ours.keys() - {"row"}
    assert {"pixel_values", "image_position_ids", "mm_token_type_ids", "labels"} <= compared.keys()
    for name, value in compared.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=0, check_dtype=False, msg=name)


def test_only_the_answer_is_supervised(encoded: list[Encoded], image_reader: Reader) -> None:
    batch = collated(encoded, image_reader)
    tokenizer = image_reader.tokenizer
    counts = set()
    for row, ids, labels in zip(encoded, batch["input_ids"], batch["labels"], strict=True):
        kept = labels[labels != IGNORED]
        assert tokenizer.decode(kept) == row.example.answer.strip() + END_OF_TURN
        assert not torch.isin(kept, torch.tensor([tokenizer.image_token_id, tokenizer.pad_token_id])).any()
        end = len(row.prompt) + len(row.completion)
        assert (labels[: len(row.prompt)] == IGNORED).all() and (labels[end:] == IGNORED).all()
        counts.add(int((ids == tokenizer.image_token_id).sum()))
    assert len(counts) >= 3, "the images differ in their number of tokens, and the labels are found all the same"


def test_the_image_comes_first_in_the_one_turn(examples: list[Example], image_reader: Reader) -> None:
    text = render(image_reader.tokenizer, examples[0])
    assert text.prompt.startswith("<bos><|turn>user\n<|image|>What does the picture show?")
    assert text.prompt.count("<|turn>") == 2 and text.prompt.count("<|image|>") == 1


def test_token_types_reach_the_model(encoded: list[Encoded], image_reader: Reader, tiny: Any) -> None:
    """With them image tokens see each other both ways; the logits of what comes after must tell."""
    batch = collated(encoded, image_reader)
    inputs = {name: value for name, value in batch.items() if name not in ("row", "labels")}
    with torch.no_grad():
        with_types = tiny(**inputs).logits
        without = tiny(**{**inputs, "mm_token_type_ids": None}).logits
        other_image = tiny(**{**inputs, "pixel_values": inputs["pixel_values"].flip(0)}).logits
    answers = batch["labels"] != IGNORED
    assert (with_types - without)[answers].abs().max() > 1e-4
    assert (with_types - other_image)[answers].abs().max() > 1e-4


def test_a_row_is_dropped_whole_never_cut_inside_an_image(
    examples: list[Example], encoded: list[Encoded], image_reader: Reader
) -> None:
    longest = max(len(row.prompt) + len(row.completion) for row in encoded)
    counts = SplitCounts(4)
    kept = take(examples, 4, image_reader, longest - 1, counts)
    assert [row.example.row for row in kept] == [
        row.example.row for row in encoded if len(row.prompt) + len(row.completion) < longest
    ]
    (dropped,) = counts.dropped.items()
    assert dropped[0] == f"longer than --max-length {longest - 1}"
    assert dropped[1].rows[0] in {f"{number}.png" for number in range(1, 5)}


def test_text_that_pretends_to_be_an_image_is_left_out(examples: list[Example], image_reader: Reader) -> None:
    prompt = (Message("user", "What is <|image|> here?"),)
    for example in (replace(examples[0], prompt=prompt), replace(examples[0], answer="<|image|>")):
        counts = SplitCounts(1)
        assert not take([example], 1, image_reader, 2048, counts)
        assert list(counts.dropped) == ["its text holds the image token <|image|>"]


def test_bad_images_are_found_before_training_and_others_take_their_place(
    examples: list[Example], image_reader: Reader, tmp_path: Path
) -> None:
    (tmp_path / "bad.jpg").write_text("no image")
    bad = replace(examples[0], images=(FilePicture(str(tmp_path / "bad.jpg"), "train/bad.jpg"),))
    counts = SplitCounts(5)
    rows = take([examples[0], bad, *examples[1:]], 3, image_reader, 2048, counts)
    assert [row.example.row for row in rows] == [1, 2, 3]
    assert counts.reasons() == "1 rows: image is not in a format that can be read (train/bad.jpg)"


def test_batched_answers_are_those_of_each_image_alone(encoded: list[Encoded], image_reader: Reader, tiny: Any) -> None:
    prompts = Prompts([row.prompt for row in encoded], [row.example.images for row in encoded])

    def answers(asked: Prompts, size: int) -> list[str]:
        return evaluate.generate(tiny, image_reader, asked, batch_size=size, max_new_tokens=8, label="x")

    together = answers(prompts, 3)
    alone = [
        answers(Prompts([ids], [pictures]), 1)[0] for ids, pictures in zip(prompts.ids, prompts.pictures, strict=True)
    ]
    assert together == alone


@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_a_bf16_model_looks_at_images_in_bf16(
    encoded: list[Encoded], image_reader: Reader, tiny_model: Path, tmp_path: Path, quantization: str
) -> None:
    """NF4 layers give back the dtype they are given: fp32 pixels would make the whole vision tower run in fp32."""
    run = plan(tiny_model, tmp_path, quantization=quantization)
    run = replace(run, launch=replace(run.launch, bf16=True))
    model = base_of(run).eval()
    seen: list[torch.dtype] = []
    for layer in model.model.vision_tower.encoder.layers:
        layer.register_forward_hook(lambda _module, _inputs, output: seen.append(output.dtype))
    prompts = Prompts([encoded[0].prompt], [encoded[0].example.images])
    reader = replace(image_reader, dtype=torch.bfloat16)
    evaluate.generate(model, reader, prompts, batch_size=1, max_new_tokens=2, label="x")
    assert set(seen) == {torch.bfloat16}
