"""
Builds the job for one trial of a sweep: the sweep's job, with the trial's parameters as arguments or environment
variables of the script.

Each parameter is set in one of these ways. The first line whose condition (on the left) is met applies:

    args has --lr 0.1, --lr=0.1 or lr=0.1           the value is replaced
    envs has lr                                     the value is replaced
    the script, or a file next to it, names "--lr"  --lr VALUE is added
    the script uses Hydra                           lr=VALUE is added
    the script's arguments are unknown              --lr VALUE is added

If no line applies to a parameter, spotrun refuses the sweep before it rents anything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from difflib import get_close_matches
from itertools import groupby
from math import prod

from spotrun.errors import SpecInvalid
from spotrun.spec.arguments import Script, as_number, plain, replaced
from spotrun.spec.model import BudgetSpec, RunSpec, TrainSpec

EXAMPLE = "--grid lr=1e-3,3e-4"
BRACKETS = {"(": ")", "[": "]", "{": "}"}
BRACKETS_EXAMPLE = "a comma in brackets belongs to its value: --grid layers=[64,64],[128]"
COMBINATIONS_MAX = 10_000
ALIKE = 0.75
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}", re.ASCII)

Grid = dict[str, tuple[str, ...]]
"""The values to try for each parameter, as the user typed them."""


def read_grid(texts: Sequence[str]) -> Grid:
    """
    Parse the values of flags such as `--grid lr=1e-3,3e-4 --grid width=64,128` into a grid.

    Raises:
        SpecInvalid: a parameter lacks a name or a value, has a value twice, or is given twice; or there are too many
            combinations.
    """
    grid: Grid = {}
    for text in texts:
        name, given, listed = (part.strip() for part in text.partition("="))
        if not given or not listed:
            raise SpecInvalid(f"--grid {text!r} has no value", hint=f"write a name and its values: {EXAMPLE}")
        if not _NAME.fullmatch(name):
            raise SpecInvalid(f"--grid {text!r}: {name!r} is not the name of a parameter", hint=f"like {EXAMPLE}")
        if other := next((known for known in grid if plain(known) == plain(name)), None):
            raise SpecInvalid(f"--grid names {other} twice", hint=f"write all its values at once: {EXAMPLE}")
        grid[name] = _values(text, listed)
    if not grid:
        raise SpecInvalid("a sweep needs a grid", hint=EXAMPLE)
    if (count := combinations(grid)) > COMBINATIONS_MAX:
        raise SpecInvalid(f"the grid has {count:,} combinations, and the maximum is {COMBINATIONS_MAX:,}", hint=EXAMPLE)
    return grid


def combinations(grid: Mapping[str, Sequence[str]]) -> int:
    return prod(len(values) for values in grid.values())


def _values(text: str, listed: str) -> tuple[str, ...]:
    values = tuple(value.strip() for value in _at_commas(text, listed))
    if "" in values:
        raise SpecInvalid(f"--grid {text!r} has an empty value", hint=f"separate values with one comma: {EXAMPLE}")
    for _, alike in groupby(sorted(values, key=as_number), key=as_number):
        same = list(alike)
        if len(same) > 1:
            raise SpecInvalid(f"--grid {text!r} has the same value twice: {' and '.join(same)}", hint="remove one")
    return values


def _at_commas(text: str, listed: str) -> list[str]:
    """Split a list at its commas, but not at a comma within brackets: `[64,64],[128]` are two values."""
    parts, open_brackets = [""], list[str]()
    for letter in listed:
        if letter in BRACKETS:
            open_brackets.append(BRACKETS[letter])
        elif letter in BRACKETS.values() and (not open_brackets or open_brackets.pop() != letter):
            raise SpecInvalid(f"--grid {text!r}: the {letter!r} has no opening bracket", hint=BRACKETS_EXAMPLE)
        if letter == "," and not open_brackets:
            parts.append("")
        else:
            parts[-1] += letter
    if open_brackets:
        raise SpecInvalid(f"--grid {text!r}: a closing {open_brackets[-1]!r} is missing", hint=BRACKETS_EXAMPLE)
    return parts


# -- where a parameter is set ----------------------------------------------------------------------------------------


def with_params(spec: RunSpec, params: Mapping[str, str]) -> RunSpec:
    """
    Return the job with these parameters.

    Raises:
        SpecInvalid: there is a parameter that neither the job nor its script has.
    """
    script = Script(spec)
    for name, value in params.items():
        spec = _with_param(spec, script, name, value)
    return spec


def _with_param(spec: RunSpec, script: Script, name: str, value: str) -> RunSpec:
    train = spec.train
    if (args := replaced(train.args, name, value)) is not None:
        return _with_args(spec, args)
    if name in spec.envs:
        return spec.model_copy(update={"envs": {**spec.envs, name: value}})
    if train.run is not None:
        envs = ", ".join(spec.envs) or "none"
        raise SpecInvalid(
            f"--grid {name}: the job runs a command, so only its envs can be parameters: {envs}",
            hint=f"write envs: {{{name}: {value}}} and use ${name} in the command",
            key=("train", "run"),
        )
    return _with_args(spec, (*train.args, *_added(spec, script, name, value)))


def _with_args(spec: RunSpec, args: Sequence[str]) -> RunSpec:
    train: TrainSpec = spec.train.model_copy(update={"args": tuple(args)})
    return spec.model_copy(update={"train": train})


def _added(spec: RunSpec, script: Script, name: str, value: str) -> tuple[str, ...]:
    """Return the words to add to the job's `args` for a parameter that `args` does not contain yet."""
    if (flag := script.flag_for(name)) is not None:
        return _flag_with(flag, value)
    if script.is_hydra:
        return (f"{name}={value}",)
    itself, beside = script.itself, script.beside
    known = {flag.lstrip("-") for flag in beside.flags} | set(spec.envs)
    near = _near(name, known)
    if not near and (not itself.flags or itself.is_open or plain(name) in itself.words | beside.words):
        return _flag_with(f"--{name}", value)
    listed = ", ".join(sorted(itself.flags)[:10])
    hint = f"did you mean {near[0]}?" if near else f"its arguments are {listed}"
    raise SpecInvalid(f"--grid {name}: {spec.train.title} has no argument --{name}", hint=hint)


