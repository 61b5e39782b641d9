"""Where huggingface_hub keeps what it has downloaded, found without loading it: its own rules, of its constants.py."""

import os
from collections.abc import Mapping
from pathlib import Path


def hub_home(environ: Mapping[str, str]) -> Path:
    """The folder of everything that it keeps, the token among it."""
    general = Path(environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(environ.get("HF_HOME") or general).expanduser()


def hub_cache(environ: Mapping[str, str]) -> Path:
    """The folder of the downloads."""
    named = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(named or hub_home(environ) / "hub").expanduser()


def snapshot(name: str, cache: Path) -> Path:
    """Where the last download of a repository is. Raises OSError if there was none."""
    repository = _repository(name, cache)
    return repository / "snapshots" / (repository / "refs" / "main").read_text().strip()


def bytes_there(name: str, cache: Path) -> int:
    """What is on the disk of a repository, half downloads and earlier revisions too."""
    found = (Path(folder) / file for folder, _, files in os.walk(_repository(name, cache)) for file in files)
    return sum(path.lstat().st_size for path in found)


def _repository(name: str, cache: Path) -> Path:
    return cache / f"models--{name.replace('/', '--')}"
