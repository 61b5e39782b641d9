"""A hub model -> a bucket or a folder, whole, and as the hub's checksums say: `python -m finetune.stage MODEL TO`.

Into a bucket it streams, with no disk and half a GiB of memory, so that it runs in a Cloud Shell or a small Cloud Run
job next to the bucket. Large files go over in parts, which stay until the file is whole: a copy that was cut short
goes on where it stopped. Started by entrypoint.py as a process of its own: huggingface_hub and gcsfs load slowly.
"""

import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, snapshot_download
from tqdm import tqdm

from finetune import bucket
from finetune.errors import DeliveryError, FinetuneError, ModelError
from finetune.gcs import AHEAD, ahead
from finetune.hub_files import IGNORED, File, Lines, fetch, from_hub, list_files

PART_BYTES = 128 * 2**20
COMPOSED = 32
"""Objects that Cloud Storage joins in one request, at most."""
CHECKED = "sha256"
"""Metadata key of an object in the bucket that was compared with the hub."""


def stage(model: str, to: str) -> None:
    """Copy a model of the hub to gs://BUCKET/PATH or into a folder. What is there already, and right, stays.

    Raises ModelError if the hub does not give it whole, DeliveryError if it cannot be written.
    """
    api = HfApi()
    with from_hub(model):
        commit, files = list_files(api, model)
    size_gb = sum(file.size for file in files) / 1e9
    say(f"> staging {model} at {commit[:12]} to {to}: {len(files)} files, {size_gb:.1f} GB")
    if to.startswith("gs://"):
        _to_bucket(model, commit, files, to)
    else:
        with from_hub(model):
            _to_folder(api, model, commit, files, to)
    say(f"  {to} holds {model} at {commit}, as the hub's checksums say")


class Progress:
    """A bar over all bytes, or a line at every twentieth where the log is no terminal."""

    def __init__(self, total: int) -> None:
        self.bar = tqdm(total=total, unit="B", unit_scale=True, desc="stage", disable=None, dynamic_ncols=True)
        self.total, self.done, self.skipped, self.since = total, 0, 0, time.monotonic()

    def add(self, count: int, there: bool = False) -> None:
        """`count` more bytes are where they belong; `there`: they were before."""
        self.bar.update(count)
        twentieths = 20 * self.done // max(self.total, 1)
        self.done += count
        self.skipped += count if there else 0
        if self.bar.disable and 20 * self.done // max(self.total, 1) > twentieths:
            rate = (self.done - self.skipped) / max(time.monotonic() - self.since, 1e-3)
            left = tqdm.format_interval((self.total - self.done) / rate) if rate else "?"
            say(f"  {self.done / 1e9:.1f} of {self.total / 1e9:.1f} GB, {rate / 1e6:,.0f} MB/s, {left} left")


def _to_bucket(model: str, commit: str, files: list[File], to: str) -> None:
    hint = "run the same command again: it goes on from here"
    with bucket.opened(f"{model} was not staged to {to}", hint) as storage:
        root = to.removeprefix("gs://").rstrip("/")
        progress = Progress(sum(file.size for file in files))
        for file in files:
            Copy(storage, model, commit, file, f"{root}/{file.name}", progress).run()
        progress.bar.close()


