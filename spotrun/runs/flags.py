"""Checks flags that several commands share, and accepts their old names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Container, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from spotrun.errors import SpecInvalid
from spotrun.units import Unreadable

Value = TypeVar("Value")
RENAMED = {
    "--at-once": "--max-parallel",
    "--batch-as": "--batch-arg",
    "--devices-as": "--devices-arg",
    "--from": "--init-from",
    "--judged-from": "--grace-epochs",
    "--precision-as": "--precision-arg",
    "--spend-rest": "--resume-stopped",
    "--stop-worst": "--reduction-factor",
    "--within": "--trial-timeout",
}
"""
New names of flags that were renamed, by their old names. A user can still give a flag under its old name, but help and
messages show only the new one.
"""


def read_flag(flag: str, read: Callable[[object], Value], text: str, hint: str | None = None) -> Value:
    """
    Convert the text of a flag to a value with `read`.

    Raises:
        SpecInvalid: `read` cannot read the text. The error's hint is `hint`, or else the suggestion of `read`.
    """
    try:
        return read(text)
    except Unreadable as error:
        raise SpecInvalid(f"{flag}: {error.message}", hint=hint or error.suggestion) from error


def only_one(**given: bool) -> None:
    """
    Check that at most one of the flags is given.

    Raises:
        SpecInvalid: more than one of them is given.
    """
    flags = [f"--{name.replace('_', '-')}" for name, is_given in given.items() if is_given]
    if len(flags) > 1:
        raise SpecInvalid(f"{' and '.join(flags)} cannot be combined", hint="give one of them")


def known_word(flag: str, word: str, words: Collection[str]) -> str:
    """
    Return `word`, the value of a flag, if it is one of `words`.

    Raises:
        SpecInvalid: `word` is not one of `words`.
    """
    if word not in words:
        raise SpecInvalid(f"{flag} does not accept {word!r}", hint=f"use one of {', '.join(words)}")
    return word


def with_new_names(words: Sequence[str], known: Container[str]) -> list[str]:
    """
    Replace each flag's old name by its new name, if the command accepts the new name. Words after `--` belong to the
    script and are not changed.

    Raises:
        SpecInvalid: a flag is given under both of its names.
    """
    end = words.index("--") if "--" in words else len(words)
    given = {word.partition("=")[0] for word in words[:end]}
    renamed = {old: new for old, new in RENAMED.items() if old in given and new in known}
    for old, new in renamed.items():
        if new in given:
            raise SpecInvalid(f"both {new} and its old name {old} are given", hint=f"leave out {old}")
    parts = (word.partition("=") for word in words[:end])
    return ["".join((renamed.get(flag, flag), *value)) for flag, *value in parts] + list(words[end:])


LIKE = 0.75
"""
Minimum similarity at which a known flag is suggested instead of an unknown flag: --follow for --fllow, but not --store
for --json.
"""


KEYS = {
    **dict.fromkeys(("--gpu", "--gpus", "--accelerator", "--accelerators"), "accelerators"),
    "--instance-type": "instance_type",
    **dict.fromkeys(("--cloud", "--region", "--zone", "--cpus", "--memory"), ""),
    "--image": "image_id",
    **dict.fromkeys(("--spot", "--on-demand", "--auto"), "spot_policy"),
    "--max-price": "max_price",
}
"""
Flags that name resources, each with the key under `resources` that says the same in a job; "" for a key of the same
name. Some of them are options of some commands.
"""

RENT_NOTHING = frozenset({"spotrun init", "spotrun plan"})


def require_dashes(
    command: str, words: Sequence[str], flag: str, known: Collection[str], of_launch: Collection[str] = ()
) -> None:
    """
    Refuse a command line whose unknown `flag` is an argument of the script, a key of the job, or one of `of_launch`,
    which are options of `spotrun launch`. Each word that is no flag belongs to the flag before it. Do nothing if no
    file is named, or if `flag` looks like one of the `known` flags.

    Raises:
        SpecInvalid: the hint is the key, or the whole line, with the arguments of the script behind `--`.
    """
    end = words.index("--") if "--" in words else len(words)
    ours, scripts = list[str](), list[str]()
    part = ours
    for word in words[:end]:
        if word.startswith("-"):
            part = ours if word.partition("=")[0] in known else scripts
        part.append(word)
    if not any(Path(word).is_file() for word in ours) or get_close_matches(flag, known, 1, LIKE):
        return
    line = shlex.join([*command.split(), *ours, "--", *scripts, *words[end + 1 :]])
    if flag in KEYS:
        reason = "the job names its resources"
        hint = f"{_resource(flag, scripts)} in the job file; an argument of the script goes behind --: {line}"
    elif flag in of_launch and flag.startswith("--"):
        reason = "it is an option of spotrun launch"
        is_dry = flag == "--dry-run" and command in RENT_NOTHING
        hint = f"leave it out; {command} {'rents nothing' if is_dry else '--help shows all options'}"
    else:
        reason, hint = "arguments of the script go behind --", _of_the_job(flag, scripts, known) or line
    refused = SpecInvalid(f"{command} has no option {flag}; {reason}", hint=hint)
    refused.place = {"key": flag}
    raise refused


def _resource(flag: str, words: Sequence[str]) -> str:
    """Return the key of a job for a flag that names resources, with the value that follows the flag in `words`."""
    after = words[next(at for at, word in enumerate(words) if word.partition("=")[0] == flag) :]
    value = after[0].partition("=")[2] or next(iter(after[1:]), "…")
    key = KEYS[flag] or flag.removeprefix("--")
    if key == "spot_policy":
        value = flag.removeprefix("--")
    elif key == "accelerators" and not re.search("[A-Za-z]", value):
        value = f"A10G:{value if value.isdecimal() else 1}"
    return f"write `resources: {{{key}: {shlex.quote(value)}}}`"


def _of_the_job(flag: str, words: Sequence[str], known: Collection[str]) -> str | None:
    """Return how to write a variable of the job; None if the unknown `flag` is not followed by one."""
    value = words[1] if len(words) == 2 else ""
    is_variable = flag == "-e" and re.fullmatch(r"[A-Za-z_]\w*=.*", value, re.ASCII)
    return f"did you mean --env {shlex.quote(value)}?" if is_variable and "--env" in known else None


def refuse_stray(
    command: str, words: Sequence[str], stray: Sequence[str], valued: Container[str], lists: Container[str]
) -> None:
    """
    Refuse a command line with `stray` words, which no option takes, before the `--` that begins the script's arguments.
    `valued` are the options that have a value; `lists` are those of them whose values are separated by commas.

    Raises:
        SpecInvalid: there is such a word. The hint is the whole line with these words behind `--`, or, if the first of
            them follows a value of a list, the list with its further values.
    """
    if not stray:
        return
    end = words.index("--") if "--" in words else len(words)
    ours, missing, hint = list[str](), list(stray), ""
    for at, word in enumerate(words[:end]):
        if not missing or word != missing[0] or (at and words[at - 1] in valued):
            ours.append(word)
            continue
        if len(missing) == len(stray) and at > 1 and words[at - 2] in lists:
            between = f" {words[at - 2]} " if "=" in word else ","
            hint = f"did you mean {words[at - 2]} {shlex.quote(words[at - 1])}{between}{shlex.quote(word)}?"
        del missing[0]
    line = shlex.join([*command.split(), *ours, "--", *stray, *words[end + 1 :]])
    told = f"{command} does not know what {stray[0]} means; arguments of the script go behind --"
    raise SpecInvalid(told, hint=hint or line)
