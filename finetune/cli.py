"""The click command that takes every setting as a flag, generated from the table in settings.py.

Values reach request.py as the text that was typed, and unknown flags do not stop the parser: all mistakes
of a command line are told together.
"""

import os
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from finetune import nodes
from finetune.errors import FinetuneError, UsageError, UsageErrors
from finetune.plan import Plan
from finetune.request import CHOICES, PROFILE, Raw, Request, from_config, from_environment, merge, unknown_flag
from finetune.settings import DEFAULTS, FLAGS, GROUPS, OPTIONS, flag, kind
from finetune.tasks.base import Split

SPLITS: tuple[Split, ...] = ("test", "train")
COMMANDS = ("run", "plan", "evaluate", "merge", "stage", "doctor")
ELSEWHERE = {
    "--adapter": "evaluate, merge",
    "--split": "evaluate",
    "--to": "stage",
    "--json": "plan, doctor",
    "--machine": "plan",
    "--plan": "run",
    "--dry-run": "run",
}
"""Flags that only some commands have, and a command that has each."""
HANDED_ON = ("dry_run", "json", "machine", "model_id", "to")
"""A command's own flags that its function takes as they are."""
TOKEN_WARNING = "warning: --hf-token can be read in the machine's list of processes; set HF_TOKEN instead"
HELP_WIDTH = 100
_METAVARS: dict[type, str] = {int: "N", float: "X", str: "TEXT"}


def flag_option(name: str, text: str, is_flag: bool = False) -> click.Option:
    """A flag of one command that is no setting."""
    # click takes a given is_flag=False as "the value may be left out"
    return click.Option([f"--{name}"], help=text, **({"is_flag": True} if is_flag else {}))


class SettingsCommand(click.Command):
    """Calls its function with the Request, the token given as a flag, and the command's own flags.

    A command that is not about a run (`plans` False) has its own flags alone: no settings, --config or --profile.
    """

    def __init__(self, *args: Any, plans: bool = True, extra: Sequence[click.Option] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        profiles = f"Hardware profile, not the one that matches [{' | '.join(CHOICES[PROFILE])}]"
        planning = [flag_option("config", "YAML file of settings"), flag_option(PROFILE, profiles)]
        self.settings = tuple(OPTIONS) if plans else ()
        self.own = [
            *(planning if plans else []),
            *extra,
            flag_option("hf-token", "Token for the hub; better: the environment variable HF_TOKEN"),
        ]
        self.params += [*self.own, *(option for name in self.settings for option in _options(name))]
        self.context_settings = {
            "token_normalize_func": lambda name: name.replace("_", "-"),
            "ignore_unknown_options": True,
            "allow_extra_args": True,
            **self.context_settings,
        }

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line into `ctx.params`. Raises UsageErrors where nothing can be planned at all."""
        spelled = self._spelled(args)
        if args and self._wants_value(args[-1]):
            args = [*args, ""]  # "needs a value" is told with the other mistakes
        rest = super().parse_args(ctx, args)
        typed, ctx.params = ctx.params, {}
        problems = self._left_over(rest) + self._valueless(typed)
        flags, flag_problems = _flags(typed, spelled)
        config, config_problems = from_config(Path(typed["config"])) if typed.get("config") else ({}, [])
        environment, environment_problems = from_environment(os.environ)
        given, value_problems = merge(flags, environment, config)
        place, node_problems = nodes.from_environment(os.environ)
        saved, plan_problems = _read_plan(typed.get("plan"))
        split, split_problems = _split(typed.get("split") or "test")
        problems += flag_problems + config_problems + environment_problems + value_problems + split_problems
        problems += node_problems
        if plan_problems:
            raise UsageErrors(problems + plan_problems)
        if typed["hf_token"]:
            click.echo(TOKEN_WARNING, err=True)
        ctx.params = {name: typed[name] for name in HANDED_ON if name in typed and name not in self.settings}
        ctx.params["hf_token"] = typed["hf_token"]
        ctx.params["request"] = Request(
            given=given,
            adapter=typed.get("adapter"),
            split=split,
            saved=saved,
            nodes=place,
            problems=tuple(problems),
        )
        return []

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Settings by group; the command's own flags last."""
        formatter.width = HELP_WIDTH
        for group, title in GROUPS.items():
            rows = [(_usage(name), _help(name)) for name in self.settings if OPTIONS[name].group == group]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=44)
        own = [option for option in self.get_params(ctx) if option in self.own or option.name == "help"]
        with formatter.section("This command"):
            formatter.write_dl([record for option in own if (record := option.get_help_record(ctx))], col_max=44)

    def _parameters(self) -> dict[str, click.Parameter]:
        return {spelling: option for option in self.params for spelling in option.opts}

    def _spelled(self, args: Sequence[str]) -> dict[str, str]:
        """How each setting's flag was typed, the last time it was."""
        known = self._parameters()
        typed = {}
        for token in args:
            name = token.partition("=")[0]
            option = known.get(name.replace("_", "-"))
            if name.startswith("--") and option is not None and option.name:
                typed[option.name] = name
        return typed

    def _wants_value(self, token: str) -> bool:
        option = self._parameters().get(token.replace("_", "-"))
        if not isinstance(option, click.Option) or option.is_flag:
            return False
        return option.name not in OPTIONS or kind(option.name) is not bool

    def _valueless(self, typed: dict[str, Any]) -> list[FinetuneError]:
        """Problems of the command's own flags that stand without their value. Forgets what they took instead."""
        problems: list[FinetuneError] = []
        for option in self.own:
            value = typed.get(option.name or "")
            if option.name == PROFILE or not isinstance(value, str) or (value.strip() and not value.startswith("--")):
                continue
            found = f", found the flag {value}" if value.strip() else ""
            problems.append(UsageError(f"{option.opts[0]}: needs a value{found}", f"write {option.opts[0]} ..."))
            typed[option.name or ""] = None
        return problems

    def _left_over(self, rest: Sequence[str]) -> list[FinetuneError]:
        """The problems of what no option took: unknown flags (a word behind one is its value) and stray words."""
        further = [spelling.lstrip("-") for option in self.params for spelling in option.opts]
        problems: list[FinetuneError] = []
        after_unknown = False
        for token in rest:
            if token.startswith("-") and token != "-":
                name = token.partition("=")[0].replace("_", "-")
                owner = ELSEWHERE.get(name) or ("run" if name.lstrip("-") in FLAGS else None)
                moved = UsageError(f"{name}: not a flag of this command", f"it is one of: entrypoint.py {owner}")
                problems.append(moved if owner else unknown_flag(token, further))
                after_unknown = "=" not in token
            elif not after_unknown:
                hint = (
                    f"a command comes first: entrypoint.py {token} ..."
                    if token in COMMANDS
                    else "a value follows its flag: --dataset rows.jsonl"
                )
                problems.append(UsageError(f"{token}: not expected here", hint))
            else:
                after_unknown = False
        return problems