def _flag_with(flag: str, value: str) -> tuple[str, ...]:
    """
    Return a flag and its value as words of a command line. Join them into one word if the value begins with a dash,
    because the value would otherwise look like another flag.
    """
    return (f"{flag}={value}",) if value.startswith("-") and flag.startswith("--") else (flag, value)


def _near(name: str, known: Collection[str]) -> list[str]:
    """
    Return a list with the known name that the user probably meant, or an empty list if none is similar. Prefer a name
    that differs only in upper and lower case.
    """
    alike = sorted(each for each in known if plain(each).lower() == plain(name).lower())
    return alike[:1] or get_close_matches(name, sorted(known), 1, ALIKE)


# -- the limits of a trial -------------------------------------------------------------------------------------------


def trial_spec(
    spec: RunSpec, name: str, budget_usd: Decimal, work: timedelta | None = None, time_left: timedelta | None = None
) -> RunSpec:
    """
    Return the job of the trial called `name`. The trial can spend up to `budget_usd`, and is expected to train for
    `work`.

    `time_left` is the time until the sweep's deadline, and becomes the maximum duration of the run. It also becomes the
    run's deadline, if the job may have one.
    """
    policy, budget = spec.policy, BudgetSpec(max_usd=budget_usd, warn_at=spec.budget.warn_at)
    update: dict[str, object] = {"name": name, "budget": budget}
    if work is not None:
        policy = policy.model_copy(update={"expected_work": work})
    if time_left is not None:
        longest = time_left if spec.max_duration is None else min(time_left, spec.max_duration)
        update["max_duration"] = longest
        policy = policy.model_copy(update={"deadline": time_left if may_have_deadline(spec) else None})
    return spec.model_copy(update={**update, "policy": policy})


def may_have_deadline(spec: RunSpec) -> bool:
    """
    Return True if the job may have a deadline. A job that uses only spot may not, because it cannot guarantee to meet
    the deadline. The strategy `spot_only` accepts a deadline without this guarantee.
    """
    return spec.resources.spot_policy != "spot" or spec.policy.strategy == "spot_only"
