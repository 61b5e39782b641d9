"""Every kind of mistake on the command line: told in a line and a hint, exit code 2, and never a traceback."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

pytest_plugins = ("tests.command_line",)
Run = Callable[..., tuple[int, str, str]]

# arguments, environment, run.yaml, words that the message has
MISTAKES: list[tuple[str, Mapping[str, str], str, tuple[str, ...]]] = [
    ("--learnig-rate 3", {}, "", ("--learnig-rate: no such flag", "did you mean --learning-rate?")),
    ("--learnig_rate=3", {}, "", ("--learnig_rate: no such flag", "did you mean --learning-rate?")),
    ("--learn 3", {}, "", ("--learn: no such flag",)),
    ("-x 3", {}, "", ("-x: no such flag", "run --help lists all")),
    (
        "--learning-rate fast",
        {},
        "",
        ("--learning-rate: 'fast' is not a number, above 0", "write --learning-rate 1e-05"),
    ),
    ("--num_epochs 0", {}, "", ("--num_epochs: 0 is out of range; expected a number, above 0",)),
    ("--batch-size 1.5", {}, "", ("--batch-size: '1.5' is not a whole number, at least 1",)),
    ("--lora-r -1", {}, "", ("--lora-r: -1 is out of range",)),
    ("--learning-rate", {}, "", ("--learning-rate: needs a value",)),
    ("--learning-rate --merge", {}, "", ("--learning-rate: needs a value, found the flag --merge",)),
    ("--merge maybe", {}, "", ("--merge: 'maybe' is not true or false",)),
    ("--merge --no-merge", {}, "", ("--merge: given together with --no-merge",)),
    ("--task text2sql", {}, "", ("--task: 'text2sql' is not known; expected text-to-sql", "--task text-to-sql")),
    ("--profile b200", {}, "", ("--profile: 'b200' is not known", "did you mean --profile b200x8")),
    ("--profile b200x8", {}, "", ("b200x8 needs 8 x B200; this machine has no GPU",)),
    ("--device gpu", {}, "", ("--device: 'gpu' is not known; expected auto, cuda or cpu",)),
    ("--device cuda", {}, "", ("--device: no GPU to use: no NVIDIA driver here", "--device cpu")),
    ("--split test", {}, "", ("--split: not a flag of this command", "it is one of: entrypoint.py evaluate")),
    ("--hf-token", {}, "", ("--hf-token: needs a value",)),
    ("--config --merge", {}, "", ("--config: needs a value, found the flag --merge",)),
    ("evaluate --adapter", {}, "", ("--adapter: needs a value",)),
    ("evaluate --split tst", {}, "", ("--split: 'tst' is not known; expected test or train", "--split test")),
    ("evaluate --adapter nowhere", {}, "", ("--adapter: nowhere: nothing is there",)),
    ("evaluate --eval-size 0", {}, "", ("--eval-size: 0 rows leave nothing to evaluate",)),
    ("rn", {}, "", ("rn: no such command", "did you mean run?")),
    ("rows.jsonl", {}, "", ("rows.jsonl: no such command", "run, plan, evaluate, merge, stage and doctor")),
    ("run rows.jsonl", {}, "", ("rows.jsonl: not expected here", "a value follows its flag")),
    ("--seed 1 plan", {}, "", ("plan: not expected here", "a command comes first: entrypoint.py plan")),
    ("--model-id nowhere", {}, "", ("--model-id: nowhere: no such folder, and not a hub id either",)),
    ("--dataset rows.jsonl", {}, "", ("--dataset: rows.jsonl: no such file or folder",)),
    ("--attn-implementation flash_attention_2", {}, "", ("heads of at most 256", "--attn-implementation sdpa")),
    ("--push-to-hub", {}, "", ("--push-to-hub: there is no token for the hub", "HF_TOKEN")),
    ("--gcs-output-path s3://a/b", {}, "", ("'s3://a/b' is not a path in a bucket", "gs://BUCKET/PATH")),
    ("--output-dir run.yaml", {}, "seed: 1", ("--output-dir: ", "run.yaml is a file; expected a folder")),
    ("--results-file .", {}, "", ("--results-file: . is a folder; expected a file",)),
    ("--config none.yaml", {}, "", ("--config none.yaml: no such file",)),
    ("--config .", {}, "", ("--config .: is a folder",)),
    ("--config run.yaml", {}, "- a", ("run.yaml:1: expected `name: value` lines, found a list",)),
    ("--config run.yaml", {}, "a: b: c", ("run.yaml:1: is not YAML",)),
    ("--config run.yaml", {}, "\nlora_rnk: 3", ("run.yaml:2: lora_rnk: no such setting", "did you mean lora_r?")),
    ("--config run.yaml", {}, "seed: 1\nseed: 2", ("run.yaml:2: seed: given twice, first on line 1",)),
    ("--config run.yaml", {}, "seed: x", ("run.yaml:1: seed: 'x' is not a whole number", "write seed: 42")),
    ("--config run.yaml", {}, "hf_token: hf_x", ("run.yaml:1: hf_token: not a setting", "HF_TOKEN")),
    ("", {"FINETUNE_SEED": "x"}, "", ("FINETUNE_SEED: 'x' is not a whole number", "write FINETUNE_SEED=42")),
    ("", {"FINETUNE_SEEED": "1"}, "", ("FINETUNE_SEEED: no such setting", "did you mean FINETUNE_SEED?")),
    ("--plan none.json", {}, "", ("--plan none.json: cannot be read: No such file",)),
    ("--plan run.yaml", {}, "seed: 1", ("--plan run.yaml: the plan is not JSON: line 1",)),
]


@pytest.mark.parametrize(("arguments", "environ", "config", "words"), MISTAKES)
def test_mistakes(
    run: Run,
    started: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: str,
    environ: Mapping[str, str],
    config: str,
    words: tuple[str, ...],
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    if config:
        (tmp_path / "run.yaml").write_text(config)
    code, out, err = run(*arguments.split())
    assert (code, out, started) == (2, "", [])
    assert "Traceback" not in err
    assert err.startswith("error: ")
    for part in words:
        assert part in err
    assert not (tmp_path / "out").exists()


def test_all_mistakes_of_a_command_are_told_together(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.yaml").write_text("lora_rnk: 3\nmerge: 5\n")
    monkeypatch.setenv("FINETUNE_SEEED", "1")
    words = ["--config", "run.yaml", "--learnig-rate", "3", "--lora_r", "0", "--task", "x"]
    words += ["--dataset", "no.jsonl", "--push-to-hub", "--max-length"]
    code, _, err = run(*words)
    assert code == 2
    assert err.count("error: ") == err.count("hint: ") == 9


def test_the_real_process_tells_a_mistake_and_gives_its_code(tmp_path: Path) -> None:
    """Once through the shell: what the tests above run inside their own process."""
    argv = [sys.executable, str(ROOT / "entrypoint.py"), "--lora-r", "x"]
    ended = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "error: --lora-r: 'x' is not a whole number, at least 1\n  hint: write --lora-r 16\n"
