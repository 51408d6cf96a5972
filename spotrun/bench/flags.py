"""Reads the flags of a bench."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from typing import NamedTuple

from spotrun.bench.trials import Arguments, BenchTrial, trials
from spotrun.errors import SpecInvalid, SpotrunError
from spotrun.runs.flags import read_flag
from spotrun.spec.kinds import AnyOf, Kind, read_kinds
from spotrun.spec.model import RunSpec
from spotrun.spec.values import read_positive_duration
from spotrun.units import Unreadable, parse_usd

WITHIN_LEAST = timedelta(minutes=1)
"""Minimum of --trial-timeout: a shorter trial would end before its instance has started."""


class BenchFlags(NamedTuple):
    types: tuple[str, ...]
    batch: str | None
    precision: str | None
    devices: str | None
    budget: str | None
    trial_timeout: str
    against: str | None
    batch_arg: str | None
    precision_arg: str | None
    devices_arg: str | None
    store: str | None

    @property
    def names(self) -> Arguments:
        """
        The names of the script's arguments that set batch size, precision and number of devices. The user gives them
        by `--batch-arg`, `--precision-arg` and `--devices-arg`.

        Raises:
            SpecInvalid: the user named an argument but gave no values for it, for example `--batch-arg` without
            `--batch`.
        """
        for flag, named, given in (
            ("--batch", self.batch_arg, self.batch),
            ("--precision", self.precision_arg, self.precision),
            ("--devices", self.devices_arg, self.devices),
        ):
            if named is not None and given is None:
                raise SpecInvalid(
                    f"{flag}-arg {named} has no effect without {flag}", hint=f"add {flag}, or remove {flag}-arg"
                )
        return Arguments(batch=self.batch_arg, devices=self.devices_arg, precision=self.precision_arg)

    @property
    def limit(self) -> timedelta:
        """
        The maximum duration of a trial.

        Raises:
            SpecInvalid: --trial-timeout is not a duration, or is too short.
        """
        limit = read_flag("--trial-timeout", read_positive_duration, self.trial_timeout, "--trial-timeout 20m")
        if limit < WITHIN_LEAST:
            raise SpecInvalid(
                f"--trial-timeout {self.trial_timeout} would end a trial before its instance has started",
                hint="use a longer time, such as --trial-timeout 20m",
            )
        return limit

    @property
    def budget_usd(self) -> Decimal | None:
        """
        The budget of the bench in dollars; None without one.

        Raises:
            SpecInvalid: --budget is not an amount of dollars.
        """
        return None if self.budget is None else read_flag("--budget", parse_usd, self.budget, "--budget 2")

    def trials(self, spec: RunSpec) -> list[BenchTrial]:
        """
        Return the trials that the flags describe.

        Raises:
            SpecInvalid: a value of one of the flags cannot be read.
        """
        return trials(
            spec,
            _kinds(self.types),
            _numbers("--devices", self.devices),
            _numbers("--batch", self.batch),
            _words("--precision", self.precision),
        )


@contextmanager
def about_types(*, given: bool) -> Iterator[None]:
    """
    Change errors of the `with` block that name the job's key `resources.accelerators`. If the accelerators were `given`
    by the flag `--types`, and not by the job, such an error names the flag instead.
    """
    try:
        yield
    except SpotrunError as error:
        if given and error.key and error.key[:2] == ("resources", "accelerators"):
            error.key, error.message = (), f"--types: {error.message}"
        raise


def _kinds(texts: Sequence[str]) -> tuple[Kind, ...]:
    words = [word for text in texts for word in _words("--types", text)]
    if not words:
        return ()
    try:
        found = read_kinds(words)
    except Unreadable as error:
        raise SpecInvalid(f"--types: {error.message}", hint="write it like --types T4:1,A10G:1,c5.xlarge") from error
    return found.kinds if isinstance(found, AnyOf) else (found,)


def _words(flag: str, text: str | None) -> list[str]:
    words = [] if text is None else [word.strip() for word in text.split(",")]
    if "" in words:
        raise SpecInvalid(
            f"{flag} {text!r} has an empty value", hint="separate the values with single commas, with none at the end"
        )
    return words


def _numbers(flag: str, text: str | None) -> list[int]:
    words = _words(flag, text)
    if not all(word.isascii() and word.isdigit() and 0 < int(word) < 1_000_000 for word in words):
        raise SpecInvalid(f"{flag} {text!r} is not a list of positive whole numbers", hint=f"write it like {flag} 1,2")
    return list(map(int, words))


def base_of(against: str | None, types: Sequence[str]) -> str | None:
    """Return the type in `types` that `--against` names; None if the flag is not given."""
    if against is None:
        return None
    by_name = {each.casefold(): each for each in types}
    found = by_name.get(against.casefold()) or by_name.get(f"{against.casefold()}:1")
    if found is None:
        known = ", ".join(dict.fromkeys(types))
        raise SpecInvalid(f"--against {against!r} is not one of the measured types", hint=f"use one of {known}")
    return found
