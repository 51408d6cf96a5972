"""
Turns every error of a command into an exit code and a message on standard error.

With `--json`, the standard output is always JSON. If an error prevents the command from printing its result, the output
is one line with the fields below. Within `problems`, a field that does not apply to the error is null.

    {"error": "…", "exit_code": 2, "problems": [{"file", "line", "column", "key", "problem", "fix"}, …]}
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import typer

from spotrun.errors import SpotrunError, Unreckonable, found
from spotrun.runs.signals import heeding

INTERRUPTED = 130
answered = False
"""True once the command has printed its JSON result. After that, an error must not add JSON to the standard output."""


def exit_code(app: typer.Typer, words: Sequence[str]) -> int | str | None:
    """
    Run a command, report its error, and return its exit code.

    Raises:
        BrokenPipeError: the command's output is closed.
    """
    global answered
    answered = False
    with heeding():
        try:
            code = app(args=list(words), standalone_mode=False)
        except SystemExit as end:
            if isinstance(end.__context__, BrokenPipeError):
                raise end.__context__ from None  # Typer makes it an exit code of 1
            return end.code
        except SpotrunError as error:
            return _failed(words, error)
        except ArithmeticError as error:
            return _failed(words, Unreckonable(error))
        except typer.TyperException as error:
            return _refused(words, error)
        except (KeyboardInterrupt, typer.Abort):
            return INTERRUPTED
    return code if isinstance(code, int) else 0


def _failed(words: Sequence[str], error: SpotrunError) -> int:
    from spotrun.units import shown_lines

    print(shown_lines(f"error: {error}"), file=sys.stderr)
    return _told(words, error.message, error.exit_code, error.problems_found())


def _refused(words: Sequence[str], error: Any) -> int:
    """
    Report a flag or argument that Typer refuses. `error` is one of Typer's UsageErrors, which have no public name.
    """
    from spotrun.runs.flags import LIKE
    from spotrun.units import shown_lines

    near = list[str]()
    if possible := getattr(error, "possibilities", None):
        near, error.possibilities = get_close_matches(error.option_name, possible, 1, LIKE), []
    param, context = getattr(error, "param", None), getattr(error, "ctx", None)
    key = getattr(error, "option_name", None) or (param and param.get_error_hint().replace("'", ""))
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    message = _about_extra(message, context)
    fix = f"did you mean {near[0]}?" if near else _behind_verb(words, error, context) or _usage(error, key, context)
    if type(error).__name__ == "NoArgsIsHelpError":  # a group without a verb shows its help
        error.show()
    else:
        print(shown_lines("\n  try: ".join(filter(None, (f"error: {message}", fix)))), file=sys.stderr)
    return _told(words, message, error.exit_code, [found(message, fix, key=key)])


def _about_extra(message: str, context: Any) -> str:
    """Return the message; if it is about extra arguments of a command with one argument, say that it takes one."""
    extra = re.fullmatch(r"got unexpected extra argument\S* \((.*)\)", message)
    named = [] if context is None else [each for each in context.command.params if each.param_type_name == "argument"]
    if extra is None or len(named) != 1:
        return message
    noun = str(named[0].metavar).strip("[]")
    return f"{' '.join(_verbs(context))} takes one {noun} at a time, and {extra[1]} is one more"


def _behind_verb(words: Sequence[str], error: Any, context: Any) -> str | None:
    """Return the line with the options behind the verb, if the unknown option is in front of it."""
    if context is None or not hasattr(error, "possibilities"):
        return None
    verbs, before = getattr(context.command, "commands", {}), _verbs(context)
    given = [*words[len(before) - 1 :]]
    verb = next((word for word in given if word in verbs), None)
    if verb is None:
        return None
    given.remove(verb)
    return f"options go behind the verb: {shlex.join([*before, verb, *given])}"


def _verbs(context: Any) -> list[str]:
    """Return the words with which a user types the command of this context."""
    return ["spotrun"] if context.parent is None else [*_verbs(context.parent), context.info_name]


def _usage(error: Any, key: str | None, context: Any) -> str | None:
    """Return how the option `key` of a command is written, or an example of the command, and how to see all options."""
    if context is None:
        return None
    options = {flag: each for each in context.command.params for flag in each.opts}
    value = key in options and not getattr(options[key], "is_flag", False) and options[key].metavar
    unknown = hasattr(error, "possibilities")
    example = "" if unknown else (context.command.epilog or "").removeprefix("Example: ")
    words = f"{key} {value}" if value else example
    return " ".join(filter(None, (words and f"{words};", f"{context.command_path} --help shows all options")))


def _told(words: Sequence[str], message: str, code: int, problems: list[dict[str, object]]) -> int:
    """
    If the command was given `--json` and has not printed its result yet, print the error as JSON. Return the exit code.
    """
    ours = words[: words.index("--")] if "--" in words else words
    if "--json" in ours and not answered:
        import json

        print(json.dumps({"error": message.partition("\n")[0], "exit_code": code, "problems": problems}))
    return code
