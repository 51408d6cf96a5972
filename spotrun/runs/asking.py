"""Asks the user questions at the terminal. Writes to standard error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

import typer

from spotrun.errors import SpecInvalid
from spotrun.runs.signals import Signalled
from spotrun.units import shown_lines

YES_NO = ("yes", "no")


def confirm(yes: bool, question: str, *, default: bool, declined: str) -> None:
    """
    Ask for confirmation. If `yes` is True, the user has already confirmed with a flag, so do nothing. `default` is the
    answer if the user only presses Enter. If the answer is no, print `declined` and end the command with exit code 1.

    Raises:
        SpecInvalid: there is no terminal to ask on, or the input has ended.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise SpecInvalid("cannot ask for confirmation: there is no terminal", hint="add -y")
    try:
        answer = choose(f"{question} [{'Y/n' if default else 'y/N'}]: ", YES_NO, YES_NO[not default])
    except EOFError:
        raise SpecInvalid(f"no answer to {question!r}: the input has ended; {declined}", hint="add -y") from None
    except (KeyboardInterrupt, Signalled):
        say(f"\n{declined}")
        raise
    if answer == "no":
        say(declined)
        raise typer.Exit(1)


def choose(question: str, answers: Sequence[str], default: str | None = None) -> str:
    """
    Ask until the user types one of `answers`, or the beginning of one. Return that answer. An empty answer means
    `default`.

    Raises:
        EOFError: the input has ended.
    """
    while True:
        said = input(shown_lines(question)).strip().lower()
        if not said and default is not None:
            return default
        meant = [answer for answer in answers if said and answer.startswith(said)]
        if len(meant) == 1:
            return meant[0]
        print(f"Type {' or '.join(answers)}.")


def say(line: str) -> None:
    """Print a line on standard error. Do nothing if standard error is closed."""
    with contextlib.suppress(OSError):
        print(shown_lines(line), file=sys.stderr, flush=True)
