"""What the tests share: a tiny random Gemma 4, made once a session, and small data sets."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random Gemma 4 of a few hundred thousand parameters, vision tower included."""
    from finetune.embedded.tiny import make_tiny

    folder = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The embedded model's tokenizer."""
    from transformers import AutoTokenizer

    from finetune.embedded import base_dir

    return AutoTokenizer.from_pretrained(base_dir())


@pytest.fixture(scope="session")
def reader(tokenizer: Any) -> Any:
    """What a task without images is read with."""
    from finetune.reader import Reader

    return Reader(tokenizer)


@pytest.fixture(scope="session")
def image_reader() -> Any:
    """What a task with images is read with: the embedded model's tokenizer and processor."""
    from finetune.reader import load_reader
    from finetune.settings import Settings

    return load_reader(Settings(), images=True)


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[[str, Iterable[Mapping[str, Any] | str]], Path]:
    """Write rows (or raw lines) to a .jsonl file in tmp_path."""

    def write(name: str, rows: Iterable[Mapping[str, Any] | str]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        return path

    return write
