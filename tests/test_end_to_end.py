"""The whole job as a user runs it: the real entrypoint, the real accelerate launch, on one CPU process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from finetune.embedded.sql_rows import rows
from tests.conftest import ROOT

pytestmark = pytest.mark.slow
TOKEN = "hf_MARKERTOKENthatMustNotLeak"


def entrypoint(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "entrypoint.py"), *map(str, arguments)]
    environment = {**os.environ, "HF_TOKEN": TOKEN}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished run's folder (data/ and out/), and what it printed."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "data").mkdir()
    for split, count in (("train", 40), ("test", 12)):
        text = "".join(json.dumps(row) + "\n" for row in rows(split, count, 3))
        (folder / "data" / f"{split}.jsonl").write_text(text)
    with (folder / "data" / "train.jsonl").open("a") as file:
        file.write('{"sql_prompt": "Why?", "sql_context": "CREATE TABLE t (a INT)", "sql": null}\n{broken\n')
    done = entrypoint(
        "--model_id", tiny_model, "--dataset_name", "data", "--output_dir", "out", "--eval-size", "10",
        "--num-epochs", "1", "--batch-size", "4", "--gradient-accumulation-steps", "2", "--learning_rate", "0.01",
        "--max_length", "1024", "--max-new-tokens", "16", "--save_steps", "3", "--results-file", "results/metrics.json",
        cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout + done.stderr


def test_a_run_leaves_everything(finished: tuple[Path, str]) -> None:
    out = finished[0] / "out"
    for name in (
        "run.json", "plan.json", "metrics.json", "predictions-before.jsonl", "predictions-after.jsonl", "report.html",
        "adapter/adapter_model.safetensors", "adapter/adapter_config.json", "adapter/README.md",
        "adapter/tokenizer.json", "checkpoints/step-3/COMMITTED",
    ):  # fmt: skip
        assert (out / name).exists(), name
    assert list((out / "logs").glob("events.out.tfevents.*")), "TensorBoard"
    assert read(finished[0] / "results" / "metrics.json") == read(out / "metrics.json")


def test_the_record_says_what_was_dropped_and_done(finished: tuple[Path, str]) -> None:
    run = read(finished[0] / "out" / "run.json")
    assert run["data"]["train"] == {
        "read": 42,
        "used": 40,
        "dropped": {"sql is missing": {"count": 1, "rows": [41]}, "not valid JSON": {"count": 1, "rows": [42]}},
    }
    assert run["status"] == "finished" and run["training"]["steps"] == 5
    assert run["model"]["adapted_by_part"]["vision"] == 0 < run["model"]["adapted_by_part"]["text"]
    assert set(run["seconds"]) == {"load", "before", "train", "save", "after", "total"}


def test_predictions_are_the_held_out_rows_before_and_after(finished: tuple[Path, str]) -> None:
    before, after = (lines(finished[0] / "out" / f"predictions-{when}.jsonl") for when in ("before", "after"))
    assert [row["row"] for row in before] == [row["row"] for row in after]
    assert len(before) == 10
    gold = {number: row["sql"] for number, row in enumerate(rows("test", 12, 3), start=1)}
    assert all(row["answer"] == gold[row["row"]] for row in before)


def test_the_user_sees_progress_and_no_noise(finished: tuple[Path, str]) -> None:
    text = finished[1]
    for words in ("step 5/5  loss ", "grad-norm", "tokens/s", "measuring the base model on 10 held-out rows", "report"):
        assert words in text, words
    for words in ("Traceback", "Warning", "deprecated"):
        assert words not in text, words


def test_the_token_is_nowhere(finished: tuple[Path, str]) -> None:
    assert TOKEN not in finished[1]
    files = [path for path in (finished[0] / "out").rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]


def test_a_second_run_into_the_same_place_is_refused(finished: tuple[Path, str]) -> None:
    before = (finished[0] / "out" / "run.json").read_bytes()
    done = entrypoint("run", "--output-dir", "out", cwd=finished[0])
    assert done.returncode == 2
    assert "holds the results of an earlier run" in done.stderr and "--overwrite" in done.stderr
    assert (finished[0] / "out" / "run.json").read_bytes() == before


def test_the_plan_repeats_the_run_bit_for_bit(finished: tuple[Path, str]) -> None:
    folder = finished[0]
    done = entrypoint("run", "--plan", "out/plan.json", "--output-dir", "again", cwd=folder)
    assert done.returncode == 0, done.stderr
    name = "adapter/adapter_model.safetensors"
    assert (folder / "again" / name).read_bytes() == (folder / "out" / name).read_bytes()
    assert read(folder / "again" / "metrics.json") == read(folder / "out" / "metrics.json")


def test_evaluating_the_adapter_gives_the_runs_own_numbers(finished: tuple[Path, str]) -> None:
    folder = finished[0]
    kept = (folder / "out" / "metrics.json").read_bytes()
    done = entrypoint(
        "evaluate", "--adapter", "out/adapter", "--dataset", "data", "--output-dir", "out", "--eval-size", "10",
        "--max-length", "1024", "--max-new-tokens", "16", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = read(folder / "out" / "evaluation-test" / "metrics.json")
    assert found["after"] == read(folder / "out" / "metrics.json")["after"]
    assert (folder / "out" / "metrics.json").read_bytes() == kept
    ran = lines(folder / "out" / "predictions-after.jsonl")
    assert [row["completion"] for row in lines(folder / "out" / "evaluation-test" / "predictions-after.jsonl")] == [
        row["completion"] for row in ran
    ]


def test_data_that_does_not_fit_is_told_in_a_line(finished: tuple[Path, str], tiny_model: Path) -> None:
    done = entrypoint(
        "--model-id", tiny_model, "--dataset", "data", "--output-dir", "none", "--max-length", "20",
        "--max-new-tokens", "8", cwd=finished[0],
    )  # fmt: skip
    assert done.returncode == 3
    assert "no row is left to train on" in done.stderr and "longer than --max-length 20" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_learns_sql(tmp_path: Path) -> None:
    """`make demo`'s run: at least 50 points of execution accuracy on held-out rows, from the committed base."""
    done = entrypoint("run", "--profile", "cpu", "--output-dir", "demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    metrics = read(tmp_path / "demo" / "metrics.json")
    before, after = (metrics[when]["execution accuracy"] for when in ("before", "after"))
    assert before["total"] >= 190
    assert after["value"] - before["value"] >= 0.5, (before, after)
