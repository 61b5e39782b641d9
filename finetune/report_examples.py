"""The examples of report.html: which are shown, and what of each. Pure."""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finetune.report import SIDES, Results

SHOWN = 12
"""Examples shown of each kind that matters, and of the others:"""
SHOWN_OTHERS = 6
MAX_CHARACTERS = {"question": 1_000, "context": 4_000, "answer": 2_000, "detail": 400, "picture": 200}
MAX_WORDS_COMPARED = 300


@dataclass(frozen=True)
class Piece:
    """Part of an answer; `differs` if the expected answer does not have it there."""

    text: str
    differs: bool = False


@dataclass(frozen=True)
class Answer:
    """What the model wrote, before or after."""

    side: str
    pieces: list[Piece]
    verdict: str
    colour: str
    detail: str


@dataclass(frozen=True)
class Shown:
    """One example: `context` is (name, text), shown folded. `pictures` are their names, where it has some."""

    row: int
    pictures: list[str]
    question: str
    context: list[tuple[str, str]]
    expected: str
    answers: list[Answer]


@dataclass(frozen=True)
class Group:
    """Examples of one kind: the first of `total`."""

    title: str
    total: int
    shown: list[Shown]


def group_examples(results: Results, colours: Mapping[str, str]) -> list[Group]:
    """Examples by what became of them, in the order of the data; those that say nothing are left out."""
    success, unscorable = results.metrics["success"], results.metrics["unscorable"]
    after = {row["row"]: row for row in results.after}
    if results.before and results.after:
        pairs = [[row, after[row["row"]]] for row in results.before if row["row"] in after]
    else:
        pairs = [[row] for row in results.before or results.after]
    kinds: dict[tuple[bool, ...], list[list[dict[str, Any]]]] = {}
    for pair in pairs:
        if all(row["verdict"] != unscorable for row in pair):
            kinds.setdefault(tuple(row["verdict"] == success for row in pair), []).append(pair)
    wanted = (
        (
            ("Got better", (False, True), SHOWN),
            ("Got worse", (True, False), SHOWN),
            ("Still wrong", (False, False), SHOWN_OTHERS),
        )
        if results.before and results.after
        else (("Wrong", (False,), SHOWN), ("Right", (True,), SHOWN_OTHERS))
    )
    sides = [side for side, rows in zip(SIDES, (results.before, results.after), strict=True) if rows]
    return [
        Group(title, len(found), [show(sides, pair, colours) for pair in found[:limit]])
        for title, kind, limit in wanted
        for found in [kinds.get(kind, [])]
    ]


def show(sides: Sequence[str], pair: Sequence[Mapping[str, Any]], colours: Mapping[str, str]) -> Shown:
    """One example: the same row of one or both predictions files."""
    row = pair[0]
    context = dict(row["context"])
    question = clip(context.pop("question", last_turn(row)), "question")
    answers = [
        Answer(
            side,
            mark_differences(clip(row["answer"], "answer"), clip(answer["completion"].strip(), "answer")),
            answer["verdict"],
            colours.get(answer["verdict"], "grey"),
            clip(answer["detail"], "detail"),
        )
        for side, answer in zip(sides, pair, strict=True)
    ]
    folded = [(name, clip(text, "context")) for name, text in context.items()]
    # Runs from before there were images say 0.
    pictures = [clip(name, "picture") for name in row["images"] or []]
    return Shown(row["row"], pictures, question, folded, clip(row["answer"], "answer"), answers)


def last_turn(row: Mapping[str, Any]) -> str:
    """What the user says last in a row's prompt."""
    return next((str(turn["content"]) for turn in reversed(row["prompt"]) if turn["role"] == "user"), "")


def clip(text: str, kind: str) -> str:
    """`text`, cut where it would make the page large."""
    limit = MAX_CHARACTERS[kind]
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit:,} more characters)"


def mark_differences(expected: str, text: str) -> list[Piece]:
    """`text` in pieces, those marked that `expected` lacks.

    Left whole where marks would not help: texts that are unlike (all would be marked) or long (it takes too long).
    """
    wanted, words = (re.findall(r"\w+|\s+|[^\w\s]", item) for item in (expected, text))
    matcher = difflib.SequenceMatcher(None, wanted, words, autojunk=False)
    if not words or max(len(wanted), len(words)) > MAX_WORDS_COMPARED or matcher.ratio() < 0.5:
        return [Piece(text)] if text else []
    parts = [(kind != "equal", "".join(words[start:end])) for kind, _, _, start, end in matcher.get_opcodes()]
    return [Piece(part, differs and not part.isspace()) for differs, part in parts if part]
