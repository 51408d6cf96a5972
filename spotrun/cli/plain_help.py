"""
How `--help` looks: plain lines, each value by the word that its option gives it, and an example at the end.

Typer by itself writes a type beside every argument and flag (`<bool>`, `<path>`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand

Verbs = Mapping[str, tuple[Callable[..., None], str]]
"""Functions by the names of their commands, each with the arguments of an example."""


class Verb(TyperCommand):
    """A command of spotrun. Its arguments are shown by their metavar alone."""

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


def add_verbs(app: typer.Typer, command: str, verbs: Verbs) -> None:
    """Make the verbs of `command`. Its list of them shows the first line of each docstring in full."""
    for name, (function, arguments) in verbs.items():
        assert function.__doc__ is not None
        short = function.__doc__.strip().splitlines()[0]
        example = f"Example: {command} {name} {arguments}".rstrip()
        app.command(name, cls=Verb, short_help=short, epilog=example)(function)
