"""Every kind of mistake on the command line: told in a line and a hint, exit code 2, and never a traceback."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT

pytest_plugins = ("tests.command_line",)
Run = Callable[..., tuple[int, str, str]]

MISTAKES: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests" / "mistakes.yaml").read_text())


def test_the_table_has_many_kinds() -> None:
    assert len(MISTAKES) >= 90
    assert len({entry["told"] for entry in MISTAKES}) >= 80


@pytest.mark.parametrize("entry", MISTAKES, ids=lambda entry: entry["write"] or "-")
def test_mistakes(
    run: Run, started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: Mapping[str, Any]
) -> None:
    for name, value in entry.get("environment", {}).items():
        monkeypatch.setenv(name, value)
    for name, text in entry.get("files", {}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    there = sorted(tmp_path.rglob("*"))
    code, out, err = run(*entry["write"].split())
    assert (code, out, started) == (2, "", [])
    assert err.replace(str(tmp_path), "HERE") == entry["told"]
    assert sorted(tmp_path.rglob("*")) == there, "nothing is written"


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
