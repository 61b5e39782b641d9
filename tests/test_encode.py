"""Conversations become rows of token ids: every answer is trained on once, after exactly what a model will be shown."""

import logging
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune.chat import END_OF_TURN, render, render_turns
from finetune.encode import IGNORED, Encoded, TrainingRow, Turn, sequences, take
from finetune.reader import Reader
from finetune.selection import SplitCounts
from finetune.tasks import chat
from finetune.tasks.base import Example
from tests.test_chat import TEMPLATES

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Two and two?"},
    {"role": "assistant", "content": "Four."},
    {"role": "user", "content": "And three?"},
    {"role": "assistant", "content": "Seven."},
]


def example(messages: list[dict[str, str]]) -> Example:
    made = chat.to_example({"messages": messages}, 1)
    assert isinstance(made, Example)
    return made


def with_template(reader: Reader, name: str) -> Reader:
    tokenizer = copy(reader.tokenizer)
    tokenizer.chat_template = TEMPLATES[name]
    return Reader(tokenizer)


def encoded(reader: Reader, messages: list[dict[str, str]], max_length: int = 10_000) -> Encoded:
    (found,) = take([example(messages)], 1, reader, max_length, SplitCounts(1))
    return found


def spoken(row: TrainingRow, tokenizer: Any) -> list[str]:
    """What is trained on, by stretch."""
    stretches: list[list[int]] = []
    for label, before in zip(row.labels, [IGNORED, *row.labels], strict=False):
        if label != IGNORED:
            stretches += [[]] if before == IGNORED else []
            stretches[-1].append(label)
    return [tokenizer.decode(ids) for ids in stretches]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_answer_is_trained_on_once_after_what_a_model_is_shown(name: str, reader: Reader) -> None:
    inputs = with_template(reader, name)
    rows = sequences(encoded(inputs, TALK))
    said = [text for row in rows for text in spoken(row, inputs.tokenizer)]
    assert said == ["Four." + END_OF_TURN, "Seven." + END_OF_TURN]
    assert all(label in (IGNORED, token) for row in rows for token, label in zip(row.ids, row.labels, strict=True))
    for turn, text in zip(encoded(inputs, TALK).turns, render_turns(inputs.tokenizer, example(TALK)), strict=True):
        assert inputs.tokenizer.decode(turn.prompt) == text.prompt, "token for token what evaluation asks"
    # Only a template that opens an answer with more than it keeps of it needs a row for each.
    assert len(rows) == (2 if name == "thought channel" else 1)


def test_the_last_turn_is_what_evaluation_asks(reader: Reader) -> None:
    asked = render(reader.tokenizer, example(TALK))
    assert reader.tokenizer.decode(encoded(reader, TALK).prompt) == asked.prompt
    assert "Four.<turn|>" in asked.prompt and asked.prompt.endswith("<|turn>model\n")


@settings(max_examples=30, deadline=None)
@given(
    texts=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip), min_size=2, max_size=8
    ),
    name=st.sampled_from(sorted(TEMPLATES)),
)
def test_any_conversation_is_supervised_to_the_letter(texts: list[str], name: str, reader: Reader) -> None:
    texts = [text.replace("\ufffc", "-") for text in texts][: len(texts) // 2 * 2]
    roles = ["user", "assistant"] * (len(texts) // 2)
    inputs = with_template(reader, name)
    talk = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    rows = sequences(encoded(inputs, talk))
    said = "".join(text for row in rows for text in spoken(row, inputs.tokenizer))
    assert said == "".join(text.strip() + END_OF_TURN for text in texts[1::2])


def test_rows_are_joined_only_where_one_goes_on_from_the_other() -> None:
    first, second = Turn([1, 2], [3, 4]), Turn([1, 2, 3, 4, 5], [6], images=1)
    [joined] = sequences(Encoded(None, (first, second)))  # type: ignore[arg-type]
    assert joined == TrainingRow([1, 2, 3, 4, 5, 6], [IGNORED, IGNORED, 3, 4, IGNORED, 6], 1)
    apart = sequences(Encoded(None, (first, replace(second, prompt=[1, 2, 9, 3, 4]))))  # type: ignore[arg-type]
    assert [row.ids for row in apart] == [[1, 2, 3, 4], [1, 2, 9, 3, 4, 6]]
    assert [row.images for row in apart] == [0, 1]


def test_a_conversation_that_is_too_long_is_left_out_whole(reader: Reader) -> None:
    counts = SplitCounts(1)
    longest = encoded(reader, TALK).longest
    assert take([example(TALK)], 1, reader, longest - 1, counts) == []
    assert counts.dropped[f"longer than --max-length {longest - 1}"].count == 1
    assert len(take([example(TALK)], 1, reader, longest, SplitCounts(1))) == 1


def test_a_row_too_long_for_the_tokenizer_is_no_alarm(reader: Reader, caplog: pytest.LogCaptureFixture) -> None:
    short = copy(reader.tokenizer)
    short.model_max_length = 4
    logging.getLogger("transformers").addHandler(caplog.handler)
    try:
        assert len(take([example(TALK)], 1, Reader(short), 10_000, SplitCounts(1))) == 1
    finally:
        logging.getLogger("transformers").removeHandler(caplog.handler)
    assert caplog.text == ""


def test_images_without_an_image_processor_are_left_out_and_counted(reader: Reader) -> None:
    class Red:
        name = "red.png"

        def open(self) -> Any:
            from PIL import Image

            return Image.new("RGB", (8, 8), "red")

    counts = SplitCounts(1)
    shown = chat.to_example({"prompt": "Which?", "completion": "Red.", "images": [Red()]}, 1)
    assert isinstance(shown, Example)
    assert take([shown], 1, reader, 1_000, counts) == []
    assert counts.reasons() == "1 rows: it has images, and the model no image processor (red.png)"
