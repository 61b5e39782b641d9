"""What a run has behind it, kept so that it can go on from there: training after a step, and answers of the model.

Only the first process reads and writes; what it finds, all are told. Writing goes on in the background, from copies
on the local disk, while training does.
"""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from finetune import commits
from finetune.commits import Commit
from finetune.earlier import AFTER, BEFORE, CHECKPOINTS, STEP, commits_at
from finetune.errors import StorageError, UsageError
from finetune.identity import compare, identity
from finetune.plan import Plan
from finetune.storage import open_folder

Side = Literal["before", "after"]
Say = Callable[[str], None]
STATE, ANSWERS = "state.json", "answers.json"
PAUSES_S = (2.0, 10.0, 30.0, 60.0)
"""Between tries to write a checkpoint. A bucket's requests are tried again by themselves, each for a minute."""


@dataclass(frozen=True)
class Answers:
    """What a model has answered so far, by the prompt's place. `rounds` of `of` batches of each process are done."""

    rounds: int = 0
    of: int = -1
    batch_size: int = 0
    processes: int = 0
    texts: Mapping[int, str] = field(default_factory=dict)
    losses: tuple[tuple[float, int], ...] = ()
    """Of each held-out row: the sum of the losses of its supervised tokens, and their number. () if not measured."""

    def goes_on(self, of: int, batch_size: int, processes: int) -> bool:
        """Whether these are the first batches of that many."""
        return (self.of, self.batch_size, self.processes) == (of, batch_size, processes)


@dataclass(frozen=True)
class Recalled:
    """What an earlier start has left. `folder` holds the files of checkpoint `step`, on the first process."""

    step: str | None = None
    folder: Path | None = None
    state: Mapping[str, Any] = field(default_factory=dict)
    data: str | None = None
    """Fingerprint of the rows that were trained on."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    starts: tuple[Mapping[str, Any], ...] = ()
    """The starts of this run before, for run.json."""
    answers: Mapping[str, Answers] = field(default_factory=dict)


class Journal:
    """`about` is added to all that is kept: seconds by stage, fingerprint of the data, starts so far."""

    def __init__(self, plan: Plan, scratch: Path, say: Say, about: Callable[[], Mapping[str, Any]]) -> None:
        self.plan, self.scratch, self.say, self.about = plan, scratch, say, about
        self.identity = identity(plan)
        self.place = f"{plan.settings.output_dir}/{CHECKPOINTS}"
        self.recalled = Recalled()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._going: Future[None] | None = None

    def recall(self) -> Recalled:
        """Find what counts, newest first; what does not is told, with the reason. Every process must call it."""
        told = [self._recall() if PartialState().is_main_process else None]
        self.recalled = broadcast_object_list(told)[0]
        return self.recalled

    def forget(self) -> None:
        """Remove all that is kept: a run begins anew. On the first process."""
        folder = open_folder(self.place)
        found = commits.find(folder)
        commits.remove(folder, [*(commit.name for commit in found.commits), *found.skipped])

    def check_data(self, fingerprint: str) -> None:
        """Raise UsageError if the checkpoint was trained on other rows."""
        known = self.recalled.data
        if self.recalled.step and known and known != fingerprint and not self.plan.settings.resume_anyway:
            raise UsageError(
                f"--dataset: its rows are not those that {self.recalled.step} was trained on",
                "write --restart to begin anew, or --resume-anyway to go on with these rows",
            )

    def keep_answers(self, side: Side, answers: Answers) -> None:
        """Keep what the model has answered so far. On the first process."""
        folder = self._new_folder(f"{side}-{answers.rounds}")
        record = {**vars(answers), "texts": sorted(answers.texts.items())}
        (folder / ANSWERS).write_text(json.dumps(record), encoding="utf-8")
        self._keep(folder, side, answers.rounds, 1)

    def step_folder(self, step: int) -> Path:
        """A local folder for the files of a checkpoint. On the first process."""
        return self._new_folder(f"{STEP}-{step}")

    def keep_step(self, folder: Path, step: int) -> None:
        """Make a checkpoint durable, in the background. On the first process."""
        self._keep(folder, STEP, step, self.plan.settings.save_total_limit)

    def wait(self) -> None:
        """Wait for what is being written. Raises StorageError if it could not be, after all tries."""
        if self._going is not None:
            self._going.result()

    def finish(self) -> None:
        """Wait for what is being written, whatever comes of it: the process is about to end."""
        if self._going is not None:
            wait([self._going])

    def check(self) -> None:
        """Raise StorageError if what was being written could not be."""
        if self._going is not None and self._going.done():
            self._going.result()

    def _new_folder(self, name: str) -> Path:
        folder = self.scratch / "keeping" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def _keep(self, source: Path, kind: str, number: int, limit: int) -> None:
        self.wait()
        about = {**self.about(), "identity": self.identity}
        self._going = self._pool.submit(self._write, source, kind, number, limit, about)

    def _write(self, source: Path, kind: str, number: int, limit: int, about: Mapping[str, Any]) -> None:
        for pause in (*PAUSES_S, None):
            try:
                folder = open_folder(self.place)
                commits.prune(folder, commits.write(folder, source, kind, number, about), limit)
                break
            except StorageError as error:
                if pause is None:
                    hint = "what was kept before is whole; the same command goes on from there"
                    message = f"checkpoint {kind}-{number} could not be kept: {error.message}"
                    raise StorageError(message, f"{error.hint}; {hint}") from error
                self.say(f"  checkpoint {kind}-{number} was not kept ({error.message}); trying again in {pause:g} s")
            time.sleep(pause)
        shutil.rmtree(source, ignore_errors=True)

    def _recall(self) -> Recalled:
        settings = self.plan.settings
        folder = open_folder(self.place)
        found = commits.find(folder)
        if not found.commits and settings.resume_from:
            folder, found = commits_at(settings.resume_from)
        fitting: list[Commit] = []
        for commit in found.commits:
            differs = compare(self.identity, commit.about.get("identity", {}))
            if not differs or (settings.resume_anyway and commit.kind == STEP):
                fitting.append(commit)
            else:
                self.say(f"  {commit.name} does not count: it is that of another run: {differs[0]}")
        got = {}
        for kind in (STEP, BEFORE, AFTER):
            for commit in (one for one in fitting if one.kind == kind):
                target = self._new_folder(f"recalled-{kind}")
                problem = commits.fetch(folder, commit, target)
                if problem is None:
                    got[kind] = (commit, target)
                    break
                self.say(f"  {commit.name} does not count: {problem}")
        return _recalled(got)


def _recalled(got: Mapping[str, tuple[Commit, Path]]) -> Recalled:
    if not got:
        return Recalled()
    answers = {kind: _answers(folder / ANSWERS) for kind, (_, folder) in got.items() if kind != STEP}
    last = next(got[kind][0] for kind in (AFTER, STEP, BEFORE) if kind in got)
    about = last.about
    common = (about.get("data"), about.get("seconds", {}), tuple(about.get("starts", ())), answers)
    if STEP not in got:
        return Recalled(None, None, {}, *common)
    step, folder = got[STEP]
    return Recalled(step.name, folder, json.loads((folder / STATE).read_text(encoding="utf-8")), *common)


def _answers(path: Path) -> Answers:
    record = json.loads(path.read_text(encoding="utf-8"))
    losses = tuple((total, tokens) for total, tokens in record["losses"])
    return Answers(**{**record, "texts": {int(place): text for place, text in record["texts"]}, "losses": losses})
