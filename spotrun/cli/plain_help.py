"""
Formats `--help` as plain lines. Each value is shown by a descriptive name instead of its type (`FOLDER`, not `<path>`),
and each verb's help ends with an example.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import CompletionItem, TyperArgument, TyperCommand, TyperGroup, TyperOption  # type: ignore[attr-defined]

from spotrun.errors import SpecInvalid

ARGUMENTS = "[-- ARGUMENTS]"
"""How help shows the arguments that a command passes to the script."""
HELP = {"help_option_names": ["-h", "--help"]}
"""The context settings of each command."""
Verbs = Mapping[str, tuple[Callable[..., None], str]]
"""Maps the name of each command to its function and the arguments of an example."""


class Verb(TyperCommand):
    """
    A command of spotrun. Its help names each argument by its metavar, and does not show its type. It also accepts
    former names of flags.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from spotrun.runs.flags import refuse_stray, require_dashes, with_new_names

        known = {flag for each in self.params for flag in each.opts}
        words = with_new_names(args, known)
        command = f"spotrun {ctx.info_name}"
        try:
            rest = super().parse_args(ctx, [*words])  # it takes words off the list
        except typer.TyperException as refused:
            error: Any = refused
            error.ctx = getattr(error, "ctx", None) or ctx
            is_unknown = hasattr(error, "possibilities")
            if is_unknown and any(each.display_name_raw == ARGUMENTS for each in self._arguments()):
                require_dashes(command, words, getattr(error, "option_name", ""), known, _of_launch(ctx))
            raise
        if not ctx.resilient_parsing:  # as in a completion
            refuse_stray(command, words, self._stray(ctx, words), *self._valued())
        return rest

    def _stray(self, ctx: Any, words: list[str]) -> Sequence[str]:
        """Return the arguments of the script that are not behind `--`."""
        given = next((ctx.params[each.name] for each in self._arguments() if each.display_name_raw == ARGUMENTS), None)
        behind = len(words) - words.index("--") - 1 if "--" in words else 0
        return (given or [])[: max(0, len(given or []) - behind)]

    def _valued(self) -> tuple[set[str], set[str]]:
        """Return the options that have a value, and those of them whose value is a list."""
        valued = [each for each in self.params if isinstance(each, TyperOption) and not each.is_flag]
        lists = [each for each in valued if (each.metavar or "").endswith((",…", ",..."))]
        return {flag for each in valued for flag in each.opts}, {flag for each in lists for flag in each.opts}

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *(each.display_name_raw for each in self._arguments())]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        if arguments := [(each.display_name_raw, each.help or "") for each in self._arguments()]:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        options = [each.get_help_record(ctx) for each in self.get_params(ctx) if not isinstance(each, TyperArgument)]
        with formatter.section("Options"):
            formatter.write_dl([record for record in options if record is not None])

    def _arguments(self) -> list[TyperArgument]:
        return [each for each in self.params if isinstance(each, TyperArgument)]


def _of_launch(ctx: Any) -> set[str]:
    """Return the options of `launch`, if `ctx` belongs to a command of the same group."""
    verbs = getattr(ctx.find_root().command, "commands", {})
    return {flag for each in verbs["launch"].params for flag in each.opts} if "launch" in verbs else set()


def add_verbs(app: typer.Typer, command: str, verbs: Verbs) -> None:
    """Add the verbs to the command group. The group's help lists each verb with the first line of its docstring."""
    for name, (function, arguments) in verbs.items():
        assert function.__doc__ is not None
        short = function.__doc__.strip().splitlines()[0]
        example = f"Example: {command} {name} {arguments}".rstrip()
        app.command(name, cls=Verb, short_help=short, epilog=example, context_settings=HELP)(function)


class ListedVerb(NamedTuple):
    """
    A verb whose module is imported only when the verb is used.

    `short` is the first line of the verb's docstring, for the list of verbs. `arguments` are the arguments in its
    example. If `same_as` names another verb, this verb is an alias of that verb, and is not listed.
    """

    short: str = ""
    arguments: str = ""
    same_as: str = ""


class VerbGroup(TyperGroup):
    """
    A group whose verbs are imported only when they are used, because importing all of them would slow down `--help`.

    Each verb is a function in a file of `spotrun/cli`; function and file have the verb's name. If the file defines
    `app`, the verb is a group of further verbs.
    """

    verbs: ClassVar[Mapping[str, ListedVerb]]
    headings: ClassVar[Mapping[str, tuple[str, ...]]]
    """The listed verbs, grouped by purpose."""
    instead: ClassVar[Mapping[str, str]]
    """What to type instead of words that are no verbs."""
    unsuggested: ClassVar[frozenset[str]]
    """Verbs that delete something. They are not suggested for a misspelt word."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _ImportedWhenChosen(self.verbs)

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.verbs]

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        word = args[0]
        if word not in self.verbs and not word.startswith("-") and not ctx.resilient_parsing:  # as in a completion
            listed = {name for names in self.headings.values() for name in names}
            near = get_close_matches(word, sorted(listed - self.unsuggested), 1)
            meant = f"did you mean `spotrun {near[0]}`?" if near else "`spotrun --help` lists them"
            raise SpecInvalid(f"spotrun has no command {word}", hint=self.instead.get(word, meant))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, self.verbs))
        for heading, names in self.headings.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:{width}}", self.verbs[name].short) for name in names])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:
        listed = [name for names in self.headings.values() for name in names if name.startswith(incomplete)]
        verbs = [CompletionItem(name, help=self.verbs[name].short) for name in listed]
        return verbs + TyperCommand.shell_complete(self, ctx, incomplete)


class _ImportedWhenChosen(UserDict[str, Any]):
    """Maps names to commands. Reading a command from this map imports it."""

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        if isinstance(found, ListedVerb):
            found = self.data[name] = _imported(name, found)
        return found


def _imported(name: str, verb: ListedVerb) -> Any:
    own_name = (verb.same_as or name).replace("-", "_")
    module = import_module(f"spotrun.cli.{own_name}")
    if hasattr(module, "app"):
        return typer.main.get_command(module.app)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    add_verbs(alone, "spotrun", {name: (getattr(module, own_name), verb.arguments)})
    command = typer.main.get_command(alone)
    command.hidden = bool(verb.same_as)
    return command
