"""What a user asks for: flags, FINETUNE_* environment variables and a --config file -> one Request.

The order is flag > environment > config file. All values are checked here, in one place and by one table
(settings.py), so that all mistakes of a command are told together, each with where it was made.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from finetune.errors import FinetuneError, UsageError
from finetune.nodes import ALONE, Nodes
from finetune.plan import Plan
from finetune.profiles import BY_NAME
from finetune.settings import DEFAULTS, FLAGS, OPTIONS, flag, kind, parse
from finetune.tasks import TASKS

Origin = Literal["flag", "env", "config"]
PREFIX = "FINETUNE_"
PROFILE = "profile"
"""Not a setting of a run, but chosen like one."""
NAMES: Mapping[str, str] = {**FLAGS, PROFILE: PROFILE}
CHOICES: Mapping[str, tuple[str, ...]] = {"task": tuple(TASKS), PROFILE: tuple(BY_NAME)}
TOKEN_HINT = "set HF_TOKEN=... in the environment: a token belongs in no file and no plan"
MEANT = {"gpu": "cuda", "4bit": "nf4", "qlora": "nf4", "bf16": "none", "sql": "text-to-sql", "images": "pets"}
"""Words for a choice that are spelled nothing like it."""


@dataclass(frozen=True)
class Raw:
    """A value as written, and where: `--lora-r`, `FINETUNE_LORA_R` or `run.yaml:3: lora_r`."""

    text: str
    origin: Origin
    where: str


@dataclass(frozen=True)
class Given:
    """A value that the user gave, checked."""

    value: Any
    origin: Origin
    where: str


@dataclass(frozen=True)
class Request:
    """All that the user asked for. `problems` are the mistakes found so far; `saved` is the plan to repeat."""

    command: Literal["run", "evaluate", "merge"] = "run"
    given: Mapping[str, Given] = field(default_factory=dict)
    what_if: bool = False
    adapter: str | None = None
    adapter_base: str | None = None
    adapter_settings: Mapping[str, Any] = field(default_factory=dict)
    """evaluate and merge: what the run that trained the adapter was told, as far as it matters still."""
    split: Literal["train", "test"] = "test"
    saved: Plan | None = None
    nodes: Nodes = ALONE
    problems: tuple[FinetuneError, ...] = ()

    def where(self, name: str) -> str:
        """How the user gave a setting, or its flag if they did not."""
        return self.given[name].where if name in self.given else flag(name)


def merge(*layers: Mapping[str, Raw]) -> tuple[dict[str, Given], list[FinetuneError]]:
    """Check the values that count, the first layer's before the next's."""
    given: dict[str, Given] = {}
    problems: list[FinetuneError] = []
    raws = {name: raw for layer in reversed(layers) for name, raw in layer.items()}
    for name, raw in raws.items():
        try:
            given[name] = Given(_value(name, raw.text), raw.origin, raw.where)
        except ValueError as error:
            problems.append(UsageError(f"{raw.where}: {error}", _what_to_write(name, raw)))
    return given, problems


def from_environment(environ: Mapping[str, str]) -> tuple[dict[str, Raw], list[FinetuneError]]:
    """The FINETUNE_* variables. Names that are no setting are problems; an empty one counts as unset."""
    found: dict[str, Raw] = {}
    problems: list[FinetuneError] = []
    for variable in sorted(key for key in environ if key.startswith(PREFIX)):
        spelling = variable.removeprefix(PREFIX).lower().replace("_", "-")
        if spelling == "hf-token":
            problems.append(UsageError(f"{variable}: not a setting", TOKEN_HINT))
        elif spelling not in NAMES:
            problems.append(UsageError(f"{variable}: no such setting", _nearest(spelling, NAMES, _as_variable)))
        elif environ[variable]:
            found[NAMES[spelling]] = Raw(environ[variable], "env", variable)
    return found, problems


def from_config(path: Path) -> tuple[dict[str, Raw], list[FinetuneError]]:
    """A --config file: YAML (or JSON) with one setting a line. Each value is told by file and line."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8-sig")
        node = yaml.compose(text, yaml.SafeLoader)
    except FileNotFoundError:
        return {}, [UsageError(f"--config {path}: no such file", "write the path of a YAML file")]
    except IsADirectoryError:
        return {}, [UsageError(f"--config {path}: is a folder", "write the path of a YAML file")]
    except UnicodeDecodeError:
        return {}, [UsageError(f"--config {path}: is not UTF-8 text", "save the file as UTF-8")]
    except OSError as error:
        return {}, [UsageError(f"--config {path}: cannot be read: {error.strerror}")]
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        return {}, [UsageError(f"{path}:{line}: is not YAML: {error.problem}", "write one `name: value` a line")]
    except yaml.YAMLError as error:
        return {}, [UsageError(f"{path}: is not YAML: {error}", "write one `name: value` a line")]
    if node is None:
        return {}, []
    if not isinstance(node, yaml.MappingNode):
        found = "a list" if isinstance(node, yaml.SequenceNode) else "text"
        return {}, [UsageError(f"{path}:1: expected `name: value` lines, found {found}", "write e.g. lora_r: 16")]
    return _read_mapping(path, node)


