"""storage.py and gcs.py: the same folder on a disk, through a mount, and in a bucket; and what failures are told."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from finetune import storage
from finetune.errors import StorageError
from finetune.gcs import PART
from finetune.storage import LocalFolder, copied, is_bucket, is_mount, open_folder, parent, whole
from tests import bucket as fake_bucket
from tests import fuse_mount

pytest_plugins = ("tests.places",)


def test_what_is_written_is_read(place: str, tmp_path: Path) -> None:
    folder = open_folder(place)
    assert folder.files() == {}
    folder.write("a.txt", b"hello")
    large = tmp_path / "large"
    large.write_bytes(os.urandom(2 * PART + 7))
    folder.put("sub/deep/large", large)
    assert folder.files() == {"a.txt": 5, "sub/deep/large": 2 * PART + 7}
    assert folder.files(deep=False) == {"a.txt": 5}
    assert (folder.read("a.txt"), folder.read("a.txt", 1, 3), folder.read("a.txt", 3)) == (b"hello", b"el", b"lo")
    assert b"".join(folder.stream("sub/deep/large")) == large.read_bytes()
    assert b"".join(copied(folder, "sub/deep/large", tmp_path / "in" / "copy")) == large.read_bytes()
    assert (tmp_path / "in" / "copy").read_bytes() == large.read_bytes()


def test_a_file_is_replaced_and_removed(place: str) -> None:
    folder = open_folder(place)
    folder.write("x/a", b"a long first text")
    folder.write("x/a", b"short")
    assert folder.read("x/a") == b"short"
    folder.delete("x/a")
    folder.delete("x/a")
    folder.delete("never/there")
    assert folder.files() == {}


def test_what_is_not_there_is_told_apart_from_what_cannot_be_read(place: str) -> None:
    folder = open_folder(place)
    folder.write("sub/a", b"a")
    for name in ("no", "sub"):
        with pytest.raises((FileNotFoundError, IsADirectoryError)):
            folder.read(name)
    with pytest.raises(FileNotFoundError):
        list(folder.stream("no"))


def test_no_file_is_renamed_on_a_mount(tmp_path: Path) -> None:
    """Renaming an object is a copy; and a folder's is refused."""
    (tmp_path / "source").mkdir()
    with fuse_mount.mounted(tmp_path / "source", tmp_path / "mount") as log:
        folder = open_folder(tmp_path / "mount" / "x")
        folder.write("a", b"1")
        folder.put("b", tmp_path / "mount" / "x" / "a")
        assert is_mount(tmp_path / "mount" / "x") and not is_mount(tmp_path / "source")
        assert '"rename"' not in log.read_text()


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """/dev/full takes nothing, as a disk without room does."""
    (tmp_path / "out").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left on device") as found:
        LocalFolder(tmp_path).write("out", b"x")
    assert "room" in found.value.hint


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"):
        LocalFolder(tmp_path / "file" / "below").write("a", b"x")


@pytest.mark.parametrize(
    ("found", "above", "told"),
    [
        ("out/adapter", "out", None),
        ("gs://b/x/y/", "gs://b/x", "gs://b/x/y"),
        ("~/x", str(Path("~").expanduser()), None),
    ],
)
def test_paths(found: str, above: str, told: str | None) -> None:
    assert parent(found) == above
    assert whole(found) == (told or str(Path(found).expanduser().resolve()))
    assert is_bucket(found) == found.startswith("gs://")


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_bucket.Storage]:
    """A bucket that can be told to fail."""
    with fake_bucket.serve("busy") as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_bucket_is_asked_again(busy: fake_bucket.Storage, status: int) -> None:
    busy.failures = [status, status]
    open_folder("gs://busy/x").write("a", b"text")
    assert busy.objects == {"busy/x/a": b"text"} and busy.failures == []


def test_a_bucket_that_refuses_is_not_asked_again(busy: fake_bucket.Storage) -> None:
    busy.failures = [403, 403]
    with pytest.raises(StorageError, match="gs://busy/x/a cannot be written: this machine's account may not do that"):
        open_folder("gs://busy/x").write("a", b"text")
    assert busy.failures == [403]


def test_bytes_that_are_not_what_the_bucket_says_are_an_error(
    busy: fake_bucket.Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy.objects["busy/x/a"] = b"text"
    monkeypatch.setattr(fake_bucket, "checksum", lambda content: "AAAAAA==")
    with pytest.raises(StorageError, match="gs://busy/x/a did not arrive as its checksum says"):
        list(open_folder("gs://busy/x").stream("a"))


def test_a_bucket_that_is_not_there_is_told(busy: fake_bucket.Storage) -> None:
    folder = open_folder("gs://gone/x")
    with pytest.raises(StorageError, match="gs://gone/x cannot be listed: there is no such bucket"):
        folder.files()
    with pytest.raises(StorageError, match="gs://gone/x/a cannot be written: there is no such bucket"):
        folder.write("a", b"x")


def test_mounts_are_told_by_the_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mounts = "disk / ext4 rw\nb /mnt/my\\040bucket fuse.gcsfuse rw\no /mnt/own fuse.fuse-overlayfs rw\n"
    monkeypatch.setattr(storage.Path, "read_text", lambda path, *_: mounts)
    assert is_mount(Path("/mnt/my bucket/x")) and is_mount(Path("/mnt/my bucket"))
    assert not is_mount(Path("/mnt/own/x")) and not is_mount(Path("/mnt/my bucket2")) and not is_mount(Path("/x"))
