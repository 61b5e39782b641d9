"""report.html: one self-contained file that tells a run, made from its run directory alone.

    python -c "from pathlib import Path; from finetune.report_html import write_html; write_html(Path('out'))"

`view` works out all that is shown (pure), templates/report.html.j2 lays it out. No script, no request to
anywhere; every text is escaped, and a content security policy stands behind that: completions are not ours.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from finetune.plan import Source
from finetune.report import SIDES, Results, read_results, write_text
from finetune.report_charts import LineChart, line_chart, stack
from finetune.report_text import compare, machine, over, template, value
from finetune.settings import OPTIONS

SHOWN = 12
"""Examples shown of each kind that matters, and of the others:"""
SHOWN_OTHERS = 6
OPEN = 4
"""Examples of a kind that stand open; the rest of those shown is folded."""
MAX_CHARACTERS = {"question": 1_000, "context": 4_000, "answer": 2_000, "detail": 400}
MAX_WORDS_COMPARED = 300
SOURCES = tuple(reversed(get_args(Source)))
"""Where a setting can come from, the user's own words first."""
STAGES = {"before": "measure before", "after": "measure after"}
"""What a stage is called where its own name says too little."""
SERIES = {
    "loss": "Loss",
    "learning_rate": "Learning rate",
    "grad_norm": "Gradient norm",
    "tokens_per_second": "Tokens per second",
}
COLOURS = ("orange", "vermillion", "purple", "sky", "yellow", "blue")


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
    """One example: `context` is (name, text), shown folded."""

    row: int
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


@dataclass(frozen=True)
class Setting:
    name: str
    value: str
    source: str
    help: str


def write_html(run_dir: Path) -> None:
    """Write report.html from the other files in `run_dir`."""
    write_text(run_dir / "report.html", html(read_results(run_dir)))


def html(results: Results) -> str:
    """The whole page."""
    return template("report.html.j2").render(view(results))


def view(results: Results) -> dict[str, Any]:
    """All that the page shows. Pure."""
    run, metrics = results.run, results.metrics
    colours = verdict_colours(metrics["verdicts"], metrics["success"], metrics["unscorable"])
    groups = group_examples(results, colours)
    settings = list_settings(run["plan"]["settings"], run["plan"]["sources"])
    comparisons = compare(metrics)
    return {
        "run": run,
        "metrics": metrics,
        "machine": machine(run["machine"]),
        "headline": comparisons[0] if comparisons else None,
        "comparisons": comparisons,
        "over": over(metrics),
        "notes": [*run["plan"]["notes"], *run["data"]["notes"]],
        "charts": draw_history((run["training"] or {}).get("history", [])),
        "measured": [side for side in SIDES if metrics[side]],
        "bars": {side: stack(counts, colours) for side, counts in metrics["verdicts"].items() if counts},
        "colours": colours,
        "some_unscorable": any(counts[metrics["unscorable"]] for counts in metrics["verdicts"].values() if counts),
        "groups": groups,
        "examples_found": any(group.total for group in groups),
        "open": OPEN,
        "totals": {group.title: group.total for group in groups},
        "stages": [
            (STAGES.get(name, name), seconds, 100 * seconds / (run["seconds"]["total"] or 1))
            for name, seconds in run["seconds"].items()
            if name != "total"
        ],
        "changed": [setting for setting in settings if setting.source != "default"],
        "defaults": [setting for setting in settings if setting.source == "default"],
    }


def verdict_colours(verdicts: Mapping[str, Any], success: str, unscorable: str) -> dict[str, str]:
    """A CSS class for every label: green is success, grey says nothing, the rest as they come."""
    labels = list(dict.fromkeys(label for counts in verdicts.values() for label in counts or ()))
    others = [label for label in labels if label not in (success, unscorable)]
    colours = {label: COLOURS[index % len(COLOURS)] for index, label in enumerate(others)}
    return {label: colours.get(label, "green" if label == success else "grey") for label in labels}


def draw_history(history: Sequence[Mapping[str, Any]]) -> dict[str, LineChart]:
    """training.history -> a chart for every series that was logged, by its title, loss first."""
    charts = {}
    for key, title in SERIES.items():
        points = [(float(entry["step"]), float(entry[key])) for entry in history if entry.get(key) is not None]
        is_loss = key == "loss"
        chart = line_chart(points, from_zero=not is_loss, x_ticks=8 if is_loss else 3, y_ticks=5 if is_loss else 2)
        if chart:
            charts[title] = chart
    return charts


def list_settings(settings: Mapping[str, Any], sources: Mapping[str, str]) -> list[Setting]:
    """Every setting, those that somebody or something chose first."""
    listed = [
        Setting(name, value(entry), sources.get(name, "default"), OPTIONS[name].help if name in OPTIONS else "")
        for name, entry in settings.items()
    ]
    return sorted(listed, key=lambda setting: SOURCES.index(setting.source))


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
    last_turn = next((turn["content"] for turn in reversed(row["prompt"]) if turn["role"] == "user"), "")
    question = clip(context.pop("question", last_turn), "question")
    answers = [
        Answer(
            side,
            mark_differences(clip(row["answer"], "answer"), clip(answer["completion"], "answer")),
            answer["verdict"],
            colours.get(answer["verdict"], "grey"),
            clip(answer["detail"], "detail"),
        )
        for side, answer in zip(sides, pair, strict=True)
    ]
    folded = [(name, clip(text, "context")) for name, text in context.items()]
    return Shown(row["row"], question, folded, clip(row["answer"], "answer"), answers)


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