def _read_mapping(path: Path, node: Any) -> tuple[dict[str, Raw], list[FinetuneError]]:
    found: dict[str, Raw] = {}
    lines: dict[str, int] = {}
    problems: list[FinetuneError] = []
    for key_node, value_node in node.value:
        line, key = key_node.start_mark.line + 1, str(key_node.value)
        where, spelling = f"{path}:{line}: {key}", key.lower().replace("_", "-")
        name = NAMES.get(spelling)
        if spelling == "hf-token":
            problems.append(UsageError(f"{where}: not a setting", TOKEN_HINT))
        elif key_node.id != "scalar" or name is None:
            problems.append(UsageError(f"{where}: no such setting", _nearest(spelling, NAMES, _as_key)))
        elif name in lines:
            problems.append(UsageError(f"{where}: given twice, first on line {lines[name]}", "keep one of them"))
        elif value_node.id != "scalar":
            hint = _what_to_write(name, Raw("", "config", where))
            problems.append(UsageError(f"{where}: expected one value, found a list or a block", hint))
        else:
            lines[name] = line
            if value_node.tag != "tag:yaml.org,2002:null":  # `dataset:` with nothing after it leaves it unset
                found[name] = Raw(value_node.value, "config", where)
    return found, problems


def unknown_flag(token: str, further: Iterable[str] = ()) -> UsageError:
    """The problem of a flag that there is none of. `further` are a command's own flags, without dashes."""
    spelling = token.partition("=")[0].lstrip("-").replace("_", "-")
    return UsageError(
        f"{token.partition('=')[0]}: no such flag", _nearest(spelling, [*NAMES, *further], lambda name: f"--{name}")
    )


def _value(name: str, text: str) -> Any:
    if not text.strip() or text.startswith("--"):
        raise ValueError(f"needs a value{f', found the flag {text}' if text.strip() else ''}")
    if name in CHOICES:
        if text not in CHOICES[name]:
            *others, last = CHOICES[name]
            raise ValueError(f"{text!r} is not known; expected {', '.join(others)} or {last}")
        return text
    return parse(name, text)


def _what_to_write(name: str, raw: Raw) -> str:
    choices = CHOICES.get(name) or OPTIONS[name].choices
    meant = MEANT.get(raw.text.lower(), "")
    near = [meant] if meant in choices else get_close_matches(raw.text, choices, 1, 0.5)
    if near:
        return f"did you mean {_written(name, near[0], raw.origin)}?"
    return f"write {_written(name, _example(name), raw.origin)}"


def _example(name: str) -> str:
    if name in CHOICES:
        return CHOICES[name][0]
    default = DEFAULTS[name]
    if default is None:
        return {int: "100", float: "10.0", str: "..."}[kind(name)]
    return str(default).lower() if kind(name) is bool else str(default)


def _written(name: str, value: str, origin: Origin) -> str:
    forms = {"flag": f"{flag(name)} {value}", "env": f"{_as_variable(name)}={value}", "config": f"{name}: {value}"}
    return forms[origin]


def _as_variable(name: str) -> str:
    return PREFIX + name.upper().replace("-", "_")


def _as_key(name: str) -> str:
    return name.replace("-", "_")


def _nearest(spelling: str, known: Iterable[str], form: Any) -> str:
    names = list(known)
    near = [name for name in names if name.startswith(spelling)] or get_close_matches(spelling, names, 1, 0.6)
    return f"did you mean {form(near[0])}?" if near else "entrypoint.py run --help lists all of them"
