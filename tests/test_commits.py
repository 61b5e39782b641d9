"""commits.py: what was cut short or changed since is never taken for whole."""

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finetune import commits
from finetune.commits import MARKER, Commit
from finetune.storage import LocalFolder, open_folder

pytest_plugins = ("tests.places",)
FILES = {"adapter_model.safetensors": b"abcdefgh" * 50, "optimizer.safetensors": b"0" * 300, "state.json": b'{"a": 1}'}


def source(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


def good(folder: commits.Folder, tmp: Path) -> list[str]:
    """The names of all commits that a run would go on from."""
    found = commits.find(folder)
    return [commit.name for commit in found.commits if commits.fetch(folder, commit, tmp / commit.name) is None]


def test_what_was_written_is_found_newest_first(place: str, tmp_path: Path) -> None:
    folder = open_folder(place)
    assert commits.find(folder) == commits.Found()
    for number in (5, 40, 7):
        commits.write(folder, source(tmp_path / "from"), "step", number, {"seconds": {"load": 1.5}})
    commits.write(folder, source(tmp_path / "from"), "before", 3, {})
    found = commits.find(folder)
    assert [commit.name for commit in found.commits] == ["before-3", "step-40", "step-7", "step-5"]
    assert found.of("step")[0].about == {"seconds": {"load": 1.5}} and found.skipped == {}
    assert commits.fetch(folder, found.of("step")[0], tmp_path / "to") is None
    assert {path.name: path.read_bytes() for path in (tmp_path / "to").iterdir()} == FILES


def test_older_ones_go_the_marker_first(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder(place)
    newest = [commits.write(folder, source(tmp_path / "from"), "step", number, {}) for number in (1, 2, 3, 4)][-1]
    commits.write(folder, source(tmp_path / "from"), "before", 1, {})
    folder.write("step-9/half", b"being written")
    folder.delete(f"step-2/{MARKER}")
    gone: list[str] = []
    delete = type(folder).delete
    monkeypatch.setattr(type(folder), "delete", lambda self, name: (gone.append(name), delete(self, name)))
    commits.prune(folder, newest, 2)
    assert {name.partition("/")[0] for name in folder.files()} == {"before-1", "step-3", "step-4", "step-9"}
    assert gone[0] == f"step-1/{MARKER}"


def test_a_name_that_is_written_again_does_not_count_until_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = LocalFolder(tmp_path / "to")
    commits.write(folder, source(tmp_path / "from"), "step", 1, {})
    monkeypatch.setattr(LocalFolder, "put", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        commits.write(folder, source(tmp_path / "from"), "step", 1, {})
    assert commits.find(folder).skipped == {"step-1": "it was not finished"}


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path / "to")
    (tmp_path / "to" / "checkpoint-3").mkdir(parents=True)
    (tmp_path / "to" / "checkpoint-3" / "optimizer.pt").touch()
    (tmp_path / "to" / "mine").mkdir()
    (tmp_path / "to" / "mine" / "notes.txt").touch()
    commits.prune(folder, commits.write(folder, source(tmp_path / "from"), "step", 5, {}), 1)
    assert (tmp_path / "to" / "mine" / "notes.txt").exists() and (tmp_path / "to" / "checkpoint-3").exists()


def test_a_commit_that_was_moved_is_not_what_its_name_says(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path / "to")
    commits.write(folder, source(tmp_path / "from"), "step", 5, {})
    (tmp_path / "to" / "step-5").rename(tmp_path / "to" / "step-6")
    assert commits.find(folder).skipped == {"step-6": "COMMITTED is that of step-5"}


NUMBER = itertools.count()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from([*FILES, MARKER]),
    damage=st.sampled_from(["delete", "truncate", "flip", "grow"]),
    at=st.integers(0, 10**6),
    bits=st.integers(1, 255),
)
def test_whatever_is_damaged_is_never_gone_on_from(tmp_path: Path, name: str, damage: str, at: int, bits: int) -> None:
    top = tmp_path / str(next(NUMBER))
    folder = LocalFolder(top / "to")
    for number in (1, 2):
        commits.write(folder, source(top / "from"), "step", number, {"identity": {"seed": 1}})
    path = top / "to" / "step-2" / name
    data = bytearray(path.read_bytes())
    if damage == "delete":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(data[: at % len(data)])
    elif damage == "grow":
        path.write_bytes(bytes(data) + bytes([bits]))
    else:
        data[at % len(data)] ^= bits
        path.write_bytes(bytes(data))
    assert good(folder, top) == ["step-1"]


def test_every_byte_of_a_marker_counts(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path / "to")
    commits.write(folder, source(tmp_path / "from"), "step", 1, {})
    path = tmp_path / "to" / "step-1" / MARKER
    data = path.read_bytes()
    for at in range(len(data)):
        for bits in (1, 0x20, 0x80):
            path.write_bytes(data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :])
            assert commits.find(folder).commits == (), f"byte {at}"
    path.write_bytes(data)
    assert isinstance(commits.find(folder).commits[0], Commit)
