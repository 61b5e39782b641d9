"""Folders that are whole, or do not count: checkpoints and finished stages of a run, in its folder `checkpoints`.

KIND-NUMBER/ holds files, and COMMITTED, which is written last: each file's size and SHA-256, below its own. Whatever
cut the writing short, and whatever changed a byte since, such a folder is told from one that can be trusted.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from finetune.errors import StorageError
from finetune.storage import Folder, LocalFolder, copied

MARKER = "COMMITTED"
NAME = re.compile(r"(?P<kind>[a-z]+)-(?P<number>\d+)")
FORMAT = 1


@dataclass(frozen=True)
class File:
    """What a file of a commit has to be."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Commit:
    """A folder whose marker is there and whose files have the right sizes. `about` is what was said of it."""

    kind: str
    number: int
    files: Mapping[str, File]
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}"


@dataclass(frozen=True)
class Found:
    """What is in a folder of commits: those that count, the newest of each kind first, and why others do not."""

    commits: tuple[Commit, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)

    def of(self, kind: str) -> list[Commit]:
        return [commit for commit in self.commits if commit.kind == kind]


def write(folder: Folder, source: Path, kind: str, number: int, about: Mapping[str, Any]) -> Commit:
    """Copy the files in `source` to KIND-NUMBER, then its marker. One of that name stops to count at once.

    Raises StorageError, and ValueError if there is no file.
    """
    paths = sorted(path for path in source.iterdir() if path.is_file())
    if not paths:
        raise ValueError(f"{source} is empty")
    files = {path.name: File(path.stat().st_size, _digest(path)) for path in paths}
    commit = Commit(kind, number, files, about)
    folder.delete(f"{commit.name}/{MARKER}")
    for path in paths:
        folder.put(f"{commit.name}/{path.name}", path)
    folder.write(f"{commit.name}/{MARKER}", _sealed(commit))
    return commit


def find(folder: Folder) -> Found:
    """Look at all commits in a folder. Sizes are compared; the bytes are when one is fetched."""
    by_name: dict[str, dict[str, int]] = {}
    for path, size in folder.files().items():
        name, _, file = path.partition("/")
        if NAME.fullmatch(name):
            by_name.setdefault(name, {})[file] = size
    commits, skipped = [], {}
    for name, there in by_name.items():
        looked_at = _look(folder, name, there)
        if isinstance(looked_at, Commit):
            commits.append(looked_at)
        else:
            skipped[name] = looked_at
    return Found(tuple(sorted(commits, key=lambda commit: (commit.kind, -commit.number))), skipped)


def fetch(folder: Folder, commit: Commit, target: Path) -> str | None:
    """Copy a commit's files into the local folder `target`. Returns what is wrong with it, None if nothing is."""
    for name, wanted in commit.files.items():
        digest, size = hashlib.sha256(), 0
        try:
            for chunk in copied(folder, f"{commit.name}/{name}", target / name):
                digest.update(chunk)
                size += len(chunk)
        except FileNotFoundError:
            return f"{name} is missing"
        if size != wanted.bytes:
            return f"{name} has {size:,} bytes, not {wanted.bytes:,}"
        if digest.hexdigest() != wanted.sha256:
            return f"{name} is not what its checksum says"
    return None


def prune(folder: Folder, newest: Commit, limit: int) -> None:
    """Keep `newest` and `limit` - 1 before it. Older ones go, each marker first; so do older ones that do not count."""
    found = find(folder)
    older = [commit.name for commit in found.of(newest.kind) if commit.number < newest.number][limit - 1 :]
    for name in found.skipped:
        kind, _, number = name.partition("-")
        older += [name] if kind == newest.kind and int(number) < newest.number else []
    remove(folder, older)


def remove(folder: Folder, names: Sequence[str]) -> None:
    """Remove commits, each one's marker first: cut short here, it must not count."""
    for name in names:
        folder.delete(f"{name}/{MARKER}")
    for path in folder.files():
        if path.partition("/")[0] in names:
            folder.delete(path)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    for chunk in LocalFolder(path.parent).stream(path.name):
        digest.update(chunk)
    return digest.hexdigest()


def _sealed(commit: Commit) -> bytes:
    text = json.dumps({"format": FORMAT, **asdict(commit)}, indent=1, sort_keys=True).encode()
    return hashlib.sha256(text).hexdigest().encode() + b"\n" + text


def _opened(data: bytes) -> Commit | None:
    """A marker's content; None unless every byte is as it was written."""
    seal, _, text = data.partition(b"\n")
    if seal != hashlib.sha256(text).hexdigest().encode():
        return None
    read = json.loads(text)
    if read["format"] != FORMAT:
        return None
    files = {name: File(**entry) for name, entry in read["files"].items()}
    return Commit(read["kind"], read["number"], files, read["about"])


def _look(folder: Folder, name: str, there: Mapping[str, int]) -> Commit | str:
    """A folder as a commit, or why it is none."""
    if MARKER not in there:
        return "it was not finished"
    try:
        commit = _opened(folder.read(f"{name}/{MARKER}"))
    except (FileNotFoundError, StorageError) as error:
        return f"{MARKER} cannot be read: {error}"
    if commit is None or commit.name != name:
        return f"{MARKER} is damaged" if commit is None else f"{MARKER} is that of {commit.name}"
    for file, wanted in commit.files.items():
        if file not in there:
            return f"{file} is missing"
        if there[file] != wanted.bytes:
            return f"{file} has {there[file]:,} bytes, not {wanted.bytes:,}"
    return commit
