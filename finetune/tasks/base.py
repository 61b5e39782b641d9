"""What a task is: it turns rows of a data set into examples, and scores what a model answered."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from PIL.Image import Image

Row = Mapping[str, Any]
Split = Literal["train", "test"]
IMAGE_MARK = "\ufffc"
"""Unicode's object replacement character: where an image stands in a message of an example that has images."""


@dataclass(frozen=True)
class Message:
    """One turn of the conversation that stands before the answer. What the assistant says in it is trained on, too."""

    role: Literal["system", "user", "assistant"]
    content: str


class Picture(Protocol):
    """An image that is somewhere, and is only read when it is needed (pictures.py has the kinds)."""

    @property
    def name(self) -> str:
        """How a message names it: a file's name, or `image of row 12`."""
        ...

    def open(self) -> "Image":
        """Read it, as it is stored. Raises what PIL and the file system raise; see pictures.as_seen."""
        ...


@dataclass(frozen=True)
class Example:
    """One row, ready to be rendered: what the model is asked, and what it should answer.

    `row` is the row's number in its source (from 1), so that a message can name it. `images` stand where the prompt has
    an IMAGE_MARK for each; where it has none, before the text of the last user turn. `context` holds what scoring needs
    beyond the answer (for text-to-SQL the schema the queries run on).
    """

    row: int
    prompt: tuple[Message, ...]
    answer: str
    images: tuple[Picture, ...] = ()
    context: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Unusable:
    """Why a row cannot be used. `reason` is short and the same for all rows of its kind."""

    reason: str


@dataclass(frozen=True)
class Verdict:
    """What was found about one answer. `label` is one of the task's `verdicts`."""

    label: str
    detail: str = ""


@dataclass(frozen=True)
class Metric:
    """One number of a task: `value` as a share from 0 to 1, over `total` examples.

    `total` is the number of examples that could be scored, the denominator of a 95 % interval. A number that is no
    share has a `unit`, and its standard `error`; less of it is better.
    """

    name: str
    value: float
    total: int
    unit: str = ""
    error: float = 0.0


@dataclass(frozen=True)
class Confusion:
    """Which class was answered where which was right. `counts[expected, answered]` is a number of examples.

    `classes` are all that the prompt names, in its order. What was answered may also be one of `others`: an answer
    that names no class, or several.
    """

    classes: tuple[str, ...]
    others: tuple[str, ...]
    counts: Mapping[tuple[str, str], int]


@dataclass(frozen=True)
class Score:
    """`metrics[0]` is the task's headline number. `verdicts` has one entry an example, in order."""

    metrics: tuple[Metric, ...]
    verdicts: tuple[Verdict, ...]
    confusion: Confusion | None = None


@dataclass(frozen=True)
class DataSource:
    """Where a task's rows come from when the user names no data set.

    `prompt_tokens` and `answer_tokens` are those of a mean row, images apart, roughly: for a plan made before the data
    are here. 0 where that is not known.
    """

    dataset: str
    rows: int
    train_size: int
    eval_size: int
    prompt_tokens: int = 0
    answer_tokens: int = 0


class Task(Protocol):
    """A module with these names is a task (see text_to_sql.py). The table of tasks is tasks/__init__.py."""

    NAME: str
    DESCRIPTION: str
    SOURCE: DataSource
    LAYOUTS: tuple[tuple[str, ...], ...]
    """Columns that a row must have: all those of one of these."""
    PLACEHOLDERS: Row
    """A row with names in brackets for its values, for the model card."""
    DEFAULTS: Mapping[str, Any]
    """Settings that differ from the profile's for this task, by field name of settings.Settings."""
    VERDICTS: tuple[str, ...]
    """Every label a verdict can carry, best first. VERDICTS[0] is the only success."""
    UNSCORABLE: str | None
    """The one label of VERDICTS that says nothing about the model, if there is one."""
    ROWS_PER_STEP: int | None
    """Rows of an optimizer step, however many GPUs share them; None for the profile's own."""
    IMAGES: bool | None
    """Whether a row holds an image, under the first column of its layout; None where it may hold any number."""
    STRATIFIED: bool
    """Whether a cut of the data keeps the shares of the answers (which are classes then)."""

    TOKEN_LOSS: bool
    """Whether the loss on held-out answers is measured, as the headline number."""

    def survey(self, rows: Iterable[Row]) -> Any:
        """What each example has to know of all rows of both splits, such as the names of the classes. Pure."""
        ...

    def to_example(self, row: Row, number: int, survey: Any = None) -> Example | Unusable:
        """Row -> Example, or why not. `survey` is what `survey` returned. Pure."""
        ...

    def score(self, examples: Sequence[Example], completions: Sequence[str]) -> Score:
        """Judge one completion (generated text, special tokens removed) an example. Offline."""
        ...
