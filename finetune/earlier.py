"""What an output folder holds of earlier runs, and what that means for the one that is planned. `decide` is pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from finetune.commits import NAME, Commit, Found, find
from finetune.errors import FinetuneError
from finetune.identity import PROCESSES, compare, identity
from finetune.plan import Plan, Start
from finetune.storage import Folder, open_folder, parent

CHECKPOINTS = "checkpoints"
"""Folder of a run directory that holds what the run goes on from."""
STEP, BEFORE, AFTER = "step", "before", "after"
"""Kinds of commits: training after a step, and answers of the model before and after it."""
KINDS = {STEP: "{}", BEFORE: "the base model's answers ({})", AFTER: "the tuned model's answers ({})"}


@dataclass(frozen=True)
class Earlier:
    """What is there. `last` is the newest checkpoint, a finished stage included."""

    state: Literal["nothing", "begun", "finished"] = "nothing"
    identity: Mapping[str, Any] | None = None
    """What the earlier run was; None where that cannot be read."""
    delivered: bool = True
    last: Commit | None = None
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Checkpoints that do not count, and why."""
    has_merged: bool = False


@dataclass(frozen=True)
class Decision:
    """How the planned run starts; or, in `differs`, why it must not go on from what is there."""

    start: Start
    note: str = ""
    differs: tuple[str, ...] = ()


def look(place: str) -> Earlier:
    """Look at an output folder (gs:// or local). Raises StorageError if it cannot be read."""
    folder = open_folder(place)
    folder.files(deep=False)  # a bucket that is not there is told by its name, not by that of a file in it
    has_merged = _exists(folder, "merged/config.json")
    run = _json(folder, "run.json")
    if run is not None:
        return Earlier("finished", _identity(run.get("plan")), bool(run.get("delivered", True)), has_merged=has_merged)
    found = find(open_folder(f"{place}/{CHECKPOINTS}"))
    if found.commits:
        return replace(begun(found), has_merged=has_merged)
    if _exists(folder, "adapter/adapter_model.safetensors"):
        return Earlier("begun", _identity(_json(folder, "plan.json")), True, None, found.skipped, has_merged)
    return Earlier(skipped=found.skipped, has_merged=has_merged)


def begun(found: Found) -> Earlier:
    """A run that has left these commits, one at least."""
    last = newest(found)
    return Earlier("begun", last.about.get("identity"), True, last, found.skipped)


def newest(found: Found) -> Commit:
    """The one that stands for the most work."""
    order = (BEFORE, STEP, AFTER)
    return max(found.commits, key=lambda commit: (order.index(commit.kind), commit.number))


def commits_at(place: str) -> tuple[Folder, Found]:
    """The commits that --resume-from means: those of a run, of its folder of checkpoints, or the one that it names."""
    name = place.rstrip("/").rpartition("/")[2]
    if NAME.fullmatch(name):
        folder = open_folder(parent(place))
        found = find(folder)
        return folder, replace(found, commits=tuple(commit for commit in found.commits if commit.name == name))
    for folder in (open_folder(f"{place.rstrip('/')}/{CHECKPOINTS}"), open_folder(place)):
        found = find(folder)
        if found.commits or found.skipped:
            break
    return folder, found


def decide(plan: Plan, earlier: Earlier) -> Decision:
    """What to do about an earlier run in the planned one's place."""
    settings, out = plan.settings, plan.settings.output_dir
    if settings.restart:
        return Decision("new", f"begins anew: what is in {out} will be replaced" if earlier.state != "nothing" else "")
    if earlier.state == "nothing":
        return Decision("new")
    then = earlier.identity
    differs = ["it cannot be told what it was"] if then is None else compare(identity(plan), then)
    if earlier.state == "finished":
        if settings.overwrite:
            return Decision("new", f"replaces the results in {out}")
        return Decision("new" if differs else "nothing" if earlier.delivered else "deliver", "", tuple(differs))
    if differs and settings.overwrite:
        return Decision("new", f"begins anew, since the run that was begun in {out} is another one: {differs[0]}")
    if earlier.last is None:
        return Decision("new", f"begins anew: {out} has no checkpoint to go on from", tuple(differs))
    goes_on = f"goes on from {KINDS[earlier.last.kind].format(earlier.last.name)}"
    if differs and settings.resume_anyway:
        return Decision("resume", f"{goes_on}, in spite of {'; '.join(differs)}")
    if differs:
        return Decision("resume", "", tuple(differs))
    other = identity(plan)[PROCESSES] != (then or {}).get(PROCESSES)
    shared = ", made by another number of processes: the same rows a step, but other dropout" if other else ""
    return Decision("resume", f"{goes_on}{shared}")


def _exists(folder: Folder, name: str) -> bool:
    try:
        folder.read(name, 0, 1)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    return True


def _json(folder: Folder, name: str) -> dict[str, Any] | None:
    """A JSON object of the folder, {} if it is none, None if there is no such file."""
    try:
        data = json.loads(folder.read(name))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _identity(plan: Any) -> Mapping[str, Any] | None:
    try:
        return identity(Plan.from_json(json.dumps(plan)))
    except (FinetuneError, KeyError, TypeError):
        return None
