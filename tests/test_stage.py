"""`entrypoint.py stage`: from a loopback hub into the real fake-gcs-server, and into folders."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from finetune.hub_files import File
from tests import cloud_storage, hub
from tests.bucket import environment
from tests.conftest import ROOT

pytest_plugins = ("tests.command_line",)
Run = Callable[..., tuple[int, str, str]]
MODEL = "google/gemma-4-31B-it"
PLACE = "gs://weights/google/gemma-4-31B-it"
PART = 256 * 1024
"""Parts as small as Cloud Storage's uploads allow, so that the test's files have many of them."""
TOKEN = "hf_MARKERTOKENthatMustNotLeak"
STAGE = f"""
import sys
from finetune import stage
stage.PART_BYTES, stage.COMPOSED = {PART}, 4
sys.exit(stage.main(*sys.argv[1:]))
"""


def content() -> dict[str, bytes]:
    made = random.Random(7)
    return {
        ".gitattributes": b"*.safetensors filter=lfs",
        "config.json": b'{"model_type": "gemma4"}',
        "empty.txt": b"",
        "model-00001-of-00002.safetensors": made.randbytes(18 * PART + 5),
        "model-00002-of-00002.safetensors": made.randbytes(PART),
        "original/consolidated.pth": b"not wanted",
        "sub/chat_template.jinja": b"{{ bos_token }}",
    }


WANTED = {name: data for name, data in content().items() if not name.startswith((".git", "original"))}


@pytest.fixture
def hub_() -> Iterator[hub.Hub]:
    with hub.serve() as server:
        server.repositories[MODEL] = content()
        server.private[MODEL] = False
        yield server


@pytest.fixture
def storage() -> Iterator[tuple[str, Any]]:
    with cloud_storage.serve("weights") as served:
        yield served


def stage(server: hub.Hub, to: str, url: str = "http://127.0.0.1:9", model: str = MODEL) -> Any:
    environ = server.environment(PYTHONPATH=str(ROOT), HF_TOKEN=TOKEN, **environment(url))
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", STAGE, model, to], env=environ, stdout=pipe, stderr=pipe, text=True)


def done(process: Any, code: int = 0) -> str:
    """The log of a finished process, which must not hold the token."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert TOKEN not in out + err
    return str(err)


def there(storage: Any) -> dict[str, bytes]:
    storage.invalidate_cache()
    root = PLACE.removeprefix("gs://")
    return {path.removeprefix(f"{root}/"): storage.cat_file(path) for path in storage.find(root)}


def test_a_model_goes_into_a_bucket_whole_and_is_not_copied_twice(hub_: hub.Hub, storage: tuple[str, Any]) -> None:
    url, files = storage
    log = done(stage(hub_, PLACE, url))
    assert there(files) == WANTED, "all of it, no parts, and no other forms of the weights"
    assert f"> staging {MODEL} at {'0' * 12} to {PLACE}: 5 files" in log
    assert log.count("MB/s, ") >= 10, "progress, also where the log is no terminal"
    assert hub_.tokens == {f"Bearer {TOKEN}"}
    served = hub_.served
    assert served == sum(map(len, WANTED.values()))
    log = done(stage(hub_, PLACE, url))
    assert hub_.served == served, "what is there and was compared is not read again"
    assert "as the hub's checksums say" in log


def test_what_was_cut_short_goes_on_where_it_stopped(hub_: hub.Hub, storage: tuple[str, Any]) -> None:
    url, files = storage
    large = "model-00001-of-00002.safetensors"
    process = stage(hub_, PLACE, url)
    parts = f"{PLACE.removeprefix('gs://')}/{large}.parts-{hashlib.sha256(WANTED[large]).hexdigest()[:12]}"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        files.invalidate_cache()
        if files.exists(parts) and len(files.ls(parts)) >= 3:
            process.send_signal(signal.SIGTERM)
            break
        time.sleep(0.01)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, "stopped in the middle of the large file"
    served = hub_.served
    done(stage(hub_, PLACE, url))
    assert there(files) == WANTED
    assert hub_.served - served <= len(WANTED[large]) + len(WANTED["model-00002-of-00002.safetensors"]) - 3 * PART


