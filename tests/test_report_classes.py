"""The report of a classification: who was taken for whom, each class by itself, and pictures of what changed."""

import json
import re
from pathlib import Path

import pytest
import yaml

from finetune import report, report_classes, report_html, report_images, report_text
from finetune.settings import Settings
from finetune.tasks.base import Unusable
from tests.run_dirs import make_pets_run
from tests.test_report_html import Page, page


def metrics_of(run_dir: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run_dir / "metrics.json").read_text())
    return found


@pytest.mark.parametrize("classes", [2, 5, 37, 100])
def test_page_is_well_formed_and_asks_for_nothing(tmp_path: Path, classes: int) -> None:
    text = page(make_pets_run(tmp_path, classes=classes, each=4))
    parsed = Page(text)
    sources = [value or "" for name, value in parsed.attributes if name == "src"]
    assert sources and all(source.startswith("data:image/jpeg;base64,") for source in sources)
    assert not {"script", "link", "iframe"} & set(parsed.tags)
    assert not re.search(r"https?://|url\(|@import", text)
    assert "img-src data:" in text and "default-src 'none'" in text
    assert len(text) < 2_000_000


def test_metrics_have_every_class_and_every_pair(tmp_path: Path) -> None:
    metrics = json.loads((make_pets_run(tmp_path, classes=5, each=8) / "metrics.json").read_text())
    assert len(metrics["classes"]) == 5 and metrics["unscorable"] is None
    for side in ("before", "after"):
        pairs = metrics["confusion"][side]
        assert sum(pair["rows"] for pair in pairs) == 40
        right = sum(pair["rows"] for pair in pairs if pair["expected"] == pair["answered"])
        assert right / 40 == pytest.approx(metrics[side]["accuracy"]["value"])
        assert [entry["class"] for entry in metrics["per_class"][side]] == metrics["classes"]
        assert {entry["rows"] for entry in metrics["per_class"][side]} == {8}


def test_the_matrix_draws_each_pair_in_its_place() -> None:
    counts = {("a", "a"): 3, ("a", "b"): 1, ("b", "unknown"): 2}
    matrix = report_classes.draw("after", ["a", "b"], ["a", "b", "unknown"], counts)
    size, gap = matrix.size, report_classes.GAP
    found = {(cell.x, cell.y): (cell.right, cell.count, cell.text) for cell in matrix.cells}
    assert found == {
        (0, 0): (True, "3", "a, answered a: 3 of 4 (75%)"),
        (size, 0): (False, "1", "a, answered b: 1 of 4 (25%)"),
        (2 * size + gap, size): (False, "2", "b, answered unknown: 2 of 2 (100%)"),
    }
    shades = [cell.opacity for cell in matrix.cells]
    assert shades[2] == 1.0 > shades[0] > shades[1] > 0


def test_of_many_classes_the_most_confused_are_drawn(tmp_path: Path) -> None:
    found = report_classes.view_classes(metrics_of(make_pets_run(tmp_path, classes=100, each=4)))
    assert found is not None
    assert (found["total"], found["drawn"]) == (100, 40)
    assert len(found["open"]) + len(found["folded"]) == 100
    matrix = found["matrices"][-1]
    assert len(matrix.rows) == 40 and any(column.full == "other classes" for column in matrix.columns)
    last = [row.f1["after"] for row in (*found["open"], *found["folded"])]
    assert last == sorted(last), "the weakest class first"


@pytest.mark.parametrize("sides", [(), ("before",), ("after",)])
def test_what_was_not_measured_is_not_drawn(tmp_path: Path, sides: tuple[str, ...]) -> None:
    run_dir = make_pets_run(tmp_path, classes=5, each=4, sides=sides)
    text = page(run_dir)
    Page(text)
    assert ('id="classes"' in text) is bool(sides)
    assert report_text.markdown_summary(run_dir, "out")


def test_a_missing_thumbnail_leaves_its_place_empty(tmp_path: Path) -> None:
    run_dir = make_pets_run(tmp_path, classes=5, each=4, thumbnails=False)
    assert "no picture" in page(run_dir) and "data:image" not in page(run_dir)
    rows = report_html.shown_rows(report.read_results(run_dir))
    report_images.write_thumbnails(run_dir, {rows[0]: lambda: Unusable("gone")})
    assert not list((run_dir / "thumbnails").iterdir())


def test_pictures_names_and_classes_are_text(tmp_path: Path) -> None:
    run_dir = make_pets_run(tmp_path, classes=2, each=4)
    payload = "<script>alert(1)</script>"
    for name in ("metrics.json", "predictions-before.jsonl", "predictions-after.jsonl"):
        path = run_dir / name
        text = path.read_text().replace("Amber Cat", payload).replace("images/", payload)
        path.write_text(text)
    parsed = Page(page(run_dir))
    assert "script" not in parsed.tags
    assert sum(payload in text for text in parsed.text) >= 5


def test_the_long_prompt_stands_once(tmp_path: Path) -> None:
    text = page(make_pets_run(tmp_path, classes=37, each=4))
    assert text.count("Answer with the name alone.") == 1


def test_the_card_asks_with_the_real_prompt_and_a_picture(tmp_path: Path) -> None:
    settings = Settings(task="pets", model_id="google/gemma-4-31B-it", dataset="timm/oxford-iiit-pet")
    run_dir = make_pets_run(tmp_path, classes=5, each=4, settings=settings)
    report_text.write_card(run_dir)
    card = (run_dir / "adapter" / "README.md").read_text(encoding="utf-8")
    assert yaml.safe_load(card.split("---\n", 2)[1])["pipeline_tag"] == "image-text-to-text"
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    compile(code, "README.md", "exec")
    assert "AutoProcessor" in code and "Which of these does the picture show?" in code
    assert all(name in code for name in json.loads((run_dir / "metrics.json").read_text())["classes"])
    assert '"image"' in code and "images/" not in card, "no row of the data is in it"


def test_the_summary_names_the_weakest_classes(tmp_path: Path) -> None:
    summary = report_text.markdown_summary(make_pets_run(tmp_path, classes=37, each=4), "out")
    assert "| Macro-F1 " in summary and "Weakest of 37 classes (F1):" in summary
    assert "unscorable" not in summary
