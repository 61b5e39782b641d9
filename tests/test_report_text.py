"""The model card, the summary on the terminal, and how numbers are written."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from finetune import report_html, report_text
from finetune.hardware import Gpu, Machine
from finetune.settings import Settings
from tests.run_dirs import make_record, make_run


def test_card_front_matter_is_what_the_hub_reads(tmp_path: Path) -> None:
    settings = Settings(model_id="google/gemma-4-31B-it", dataset="someone/questions")
    data = make_record(settings)["data"] | {"source": "someone/questions"}
    gpus = tuple(Gpu(index, "NVIDIA B200", 178.4, 10.0) for index in range(8))
    run_dir = make_run(tmp_path, settings=settings, data=data, machine=asdict(Machine(gpus)))
    report_text.write_card(run_dir)
    _, front, body = (run_dir / "adapter" / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    assert yaml.safe_load(front) == {
        "base_model": "google/gemma-4-31B-it",
        "base_model_relation": "adapter",
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "datasets": ["someone/questions"],
        "tags": ["gemma4", "lora", "transformers", "text-to-sql"],
    }
    assert "8 × NVIDIA B200 (178 GiB)" in body and "toy" not in body
    assert "| Execution accuracy |" in body
    (code,) = re.findall(r"```python\n(.*?)```", body, re.DOTALL)
    compile(code, "README.md", "exec")


@pytest.mark.parametrize("model", ["embedded", "/data/private/gemma"])
def test_card_names_no_folder_and_shows_no_row(tmp_path: Path, model: str) -> None:
    data = make_record(Settings())["data"] | {"source": "/data/private/rows.jsonl"}
    run_dir = make_run(tmp_path, settings=Settings(model_id=model, dataset="/data/private/rows.jsonl"), data=data)
    report_text.write_card(run_dir)
    card = (run_dir / "adapter" / "README.md").read_text(encoding="utf-8")
    assert "private" not in card and "rivers" not in card
    assert "base_model" not in yaml.safe_load(card.split("---\n", 2)[1])
    assert ("This is a toy" in card) == (model == "embedded")
    assert "[sql_context]" in card
    compile(re.findall(r"```python\n(.*?)```", card, re.DOTALL)[0], "README.md", "exec")


@pytest.mark.parametrize(("epochs", "text"), [(1.0, "(1 epoch)"), (0.5, "(0.5 epochs)"), (2.0, "(2 epochs)")])
def test_card_says_what_was_trained(tmp_path: Path, epochs: float, text: str) -> None:
    training = make_record(Settings())["training"] | {"epochs": epochs}
    report_text.write_card(run_dir := make_run(tmp_path, training=training))
    assert text in (run_dir / "adapter" / "README.md").read_text(encoding="utf-8")


def test_summary_is_an_aligned_table_and_says_where_things_are(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    report_html.write_html(run_dir)
    summary = report_text.markdown_summary(run_dir, "out")
    table = [line for line in summary.splitlines() if line.startswith("|")]
    assert len(table) == 5 and len({len(line) for line in table}) == 1
    assert "200 rows of the test split, 8 of them unscorable" in summary
    assert "train 1 min 10 s" in summary
    assert "out/report.html" in summary and "adapter" not in summary.splitlines()[-1]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0.2 s"),
        (9.96, "10 s"),
        (59.6, "1 min 0 s"),
        (70.1, "1 min 10 s"),
        (3599.7, "1 h 0 min"),
        (9060, "2 h 31 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert report_text.duration(seconds) == text


@pytest.mark.parametrize(
    ("points", "text"), [(71.87, "+71.9 points"), (-3.04, "−3.0 points"), (0.01, "0 points"), (None, "–")]
)
def test_changes(points: float | None, text: str) -> None:
    assert report_text.change(points) == text


def test_labels_spell_acronyms() -> None:
    assert report_text.label("valid_sql") == "Valid SQL"
    assert report_text.label("macro_f1") == "Macro F1"


def test_hub_ids() -> None:
    assert report_text.is_hub_id("google/gemma-4-31B-it")
    assert not any(map(report_text.is_hub_id, ("embedded", "/a/b", "a/b/c", "data.jsonl", "tests/bench", None)))


def test_memory_used_stands_beside_what_was_planned() -> None:
    planned = {
        "there_gib": 80.0,
        "stages_gib": {"loading": {"weights": 58.3, "other": 5.9}, "training": {"weights": 9.0}},
    }
    record = {"planned": planned, "measured_gib": {"load": 61.0, "train": 8.5, "save": 2.0}}
    assert (
        report_text.memory(record)
        == "GPU memory: load 61.0 GiB of 64.2 planned, train 8.5 GiB of 9.0 planned, save 2.0 GiB"
    )
    assert report_text.memory({"planned": None, "measured_gib": {}}) == report_text.memory({}) == ""
