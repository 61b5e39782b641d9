"""report.html: one file, well-formed, small, and safe whatever the model wrote."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from finetune import report, report_examples, report_html, report_text
from finetune.settings import Settings
from finetune.tasks.base import Example
from tests.run_dirs import make_examples, make_record, make_run

VOID_TAGS = {"meta", "br", "hr", "img", "input", "link"}


def page(run_dir: Path) -> str:
    report_html.write_html(run_dir)
    return (run_dir / "report.html").read_text(encoding="utf-8")


class Page(HTMLParser):
    """Reads a page, checks that its tags are balanced, and keeps its tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID_TAGS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_page_is_well_formed_and_asks_for_nothing(tmp_path: Path) -> None:
    text = page(make_run(tmp_path))
    parsed = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(parsed.tags)
    links = [value for name, value in parsed.attributes if name in ("src", "href", "xlink:href", "action")]
    assert all(value and value.startswith("#") for value in links)
    assert not [name for name, _ in parsed.attributes if name.startswith("on")]
    assert not re.search(r"https?://|url\(|@import", text)


def test_page_tells_the_numbers(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    words = " ".join(" ".join(Page(page(run_dir)).text).split())
    after = json.loads((run_dir / "metrics.json").read_text())["after"]["execution_accuracy"]
    for expected in (
        f"{after['value'] * 100:.1f} %",
        f"{after['low'] * 100:.1f}–{after['high'] * 100:.1f}",
        "12 of 146 shown",
        "10 dropped: sql is empty (rows 3, 17, 40, 41, 77, …)",
        "1 dropped: sql is missing (row 9)",
        "save_strategy is ignored",
        "CPU (2 cores)",
        "1 min 35 s",
    ):
        assert expected in words


@pytest.mark.parametrize(
    "payload", ["<script>alert(1)</script>", "</details></pre><img src=x onerror=alert(1)>", "{{ 7*7 }}"]
)
def test_completions_are_text(tmp_path: Path, payload: str) -> None:
    nasty = Example(1, make_examples(1)[0].prompt, payload, context={"schema": payload, payload: payload})
    run_dir = make_run(tmp_path, examples=[nasty] * 3, data=make_record(Settings())["data"] | {"notes": [payload]})
    parsed = Page(page(run_dir))
    assert not {"script", "img"} & set(parsed.tags)
    assert sum(payload in text for text in parsed.text) >= 5


def test_page_stays_small_whatever_came(tmp_path: Path) -> None:
    schema = "CREATE TABLE t (a INTEGER); " * 2000
    examples = [
        Example(i, e.prompt, e.answer * 50, context={"schema": schema}) for i, e in enumerate(make_examples(2500))
    ]
    text = page(make_run(tmp_path, examples=examples, training=make_record(Settings(), steps=30_000)["training"]))
    assert len(text.encode()) < 1_000_000
    assert "more characters)" in text


@pytest.mark.parametrize("sides", [(), ("before",), ("after",)])
def test_page_and_summary_of_what_was_measured(tmp_path: Path, sides: tuple[str, ...]) -> None:
    run_dir = make_run(tmp_path, sides=sides)
    text = page(run_dir)
    Page(text)
    assert ("Not measured" in text) == (not sides)
    assert "points</small>" not in text
    assert "The run ended before a measurement" in text or sides
    assert ("Not measured" in report_text.markdown_summary(run_dir, "out")) == (not sides)


def test_page_of_an_evaluation_or_of_a_run_too_short_to_log(tmp_path: Path) -> None:
    no_train = {**make_record(Settings())["data"], "train": {"read": 9, "used": 0, "dropped": {}}}
    seconds = {"load": 1.0, "after": 2.0, "total": 3.0}
    Page(
        page(
            make_run(
                tmp_path / "a", command="evaluate", training=None, data=no_train, seconds=seconds, sides=("after",)
            )
        )
    )
    unlogged = make_record(Settings())["training"] | {"history": []}
    assert "No step was logged" in page(make_run(tmp_path / "b", training=unlogged))


def test_page_of_a_task_without_context(tmp_path: Path) -> None:
    """The question falls back to the last user turn; nothing depends on the context's names."""
    examples = [Example(i, e.prompt, "Abyssinian") for i, e in enumerate(make_examples(20))]
    text = page(make_run(tmp_path, examples=examples))
    assert "&lt;QUESTION&gt;" in text


def test_groups_go_by_success_and_leave_out_the_unscorable() -> None:
    def rows(*labels: str) -> list[dict[str, Any]]:
        base = {
            "prompt": [],
            "images": [],
            "context": {"question": "?"},
            "answer": "x",
            "completion": "y",
            "detail": "",
        }
        return [base | {"row": number, "verdict": label} for number, label in enumerate(labels)]

    metrics = {"success": "right", "unscorable": "void"}
    before = rows("wrong", "right", "wrong", "right", "void", "void")
    after = rows("right", "wrong", "wrong", "right", "right", "void")
    groups = report_examples.group_examples(report.Results(Path(), {}, metrics, before, after), {})
    assert [(group.title, [example.row for example in group.shown]) for group in groups] == [
        ("Got better", [0]),
        ("Got worse", [1]),
        ("Still wrong", [2]),
    ]


def test_differences_are_marked_by_word() -> None:
    pieces = report_examples.mark_differences("SELECT a FROM t WHERE b > 3", "SELECT a FROM t WHERE b >= 3")
    assert [piece.text for piece in pieces if piece.differs] == ["="]
    assert "".join(piece.text for piece in pieces) == "SELECT a FROM t WHERE b >= 3"
    assert report_examples.mark_differences("SELECT 1", "what?") == [report_examples.Piece("what?")]
    assert report_examples.mark_differences("SELECT 1", "") == []
