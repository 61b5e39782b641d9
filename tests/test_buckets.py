"""gs:// wherever a path is asked for, by the real command line on the real fake-gcs-server; and what can be wrong."""

import json
import subprocess
import sys
from collections.abc import Iterator
from os import environ
from pathlib import Path
from typing import Any

import pytest

from finetune.embedded.sql_rows import rows
from tests import bucket, cloud_storage
from tests.conftest import ROOT

pytest_plugins = ("tests.command_line",)
OUT = "gs://runs/first"
WORDS = (
    *("--model-id", "gs://data/model/", "--dataset", "gs://data/rows", "--output-dir", OUT, "--num-epochs", "1"),
    *("--results-file", "gs://runs/numbers/first.json", "--save-steps", "2", "--train-size", "40", "--eval-size", "8"),
    *("--max-new-tokens", "12"),
)


@pytest.fixture(scope="module")
def cloud(tiny_model: Path) -> Iterator[Any]:
    """The buckets data, with a model and rows, and runs, with nothing: gcsfs on them, and a command line."""
    with cloud_storage.serve("data", "runs") as (url, storage):
        for path in tiny_model.iterdir():
            storage.put_file(str(path), f"data/model/{path.name}")
        for split, count in (("train", 40), ("test", 12)):
            text = "".join(json.dumps(row) + "\n" for row in rows(split, count, 3))
            storage.pipe_file(f"data/rows/{split}.jsonl", text.encode())

        def call(*arguments: str) -> tuple[int, str]:
            command = [sys.executable, str(ROOT / "entrypoint.py"), *arguments]
            known = {**environ, **bucket.environment(url)}
            done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=300)
            return done.returncode, done.stdout + done.stderr

        yield storage, call


@pytest.mark.slow
def test_a_run_between_buckets(cloud: Any, tmp_path: Path) -> None:
    storage, call = cloud
    code, log = call("run", *WORDS)
    assert code == 0, log
    assert f"report   {OUT}/report.html" in log and f"leaves        {OUT}/: adapter" in log
    there = {name.removeprefix("runs/first/") for name in storage.find("runs/first")}
    names = {"adapter/adapter_model.safetensors", "report.html", "run.json", "plan.json", "predictions-after.jsonl"}
    assert names | {"checkpoints/step-2/COMMITTED"} <= there
    assert storage.cat_file("runs/numbers/first.json") == storage.cat_file("runs/first/metrics.json")
    assert not list(Path.cwd().glob("gs:*"))

    code, log = call("run", *WORDS)
    assert code == 0 and f"{OUT} holds this very run, finished: there is nothing to do" in log

    code, log = call("plan", *WORDS, "--output-dir", "gs://runs/second", "--resume-from", f"{OUT}/checkpoints/step-2")
    assert code == 0 and "goes on from step-2" in log

    code, log = call(
        *("evaluate", "--adapter", f"{OUT}/adapter", "--model-id", "gs://data/model", "--dataset", "gs://data/rows"),
        *("--eval-size", "8", "--max-new-tokens", "12", "--output-dir", str(tmp_path)),
    )
    assert code == 0, log
    ours = json.loads((tmp_path / "evaluation-test" / "metrics.json").read_text())
    assert ours["after"] == json.loads(storage.cat_file("runs/first/metrics.json"))["after"]

    before = storage.info("runs/first/report.html")["updated"]
    code, log = call("merge", "--output-dir", OUT)
    storage.invalidate_cache()
    assert f"> merging gs://data/model and {OUT}/adapter into {OUT}/merged" in log
    assert storage.exists("runs/first/merged/model.safetensors"), log
    assert storage.info("runs/first/report.html")["updated"] == before, "what was not changed is not sent again"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("--model-id gs://data/nothing", "--model-id: gs://data/nothing: "),
        ("--model-id gs://data/rows", "--model-id: gs://data/rows: "),
        ("--dataset gs://data/nothing", "--dataset: gs://data/nothing: there is nothing there"),
        ("--output-dir gs://none/out", "--output-dir: gs://none/out cannot be listed: there is no such"),
        (
            "--output-dir gs://closed/out",
            "--output-dir: gs://closed/out cannot be listed: this machine's account may not do that",
        ),
        ("--output-dir gs:/data/out", "--output-dir: 'gs:/data/out' is not a path in a bucket"),
        ("--output-dir s3://data/out", "--output-dir: 's3://data/out' is not a path in a bucket"),
        ("--resume-from gs://data/nothing", "--resume-from: gs://data/nothing: no checkpoint is there"),
        ("--results-file gs://data/", "--results-file: 'gs://data/' is not a file in a bucket"),
        ("evaluate --adapter gs://data/rows", "--adapter: gs://data/rows: "),
    ],
)
def test_what_is_wrong_with_a_bucket_is_told_before_anything_starts(
    arguments: str, told: str, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bucket.serve("data", "closed") as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        storage.closed = {"closed"}
        storage.objects["data/rows/train.jsonl"] = b"{}"
        code, _, err = run(*arguments.split())
    assert code == 2 and told in err
    assert "Traceback" not in err