@dataclass(frozen=True)
class Copy:
    """One file's way from the hub into a bucket."""

    storage: Any
    model: str
    commit: str
    file: File
    target: str
    progress: Progress

    def run(self) -> None:
        """Copy it, unless it is there and was compared before."""
        if self._is_there():
            self.progress.add(self.file.size, there=True)
            return
        digest, spans = self.file.digest(), self.file.spans(PART_BYTES)
        with ThreadPoolExecutor(AHEAD) as pool:
            for data, there in ahead(pool, self._part if len(spans) > 1 else self._whole, spans):
                digest.update(data)
                self.progress.add(len(data), there)
        if digest.hexdigest() != self.file.checksum:
            self._forget()
            message = f"{self.file.name} is not what the hub's checksum says, and was removed from {self.target}"
            raise ModelError(message, "run the same command again")
        if len(spans) > 1:
            compose(self.storage, self.target, [self._name(span) for span in spans])
        self.storage.setxattrs(self.target, **{CHECKED: self.file.checksum})
        if len(spans) > 1:
            self.storage.rm(self._folder, recursive=True)

    @property
    def _folder(self) -> str:
        return f"{self.target}.parts-{self.file.checksum[:12]}"

    def _name(self, span: tuple[int, int]) -> str:
        return f"{self._folder}/{span[0]:014d}"

    def _is_there(self) -> bool:
        found = _info(self.storage, self.target)
        checked = found.get("metadata", {}).get(CHECKED) == self.file.checksum
        return bool(checked and found["size"] == self.file.size)

    def _part(self, span: tuple[int, int]) -> tuple[bytes, bool]:
        """A part's bytes: those of an earlier try, or the hub's, which are kept. Whether they were there."""
        name = self._name(span)
        if _info(self.storage, name).get("size") == span[1] - span[0]:
            return self.storage.cat_file(name), True
        return self._kept(name, span), False

    def _whole(self, span: tuple[int, int]) -> tuple[bytes, bool]:
        return self._kept(self.target, span), False

    def _kept(self, name: str, span: tuple[int, int]) -> bytes:
        data = fetch(self.model, self.commit, self.file.name, span)
        self.storage.pipe_file(name, data, consistency="md5")
        return data

    def _forget(self) -> None:
        """Remove what turned out to be wrong, so that the next try starts from nothing."""
        for path in (self._folder, self.target):
            if self.storage.exists(path):
                self.storage.rm(path, recursive=True)


def compose(storage: Any, target: str, names: list[str]) -> None:
    """Join objects into one, in Cloud Storage itself, COMPOSED at a time."""
    while len(names) > COMPOSED:
        groups = [names[at : at + COMPOSED] for at in range(0, len(names), COMPOSED)]
        names = [f"{group[0]}+" for group in groups]
        for name, group in zip(names, groups, strict=True):
            storage.merge(name, group)
    storage.merge(target, names)


def _info(storage: Any, path: str) -> dict[str, Any]:
    try:
        return dict(storage.info(path))
    except FileNotFoundError:
        return {}


def _to_folder(api: HfApi, model: str, commit: str, files: list[File], to: str) -> None:
    folder = Path(to).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    there = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    missing, free = sum(file.size for file in files) - there, shutil.disk_usage(folder).free
    if missing > free:
        message = f"{to}: {missing / 1e9:.1f} GB are still to come, and {free / 1e9:.1f} GB are free"
        raise DeliveryError(message, "write a folder on a larger disk, or stage into a bucket: --to gs://...")
    snapshot_download(model, revision=commit, local_dir=folder, ignore_patterns=IGNORED, tqdm_class=Lines)
    say("> comparing with the hub's checksums")
    found = api.verify_repo_checksums(model, revision=commit, local_dir=folder)
    wrong = [mismatch["path"] for mismatch in found.mismatches] + [
        f.name for f in files if f.name in found.missing_paths
    ]
    for name in wrong:
        (folder / name).unlink(missing_ok=True)
    if wrong:
        message = f"{', '.join(wrong)}: not what the hub's checksum says, and removed from {to}"
        raise ModelError(message, "run the same command again")


def say(text: str) -> None:
    """A line to the user, above the bar."""
    tqdm.write(text, file=sys.stderr)
    sys.stderr.flush()


def main(model: str, to: str) -> int:
    """Stage, and give the exit code."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM, signal.SIGINT])  # launch.py blocked them on the way
    try:
        stage(model, to)
    except FinetuneError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    except KeyboardInterrupt:
        say("stopped; the same command goes on from here")
        return 128 + signal.SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
