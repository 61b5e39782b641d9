"""journal.py: what cannot be kept is tried again, then told; what was kept before stays."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finetune import commits, journal
from finetune.errors import StorageError, UsageError
from finetune.journal import STATE, Answers, Journal, Recalled
from finetune.storage import LocalFolder, open_folder
from tests.test_train import plan

pytest_plugins = ("tests.places",)
ABOUT = {"seconds": {"load": 2.5}, "starts": [{"at": "then", "from": None}], "data": "abc"}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "PAUSES_S", (0.0, 0.0, 0.0))


def begin(place: str | Path, tmp_path: Path, said: list[str], **changes: Any) -> Journal:
    run = plan(Path("model"), Path(place), save_total_limit=1)
    run = replace(run, settings=replace(run.settings, output_dir=str(place), **changes))
    return Journal(run, tmp_path / "scratch", said.append, lambda: ABOUT)


def keep(book: Journal, step: int, text: str = "") -> None:
    folder = book.step_folder(step)
    (folder / STATE).write_text(json.dumps({"step": step, "text": text}))
    book.keep_step(folder, step)


def kept(place: str | Path) -> list[str]:
    return [commit.name for commit in commits.find(open_folder(f"{place}/checkpoints")).commits]


def test_what_was_kept_is_recalled(place: str, tmp_path: Path) -> None:
    said: list[str] = []
    book = begin(place, tmp_path, said)
    assert book.recall() == Recalled()
    answers = Answers(2, 5, 4, 1, {0: "a", 3: "b"})
    book.keep_answers("before", answers)
    keep(book, 7)
    keep(book, 9)
    book.wait()
    assert kept(place) == ["before-2", "step-9"]
    found = begin(place, tmp_path, said).recall()
    assert (found.step, found.state, found.data, found.seconds) == (
        "step-9",
        {"step": 9, "text": ""},
        "abc",
        {"load": 2.5},
    )
    assert found.answers == {"before": answers} and found.starts == tuple(ABOUT["starts"])
    assert said == []


def test_a_damaged_one_is_told_and_the_one_before_it_counts(tmp_path: Path) -> None:
    said: list[str] = []
    book = begin(tmp_path / "out", tmp_path, said, save_total_limit=3)
    for step in (7, 8, 9):
        keep(book, step)
    book.wait()
    state = tmp_path / "out" / "checkpoints" / "step-9" / STATE
    state.write_bytes(state.read_bytes().replace(b"9", b"8"))
    (tmp_path / "out" / "checkpoints" / "step-8" / STATE).unlink()
    assert begin(tmp_path / "out", tmp_path, said).recall().step == "step-7"
    assert said == ["  step-9 does not count: state.json is not what its checksum says"]
    assert commits.find(LocalFolder(tmp_path / "out" / "checkpoints")).skipped == {"step-8": "state.json is missing"}


def failing(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    original, left = LocalFolder.put, [times]

    def put(self: LocalFolder, name: str, source: Path) -> None:
        if left[0]:
            left[0] -= 1
            raise StorageError("No space left on device", "make room")
        original(self, name, source)

    monkeypatch.setattr(LocalFolder, "put", put)


def test_a_disk_that_is_full_for_a_while_costs_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    book = begin(tmp_path / "out", tmp_path, said)
    failing(monkeypatch, 3)
    keep(book, 7)
    book.wait()
    assert kept(tmp_path / "out") == ["step-7"]
    assert said == ["  checkpoint step-7 was not kept (No space left on device); trying again in 0 s"] * 3


def test_one_that_stays_full_ends_the_run_and_the_last_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = begin(tmp_path / "out", tmp_path, [])
    keep(book, 7)
    book.wait()
    failing(monkeypatch, 99)
    keep(book, 9)
    book.finish()
    with pytest.raises(StorageError, match="checkpoint step-9 could not be kept: No space left on device") as found:
        book.check()
    assert "make room; what was kept before is whole" in found.value.hint and found.value.exit_code == 8
    assert kept(tmp_path / "out") == ["step-7"]


def test_writing_goes_on_while_training_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from threading import Event

    may, original = Event(), LocalFolder.put
    monkeypatch.setattr(LocalFolder, "put", lambda *args: may.wait(20) and original(*args))
    book = begin(tmp_path / "out", tmp_path, [])
    keep(book, 7)
    book.check()
    assert kept(tmp_path / "out") == []
    may.set()
    book.wait()
    assert kept(tmp_path / "out") == ["step-7"]


def test_other_rows_are_refused(tmp_path: Path) -> None:
    keep(book := begin(tmp_path / "out", tmp_path, []), 7)
    book.wait()
    for changes in ({}, {"resume_anyway": True}):
        again = begin(tmp_path / "out", tmp_path, [], **changes)
        again.recall()
        again.check_data("abc")
        if changes:
            again.check_data("other")
        else:
            with pytest.raises(UsageError, match="its rows are not those that step-7 was trained on"):
                again.check_data("other")


def test_a_checkpoint_of_another_run_counts_only_if_it_is_asked_for(tmp_path: Path) -> None:
    keep(book := begin(tmp_path / "out", tmp_path, []), 7)
    book.wait()
    said: list[str] = []
    assert begin(tmp_path / "out", tmp_path, said, lora_r=3).recall().step is None
    assert "step-7 does not count: it is that of another run: --lora-r 3, then 16" in said[0]
    assert begin(tmp_path / "out", tmp_path, said, lora_r=3, resume_anyway=True).recall().step == "step-7"
    assert begin(tmp_path / "new", tmp_path, said, resume_from=str(tmp_path / "out")).recall().step == "step-7"
