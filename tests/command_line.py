"""Fixtures that run command lines inside the tests' own process (`pytest_plugins = ("tests.command_line",)`)."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import entrypoint
from finetune import hardware, launch
from finetune.plan import Plan
from tests.machines import NO_GPU, disk

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def clean_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, no token, no FINETUNE_ variable, and a machine without a GPU, with room for any model."""
    for name in [name for name in os.environ if name.startswith("FINETUNE_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hardware, "detect", lambda: NO_GPU)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: disk(free_gib=10_000))


@pytest.fixture
def run(clean_place: None, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in this process: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            entrypoint.main(list(arguments))
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], dict[str, str]]]:
    """What would have been exec'd."""
    calls: list[tuple[list[str], dict[str, str]]] = []

    def execve(path: str, argv: list[str], environment: dict[str, str]) -> None:
        calls.append((argv, environment))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # as the program does that takes over
        raise SystemExit(0)

    monkeypatch.setattr(launch.os, "execve", execve)
    return calls


@pytest.fixture
def planned(run: Run) -> Callable[..., Plan]:
    """The plan of a command line that has no mistakes."""

    def planned(*arguments: str) -> Plan:
        code, out, err = run("plan", "--json", *arguments)
        assert (code, err) == (0, "")
        return Plan.from_json(out)

    return planned
