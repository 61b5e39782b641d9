"""report.html: one self-contained file that tells a run, made from its run directory alone.

    python -c "from pathlib import Path; from finetune.report_html import write_html; write_html(Path('out'))"

`view` works out all that is shown (pure), templates/report.html.j2 lays it out. No script, no request to
anywhere; every text is escaped, and a content security policy stands behind that: completions are not ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from finetune.plan import Source
from finetune.report import SIDES, Results, read_results, write_text
from finetune.report_charts import LineChart, line_chart, stack
from finetune.report_classes import view_classes
from finetune.report_examples import clip, group_examples, last_turn
from finetune.report_images import read_thumbnails
from finetune.report_numbers import machine, value
from finetune.report_text import compare, over, template
from finetune.settings import OPTIONS

OPEN = 4
"""Examples of a kind that stand open; the rest of those shown is folded. Pictures all stand open."""
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
class Setting:
    name: str
    value: str
    source: str
    help: str


def write_html(run_dir: Path) -> None:
    """Write report.html from the other files in `run_dir`. A thumbnail that is not there leaves its place empty."""
    results = read_results(run_dir)
    write_text(run_dir / "report.html", html(results, read_thumbnails(run_dir, shown_rows(results))))


def shown_rows(results: Results) -> list[int]:
    """The rows whose pictures the page shows: those that a run has to make thumbnails of."""
    return [example.row for group in group_examples(results, {}) for example in group.shown if example.pictures]


def html(results: Results, thumbnails: Mapping[int, str]) -> str:
    """The whole page. `thumbnails` are addresses by row."""
    return template("report.html.j2").render(view(results), thumbnails=thumbnails)


def view(results: Results) -> dict[str, Any]:
    """All that the page shows, but for the thumbnails. Pure."""
    run, metrics = results.run, results.metrics
    colours = verdict_colours(metrics["verdicts"], metrics["success"], metrics["unscorable"])
    groups = group_examples(results, colours)
    asked = next((row for row in results.before + results.after if row["images"]), None)
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
        "some_unscorable": any(counts.get(metrics["unscorable"]) for counts in metrics["verdicts"].values() if counts),
        "classes": view_classes(metrics),
        "groups": groups,
        "asked": clip(last_turn(asked), "context") if asked else None,
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


def verdict_colours(verdicts: Mapping[str, Any], success: str, unscorable: str | None) -> dict[str, str]:
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
