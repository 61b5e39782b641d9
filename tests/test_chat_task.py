"""The chat task: which rows are conversations, what of them is trained on, and how answers are compared."""

from typing import Any

import pytest

from finetune.tasks import chat
from finetune.tasks.base import IMAGE_MARK, Example, Message, Unusable

SYSTEM = {"role": "system", "content": "Be brief."}
ASKED, SAID = {"role": "user", "content": "Two and two?"}, {"role": "assistant", "content": "Four."}
AGAIN, MORE = {"role": "user", "content": "And three?"}, {"role": "assistant", "content": "Seven."}


def made(row: dict[str, Any]) -> Example:
    example = chat.to_example(row, 7)
    assert isinstance(example, Example), example
    return example


def turns(example: Example) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in example.prompt]


def test_the_last_assistant_turn_is_the_answer_and_all_before_it_the_prompt() -> None:
    example = made({"messages": [SYSTEM, ASKED, SAID, AGAIN, MORE]})
    assert turns(example) == [
        ("system", "Be brief."),
        ("user", "Two and two?"),
        ("assistant", "Four."),
        ("user", "And three?"),
    ]
    assert (example.row, example.answer) == (7, "Seven.")


def test_a_question_that_nobody_answers_is_left_out() -> None:
    assert made({"messages": [ASKED, SAID, AGAIN]}) == made({"messages": [ASKED, SAID]})


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Two and two?", "completion": "Four."},
        {"prompt": [ASKED], "completion": [SAID]},
        {"prompt": [ASKED], "completion": "Four."},
        {"messages": [ASKED, {"role": "model", "content": "Four."}]},
        {"messages": [ASKED, {"role": "assistant", "content": [{"type": "text", "text": "Four."}]}]},
        {"messages": [ASKED, SAID], "prompt": None, "completion": None},
        {"conversations": [{"from": "human", "value": "Two and two?"}, {"from": "gpt", "value": "Four."}]},
        {"messages": None, "conversations": [ASKED, SAID]},
    ],
)
def test_other_ways_to_write_the_same(row: dict[str, Any]) -> None:
    assert made(row) == Example(7, (Message("user", "Two and two?"),), "Four.")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "messages is missing"),
        ({"messages": None, "other": 1}, "messages is missing"),
        ({"messages": []}, "messages is empty"),
        ({"messages": "hello"}, "messages is not a list of messages"),
        ({"messages": ["hello"]}, "messages has a turn that is no object"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages has a turn of role 'tool'"),
        ({"conversations": [{"from": "observation", "value": "x"}]}, "conversations has a turn of role 'observation'"),
        ({"messages": [{"content": "x"}]}, "messages has a turn of role None"),
        ({"messages": [ASKED, {**SAID, "tool_calls": [{}]}]}, "messages has tool calls"),
        ({"messages": [ASKED, {"role": "assistant"}]}, "messages has a turn without text"),
        ({"messages": [ASKED, {**SAID, "content": [{"type": "audio"}]}]}, "messages has a turn without text"),
        ({"messages": [ASKED]}, "messages have no assistant turn"),
        ({"messages": [SAID]}, "messages do not begin with the user"),
        ({"messages": [SYSTEM, SAID]}, "messages do not begin with the user"),
        ({"messages": [ASKED, ASKED, SAID]}, "messages have two turns of one role in a row"),
        ({"messages": [ASKED, SAID, SYSTEM, ASKED, SAID]}, "messages have a system turn that is not the first"),
        ({"messages": [ASKED, {**SAID, "content": " \n"}]}, "answer is empty"),
        ({"messages": [ASKED, {**SAID, "content": ""}, AGAIN, MORE]}, "answer is empty"),
        ({"prompt": "Two?"}, "completion is missing"),
        ({"completion": "Two."}, "prompt is missing"),
        ({"prompt": " ", "completion": "Two."}, "prompt is empty"),
        ({"prompt": "x", "completion": 5}, "completion is not a list of messages"),
    ],
)
def test_rows_that_are_no_conversation(row: dict[str, Any], reason: str) -> None:
    assert chat.to_example(row, 1) == Unusable(reason)


def test_images_stand_where_their_parts_are_or_in_front() -> None:
    picture: Any = object()
    parts = [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": " Which?"}]
    placed = made({"messages": [{"role": "user", "content": parts}, SAID], "images": [picture]})
    assert turns(placed) == [("user", f"Look: {IMAGE_MARK} Which?")] and placed.images == (picture,)
    front = made({"prompt": "Which?", "completion": "This.", "images": [picture, picture]})
    assert turns(front) == [("user", f"{IMAGE_MARK}{IMAGE_MARK}Which?")]
    wrong = chat.to_example({"messages": [{"role": "user", "content": parts}, SAID], "images": [picture] * 2}, 1)
    assert wrong == Unusable("images are 2, and the messages have 1 places for them")
    answered = [ASKED, {"role": "assistant", "content": [{"type": "image"}]}]
    assert isinstance(chat.to_example({"messages": answered, "images": [picture]}, 1), Unusable)


def test_images_stand_where_llava_writes_them() -> None:
    picture: Any = object()
    asked = {"from": "human", "value": "<image>\nWhich, this or <image>?"}
    row = {"conversations": [asked, {"from": "gpt", "value": "This."}], "images": [picture, picture]}
    assert turns(made(row)) == [("user", f"{IMAGE_MARK}\nWhich, this or {IMAGE_MARK}?")]
    one = made({**row, "images": [picture]})
    assert turns(one) == [("user", f"{IMAGE_MARK}<image>\nWhich, this or <image>?")], "then they are mere text"
    assert turns(made({**row, "images": []})) == [("user", asked["value"])]


def test_text_that_holds_the_mark_of_an_image_loses_it() -> None:
    assert turns(made({"prompt": f"a{IMAGE_MARK}b", "completion": "c"})) == [("user", "ab")]


def test_answers_are_compared_to_the_letter() -> None:
    example = made({"prompt": "x", "completion": "Four."})
    score = chat.score([example] * 4, ["Four.", " Four.\n", "four.", ""])
    assert [verdict.label for verdict in score.verdicts] == ["exact", "exact", "different", "different"]
    assert (score.metrics[0].name, score.metrics[0].value, score.metrics[0].total) == ("exact_match", 0.5, 4)
    assert chat.score([], []).metrics[0].value == 0
