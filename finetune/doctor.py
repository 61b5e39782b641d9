"""Checks of a machine and of what a run would use, each ok, warn or fail, with what to do. No torch here: what needs it
is checked by a process of its own (doctor_worker.py)."""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from packaging.requirements import Requirement

from finetune.errors import StorageError, UsageErrors
from finetune.facts import Facts
from finetune.hardware import GIB, Machine
from finetune.hub_cache import bytes_there, hub_cache
from finetune.launch import ROOT, environment
from finetune.model_facts import look_in_folder
from finetune.parameters import count
from finetune.plan import Plan
from finetune.settings import Trouble
from finetune.storage import is_bucket, is_mount, open_folder

LOCK, PROJECT = ROOT / "requirements.lock", ROOT / "pyproject.toml"
WORKER = "finetune.doctor_worker"
WORKER_TIMEOUT_S = 600
BEGIN, END = "\N{LEFT WHITE SQUARE BRACKET}", "\N{RIGHT WHITE SQUARE BRACKET}"
"""Around what is trained on, where it is shown; on a terminal it is green."""
GREEN, PLAIN = "\x1b[32m", "\x1b[0m"
SHARED_MEMORY = "shared memory"
SHM = Path("/dev/shm")
SHM_WANTED_GIB = 1.0
"""NCCL's buffers between GPUs, and batches of images on their way. Containers have 64 MiB unless told otherwise."""
DRIVER_WANTED = 580
"""NVIDIA's driver for CUDA 13, of which the locked torch is."""
READ = 8_000_000
"""Bytes of either end of a file that are read to see that it can be."""
CHECKPOINT_BYTES = 12
"""A parameter of the adapter, and Adam's two moments, in fp32."""


@dataclass(frozen=True)
class Check:
    """One line of the table. `remedy` is what to do, where there is something to do."""

    name: str
    state: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""


def examine(plan: Plan | None, facts: Facts | None, problems: UsageErrors | None, machine: Machine) -> list[Check]:
    """All checks. Of a plan that cannot be made, what is wrong with it, and what can be checked all the same."""
    checks = [*check_python(), *check_machine(machine)]
    if problems is not None:
        checks += [Check("command", "fail", error.message, error.hint) for error in problems.errors]
    if plan is not None and facts is not None:
        checks += [*check_space(plan, facts, machine), *check_model(plan, facts), *check_output(plan)]
        checks += ask_worker(plan)
    return checks


def quick(plan: Plan, facts: Facts, machine: Machine, leads: bool = True) -> list[Check]:
    """What fails of the checks that take no time, before a run, on a node that leads or on another."""
    checks = [*check_machine(machine), *check_space(plan, facts, machine, leads)]
    checks += check_output(plan) if leads else []
    return [check for check in checks if check.state == "fail"]


def check_python() -> Iterator[Check]:
    """Python, and the packages that the project names, against the lock."""
    current = sys.version_info >= (3, 11)
    remedy = "" if current else "use Python 3.11 or later"
    yield Check("Python", "ok" if current else "fail", platform.python_version(), remedy)
    if not (LOCK.is_file() and PROJECT.is_file()):
        yield Check("packages", "warn", f"{LOCK.name} is not beside the code: versions are not compared")
        return
    lines = [Requirement(line) for line in LOCK.read_text().splitlines() if "==" in line]
    locked = {one.name: str(one.specifier)[2:] for one in lines if one.marker is None or one.marker.evaluate()}
    named = [Requirement(text).name for text in tomllib.loads(PROJECT.read_text())["project"]["dependencies"]]
    wanted = {name: locked.get(name) for name in named}
    differ = [f"{name} {there or 'is not installed'}, locked {lock}" for name, lock, there in _compared(wanted)]
    if differ:
        yield Check("packages", "warn", "; ".join(differ), "install as the Makefile does, with requirements.lock")
    else:
        yield Check("packages", "ok", f"{len(wanted)} are as locked")


def _compared(wanted: Mapping[str, str | None]) -> Iterator[tuple[str, str, str | None]]:
    for name, lock in wanted.items():
        try:
            there: str | None = version(name).partition("+")[0]  # a build's own name, such as +cu130
        except PackageNotFoundError:
            there = None
        if lock is not None and there != lock:
            yield name, lock, there


