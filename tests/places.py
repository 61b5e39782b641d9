"""Folders of each kind - on a disk, through FUSE, in a bucket - for tests that must hold on all of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import bucket, cloud_storage, fuse_mount

KINDS = ("disk", "mount", "bucket")


@pytest.fixture(scope="session")
def bucket_url() -> Iterator[str]:
    """The real fake-gcs-server with a bucket `data`."""
    with cloud_storage.serve("data") as (url, _):
        yield url


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty folder, as a user writes it."""
    if request.param == "disk":
        yield str(tmp_path / "place")
    elif request.param == "mount":
        (tmp_path / "source").mkdir()
        with fuse_mount.mounted(tmp_path / "source", tmp_path / "mount"):
            yield str(tmp_path / "mount" / "place")
    else:
        for name, value in bucket.environment(request.getfixturevalue("bucket_url")).items():
            monkeypatch.setenv(name, value)
        yield f"gs://data/{tmp_path.name}"