def _options(name: str) -> list[click.Option]:
    """The click option of a setting, taking text; a yes-or-no one may stand alone, and has its --no- form."""
    spellings = [flag(name), *(f"--{alias}" for alias in OPTIONS[name].aliases)]
    if kind(name) is not bool:
        return [click.Option([name, *spellings])]
    negated = [f"--no-{spelling[2:]}" for spelling in spellings]
    return [
        click.Option([name, *spellings], is_flag=False, flag_value="true"),
        click.Option([f"no_{name}", *negated], is_flag=True),
    ]


def _flags(typed: dict[str, Any], spelled: dict[str, str]) -> tuple[dict[str, Raw], list[FinetuneError]]:
    """The settings among what click has read, with how each was spelled."""
    named = [name for name in (*OPTIONS, PROFILE) if typed.get(name) is not None]
    flags = {name: Raw(typed[name], "flag", spelled[name]) for name in named}
    problems: list[FinetuneError] = []
    for name in OPTIONS:
        if not typed.get(f"no_{name}"):
            continue
        negated = f"--no-{flag(name)[2:]}"
        if name in flags:
            problems.append(UsageError(f"{flag(name)}: given together with {negated}", "keep one of them"))
        flags[name] = Raw("false", "flag", negated)
    return flags, problems


def _split(text: str) -> tuple[Split, list[FinetuneError]]:
    for split in SPLITS:
        if text == split:
            return split, []
    near = (get_close_matches(text, SPLITS, 1) or ["test"])[0]
    return "test", [UsageError(f"--split: {text!r} is not known; expected test or train", f"write --split {near}")]


def _read_plan(path: str | None) -> tuple[Plan | None, list[FinetuneError]]:
    if path is None:
        return None, []
    try:
        return Plan.from_json(Path(path).read_text(encoding="utf-8")), []
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        return None, [UsageError(f"--plan {path}: cannot be read: {reason}", "write the path of a plan.json")]
    except UsageError as error:
        return None, [UsageError(f"--plan {path}: {error.message}", error.hint)]


def _usage(name: str) -> str:
    spellings = (name.replace("_", "-"), *OPTIONS[name].aliases)
    if kind(name) is bool:
        return ", ".join(f"--[no-]{spelling}" for spelling in spellings)
    return ", ".join(f"--{spelling}" for spelling in spellings) + f" {_METAVARS[kind(name)]}"


def _help(name: str) -> str:
    option = OPTIONS[name]
    choices = option.choices or CHOICES.get(name, ())
    default = DEFAULTS[name]
    shown = [" | ".join(choices)] if choices else []
    if default is not None:
        shown.append(f"default {str(default).lower() if isinstance(default, bool) else default}")
    return option.help + (f" [{'; '.join(shown)}]" if shown else "")
