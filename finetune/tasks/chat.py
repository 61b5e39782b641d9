"""Conversations of one's own: {"messages": [...]} or {"prompt": ..., "completion": ...}, with images or without.

ShareGPT's and LLaVA's way of writing them is read as well: {"conversations": [{"from": "human", "value": ...}]}, with
<image> in the text for each image. Every turn of the assistant is trained on, and nothing else. Judged on held-out
conversations by the loss on those turns, and by whether the last one is answered to the letter.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from finetune.tasks.base import IMAGE_MARK, DataSource, Example, Message, Metric, Row, Score, Unusable, Verdict

NAME = "chat"
DESCRIPTION = "conversations of your own: the assistant's turns"
SOURCE = DataSource("", rows=1_000_000, train_size=950_000, eval_size=50_000)
"""All rows of the user's own data; of one undivided table a twentieth is held out."""
LISTS = ("messages", "conversations")
"""Columns that hold whole conversations."""
LAYOUTS: tuple[tuple[str, ...], ...] = (*((name,) for name in LISTS), ("prompt", "completion"))
PLACEHOLDERS: Row = {"prompt": "[your question]", "completion": "[the answer]"}
DEFAULTS: Mapping[str, Any] = {"lora_targets": "text"}
EXACT, DIFFERENT = "exact", "different"
VERDICTS: tuple[str, ...] = (EXACT, DIFFERENT)
UNSCORABLE: str | None = None
ROWS_PER_STEP: int | None = None
IMAGES: bool | None = None
STRATIFIED = False
TOKEN_LOSS = True

ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "model", "gpt"), "assistant"),
}
"""Names of roles that are in use -> ours."""
WRITTEN_MARK = "<image>"
"""Where LLaVA's texts have an image."""
IMAGE_PARTS = ("image", "image_url")
"""Types of a message's parts that are images: Transformers' name, and that of OpenAI's API."""


def survey(rows: Iterable[Row]) -> None:
    """Each conversation stands alone."""


def to_example(row: Row, number: int, survey: None = None) -> Example | Unusable:
    """One conversation -> Example: its last assistant turn is the answer, all before it the prompt.

    `images` are pictures (chat_rows.py makes them of what a row has), each where its part or mark stands, or else all
    in front of the first user turn. A turn of the user after the last answer is left out: nothing is learned from it.
    """
    turns = _turns(row)
    if isinstance(turns, Unusable):
        return turns
    while turns and turns[-1].role == "user":
        turns = turns[:-1]
    wrong = _find_fault(turns)
    if wrong:
        return wrong
    images = tuple(row.get("images") or ())
    turns = _marked(turns, len(images))
    marks = sum(message.content.count(IMAGE_MARK) for message in turns)
    if marks != len(images):
        return Unusable(f"images are {len(images)}, and the messages have {marks} places for them")
    *prompt, last = turns
    if IMAGE_MARK in last.content:
        return Unusable("messages have an image in an assistant turn")
    return Example(number, tuple(prompt), last.content, images)


def _turns(row: Row) -> list[Message] | Unusable:
    for column in LISTS:
        if row.get(column) is not None:
            return _read(column, row[column], "user")
    if "prompt" not in row and "completion" not in row:
        return Unusable("messages is missing")
    turns = []
    for column, role in (("prompt", "user"), ("completion", "assistant")):
        found = _read(column, row.get(column), role)
        if isinstance(found, Unusable):
            return found
        turns += found
    return turns


def _read(column: str, value: Any, role: str) -> list[Message] | Unusable:
    """The turns of a column: a list of messages, or one text of that role."""
    if value is None:
        return Unusable(f"{column} is missing")
    if isinstance(value, str) and column not in LISTS:
        return [Message(_role(role), value)] if value.strip() else Unusable(f"{column} is empty")
    if not isinstance(value, list):
        return Unusable(f"{column} is empty" if value in ("", " ") else f"{column} is not a list of messages")
    if not value:
        return Unusable(f"{column} is empty")
    turns = []
    for message in value:
        if not isinstance(message, Mapping):
            return Unusable(f"{column} has a turn that is no object")
        role = message.get("role", message.get("from"))
        if role not in ROLES:
            return Unusable(f"{column} has a turn of role {role!r}")
        if message.get("tool_calls"):
            return Unusable(f"{column} has tool calls")
        content = _content(content_of(message))
        if content is None:
            return Unusable(f"{column} has a turn without text")
        turns.append(Message(_role(ROLES[role]), content))
    return turns


def _role(name: str) -> Any:
    return name


def content_of(message: Mapping[str, Any]) -> Any:
    """What a message says, as it stands in the data: a text, or a list of parts."""
    return message.get("content", message.get("value"))


def _content(value: Any) -> str | None:
    """A message's text, with a mark for each image; None where it is neither text nor parts of it."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return None
    parts = []
    for part in value:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in IMAGE_PARTS:
            parts.append(IMAGE_MARK)
        elif kind == "text" and isinstance(part.get("text"), str):
            parts.append(part["text"])
        else:
            return None
    return "".join(parts)


def _find_fault(turns: Sequence[Message]) -> Unusable | None:
    """What is wrong with the order of the turns: an optional system turn, then user and assistant by turns."""
    roles = [message.role for message in turns]
    if "assistant" not in roles:
        return Unusable("messages have no assistant turn")
    if "system" in roles[1:]:
        return Unusable("messages have a system turn that is not the first")
    spoken = roles[1:] if roles[0] == "system" else roles
    if spoken[0] != "user":
        return Unusable("messages do not begin with the user")
    if any(one == other for one, other in pairwise(spoken)):
        return Unusable("messages have two turns of one role in a row")
    if any(message.role == "assistant" and not message.content.strip() for message in turns):
        return Unusable("answer is empty")
    return None


def _marked(turns: list[Message], images: int) -> list[Message]:
    """The turns, with a mark for every image in front of the first user turn if there is none yet, nor as many as are
    written out. Without images a mark is a character like any other, and goes."""
    if not images:
        return [Message(turn.role, turn.content.replace(IMAGE_MARK, "")) for turn in turns]
    if any(IMAGE_MARK in turn.content for turn in turns):
        return turns
    if sum(turn.content.count(WRITTEN_MARK) for turn in turns) == images:
        return [Message(turn.role, turn.content.replace(WRITTEN_MARK, IMAGE_MARK)) for turn in turns]
    first = next(place for place, turn in enumerate(turns) if turn.role == "user")
    marked = Message("user", IMAGE_MARK * images + turns[first].content)
    return [*turns[:first], marked, *turns[first + 1 :]]


def score(examples: Sequence[Example], completions: Sequence[str]) -> Score:
    """Compare each completion with the answer, white space at the ends apart. With no examples it is 0 of 0."""
    same = [text.strip() == example.answer.strip() for example, text in zip(examples, completions, strict=True)]
    share = sum(same) / len(same) if same else 0.0
    return Score(
        (Metric("exact_match", share, len(same)),), tuple(Verdict(EXACT if right else DIFFERENT) for right in same)
    )