def test_another_size_or_content_in_the_bucket_is_replaced(hub_: hub.Hub, storage: tuple[str, Any]) -> None:
    url, files = storage
    root = PLACE.removeprefix("gs://")
    files.pipe_file(f"{root}/config.json", b'{"model_type": "gemma3"}')
    files.pipe_file(f"{root}/model-00001-of-00002.safetensors", b"x")
    done(stage(hub_, PLACE, url))
    assert there(files) == WANTED


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "config.json"])
def test_what_does_not_match_its_checksum_does_not_stay(
    hub_: hub.Hub, storage: tuple[str, Any], tmp_path: Path, name: str
) -> None:
    url, files = storage
    hub_.damaged = name
    log = done(stage(hub_, PLACE, url), 4)
    assert f"{name} is not what the hub's checksum says, and was removed" in log
    assert not [path for path in there(files) if path.startswith(name)]
    hub_.damaged = None
    done(stage(hub_, PLACE, url))
    assert there(files) == WANTED
    hub_.damaged = name
    log = done(stage(hub_, str(tmp_path / "model")), 4)
    assert f"{name}: not what the hub's checksum says, and removed from" in log
    assert not (tmp_path / "model" / name).exists()


def test_a_busy_hub_is_asked_again(hub_: hub.Hub, storage: tuple[str, Any]) -> None:
    url, files = storage
    hub_.failures["resolve"] = [503, 0, 429]
    done(stage(hub_, PLACE, url))
    assert there(files) == WANTED


def test_into_a_folder(hub_: hub.Hub, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "31B"
    log = done(stage(hub_, str(folder)))
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {name: data for name, data in found.items() if not name.startswith(".cache")} == WANTED
    assert "> comparing with the hub's checksums" in log
    served = hub_.served
    done(stage(hub_, str(folder)))
    assert hub_.served == served


def test_what_the_hub_or_the_bucket_refuses_is_told(hub_: hub.Hub, storage: tuple[str, Any], tmp_path: Path) -> None:
    url, _ = storage
    log = done(stage(hub_, PLACE, url, model="google/none"), 4)
    assert "error: google/none was not read from the hub: 404" in log
    assert "accept the model's licence on its page, and set HF_TOKEN" in log
    log = done(stage(hub_, "gs://no-such-bucket/x", url), 7)
    assert "was not staged to gs://no-such-bucket/x: there is no such bucket" in log
    hub_.repositories["me/adapter"] = {"adapter.bin": b"x"}
    hub_.private["me/adapter"] = False
    assert "me/adapter has no .safetensors file" in done(stage(hub_, PLACE, url, model="me/adapter"), 4)
    (tmp_path / "file").write_text("")
    log = done(stage(hub_, str(tmp_path / "file" / "below")), 7)
    assert "error: " in log
    assert "write another --to" in log


def test_parts_cover_a_file() -> None:
    assert File("a", 0, "", True).spans(10) == [(0, 0)]
    assert File("a", 10, "", True).spans(10) == [(0, 10)]
    assert File("a", 25, "", True).spans(10) == [(0, 10), (10, 20), (20, 25)]


def test_the_command_starts_it_with_the_token_in_the_environment_alone(
    run: Run, started: list[tuple[list[str], dict[str, str]]]
) -> None:
    code, _, err = run("stage", "--model_id", MODEL, "--to", PLACE, "--hf-token", TOKEN)
    assert code == 0
    assert "warning: --hf-token can be read" in err
    argv, environment = started[0]
    assert argv == [sys.executable, "-m", "finetune.stage", MODEL, PLACE]
    assert environment["HF_TOKEN"] == TOKEN
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)


def test_mistakes_are_told_together(run: Run, started: list[Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cases = {
        (): ["--model-id: which model?", "--to: where to?"],
        ("--model-id", "x", "--to", "s3://b"): [
            "--model-id: 'x' is no hub id",
            "--to: 's3://b' is not a path in a bucket",
        ],
        ("--model-id", MODEL, "--to", "file"): ["--to: file is a file; expected a folder"],
        ("--model-id", MODEL, "--to", PLACE, "--lora-r", "3"): ["--lora-r: not a flag of this command"],
    }
    for arguments, messages in cases.items():
        code, out, err = run("stage", *arguments)
        assert (code, out, started) == (2, "", [])
        assert [line for line in err.splitlines() if line.startswith("error: ")] == [f"error: {m}" for m in messages]