def check_machine(machine: Machine) -> Iterator[Check]:
    """GPUs, driver, shared memory."""
    if not machine.gpus:
        yield Check("GPU", "warn", machine.note or "none", "without one, only the toy model is trained in minutes")
    else:
        names = ", ".join(f"{gpu.name} ({gpu.free_gib or '?'} GiB free)" for gpu in machine.gpus)
        yield Check("GPU", "warn" if machine.note else "ok", names + (f"; {machine.note}" if machine.note else ""))
        major = int((machine.driver or "0").partition(".")[0])
        old = major < DRIVER_WANTED
        remedy = f"CUDA 13 wants {DRIVER_WANTED} or later; on GKE: gke-gpu-driver-version latest" if old else ""
        yield Check("driver", "warn" if old else "ok", machine.driver or "unknown", remedy)
    if SHM.is_dir():
        size = shutil.disk_usage(SHM).total / GIB
        short = size < SHM_WANTED_GIB and len(machine.gpus) > 1
        remedy = "docker run --ipc=host, or --shm-size=16g; in Kubernetes an emptyDir of medium Memory" if short else ""
        yield Check(SHARED_MEMORY, "fail" if short else "ok", f"/dev/shm has {size:.1f} GiB", remedy)


def check_space(plan: Plan, facts: Facts, machine: Machine, leads: bool = True) -> Iterator[Check]:
    """Disks and memory against what the plan needs, as far as it can be told. A node that does not lead writes no
    results."""
    config = facts.model.config
    if config is None:
        yield Check("disk", "warn", f"the size of {facts.model.name} is not known here")
        return
    weights, cache = 2 * count(config).total / GIB, hub_cache(os.environ)
    wanted: dict[Path, float] = {}
    missing = weights - bytes_there(facts.model.name, cache) / GIB if facts.model.kind == "hub" else 0.0
    if missing > 0:
        wanted[cache] = missing
    if leads and not is_bucket(plan.place) and plan.command == "run":
        trained = sum(plan.adapter["parameters"].values()) if plan.adapter else 0
        count_of = 0 if plan.settings.save_strategy == "no" else plan.settings.save_total_limit + 1
        kept = CHECKPOINT_BYTES * trained / GIB * (count_of + 1)
        wanted[Path(plan.place)] = kept + (weights if plan.settings.merge else 0.0)
    yield from _check_disks(wanted)
    if plan.memory is not None and machine.ram_gib is not None:
        host, short = plan.memory["host_gib"], plan.memory["host_gib"] > machine.ram_gib
        remedy = "give the container more memory" if short else ""
        found = f"about {host:.0f} GiB wanted at most, {machine.ram_gib:.0f} there"
        yield Check("memory", "warn" if short else "ok", found, remedy)


def _check_disks(wanted: Mapping[Path, float]) -> Iterator[Check]:
    """Places and the GiB that each is to take: those on one disk share what is free there."""
    disks: dict[int, list[Path]] = {}
    for place in wanted:
        disks.setdefault(_existing(place).stat().st_dev, []).append(place)
    for places in disks.values():
        size = sum(wanted[place] for place in places)
        free = shutil.disk_usage(_existing(places[0])).free / GIB
        short = free < size
        remedy = "free some, or choose another disk (HF_HOME, --output-dir)" if short else ""
        each = f" ({' + '.join(f'{wanted[place]:.1f}' for place in places)})" if len(places) > 1 else ""
        found = f"{' and '.join(map(str, places))}: {size:.1f} GiB wanted{each}, {free:.1f} free"
        yield Check("disk", "fail" if short else "ok", found, remedy)


def check_model(plan: Plan, facts: Facts) -> Iterator[Check]:
    """Whether the weights are there, whole, or may be had."""
    name = plan.settings.model_id
    cached = _downloaded(name) if facts.model.kind == "hub" else None
    if cached is not None:
        found = look_in_folder(name, "folder", open_folder(cached))
        if isinstance(found, Trouble):
            yield Check("weights", "fail", found.message, found.hint)
        else:
            yield Check("weights", "ok", f"{name} is whole in {cached}")
    elif facts.model.kind == "embedded":
        yield Check("weights", "ok", f"{name} is whole")
    elif facts.model.kind == "folder":
        yield Check("weights", "ok", f"{facts.model.name} is whole")
        yield check_reading(facts.model.name)
    elif os.environ.get("HF_HUB_OFFLINE") == "1":
        hint = "unset it, or download the model first"
        yield Check("weights", "fail", f"{name} is not downloaded, and HF_HUB_OFFLINE=1 is set", hint)
    else:
        yield _may_download(name)
    if facts.has_token:
        yield Check("hub token", "ok", "there is one")
    elif facts.model.kind == "hub" or plan.settings.push_to_hub:
        yield Check("hub token", "warn", "there is none", "set HF_TOKEN, if the model wants one")


def check_reading(place: str) -> Check:
    """Really read the ends of the largest file of a model's folder: a bucket or a mount may list what it does not
    give."""
    folder = open_folder(place)
    begun = time.monotonic()
    try:
        sizes = folder.files(deep=False)
        largest = max(sizes, key=lambda name: sizes[name])
        size = sizes[largest]
        parts = [(0, min(READ, size)), (max(0, size - READ), size)]
        got = sum(len(folder.read(largest, start, end)) for start, end in parts)
    except (StorageError, OSError) as error:
        message = error.message if isinstance(error, StorageError) else str(error)
        return Check("reading", "fail", message, "see the bucket's permissions, and the mount's log")
    kind = "bucket" if is_bucket(place) else "mounted bucket" if is_mount(Path(place)) else "disk"
    wanted = sum(end - start for start, end in parts)
    found = f"{got / 1e6:,.1f} MB of {largest} from the {kind} in {time.monotonic() - begun:.2f} s"
    if got == wanted:
        return Check("reading", "ok", found)
    return Check("reading", "fail", f"{found}; {wanted / 1e6:,.1f} were asked for", "copy the file anew")


def _downloaded(model_id: str) -> str | None:
    """A hub model's folder in the cache, None if it is not there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return snapshot_download(model_id, local_files_only=True)
    except LocalEntryNotFoundError:
        return None


def _may_download(model_id: str) -> Check:
    from httpx2 import HTTPError
    from huggingface_hub import HfApi

    try:
        HfApi().auth_check(model_id)
    except (HTTPError, OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Check("weights", "fail", f"{model_id} cannot be had: {reason}", "see the name, HF_TOKEN and the licence")
    return Check("weights", "ok", f"{model_id} may be downloaded")


def check_output(plan: Plan) -> Iterator[Check]:
    """A real write, read and delete where the results go."""
    name, said = f".doctor-{os.getpid()}", b"gemma4-finetune"
    there = is_bucket(plan.place) or Path(plan.place).exists()
    place = plan.place if there else str(_existing(Path(plan.place)))
    try:
        folder = open_folder(place)
        folder.write(name, said)
        same = folder.read(name) == said
        folder.delete(name)
    except (StorageError, OSError) as error:
        message = error.message if isinstance(error, StorageError) else str(error)
        yield Check("output", "fail", message, "write another --output-dir, or see to its permissions")
        return
    found = f"{place}: written, read and deleted" if same else f"{place}: what was written is not what is read"
    yield Check("output", "ok" if same else "fail", found, "" if same else "use another place")


def ask_worker(plan: Plan) -> list[Check]:
    """The checks that need torch, from a process of their own."""
    with TemporaryDirectory(prefix="gemma4-doctor-") as folder:
        path, answer = Path(folder) / "plan.json", Path(folder) / "checks.json"
        path.write_text(plan.to_json())
        known = environment(plan, os.environ)
        command = [sys.executable, "-m", WORKER, str(path), str(answer)]
        try:
            done = subprocess.run(
                command, env=known, capture_output=True, text=True, timeout=WORKER_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            found = f"torch gave no answer within {WORKER_TIMEOUT_S} s"
            return [Check("libraries", "fail", found, "see to the GPU and its driver")]
        if not answer.is_file():
            said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            return [Check("libraries", "fail", said, "install the locked versions: requirements.lock")]
        return [Check(**check) for check in json.loads(answer.read_text())]


def table(checks: list[Check], colour: bool = False) -> str:
    """The checks for a person."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        first, *more = check.found.splitlines() or [""]
        lines.append(f"{check.state:<5} {check.name:<{width}}  {first}")
        lines += [f"{'':<{width + 6}}  {line}" for line in more]
        lines += [f"{'':<{width + 6}}  -> {check.remedy}"] if check.remedy else []
    states = [check.state for check in checks]
    lines += ["", f"{states.count('ok')} ok, {states.count('warn')} to know, {states.count('fail')} to mend"]
    text = "\n".join(lines)
    return text.replace(BEGIN, GREEN).replace(END, PLAIN) if colour else text


def as_json(checks: list[Check]) -> str:
    """The checks for a program."""
    return json.dumps([asdict(check) for check in checks], indent=1)


def _existing(path: Path) -> Path:
    path = path.expanduser().absolute()
    return next(place for place in (path, *path.parents) if place.exists())
