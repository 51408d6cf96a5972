"""The findings of checks, with their verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum

import msgspec

from spotrun.errors import CloudUnavailable, SpotrunError, StoreUnavailable


class Verdict(StrEnum):
    """
    The verdict of a check. `warned`: a run works, at a price. `unknown`: the check could not find out. `failed`: do not
    launch. `waits` is no verdict yet: the check goes on, and the finding says what it waits for.
    """

    OK = "ok"
    WARNED = "warned"
    UNKNOWN = "unknown"
    FAILED = "failed"
    WAITS = "waits"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a check. `hint` continues the sentence "try: …". `exit_code` is that of the failure, or 0."""

    name: str
    verdict: Verdict
    detail: str
    hint: str = ""
    exit_code: int = 0


class ChecksFailed(SpotrunError):
    """Do not launch. Its exit code is that of the first failure."""

    def __init__(self, failures: Sequence[Finding]) -> None:
        names = ", ".join(dict.fromkeys(failure.name for failure in failures))
        super().__init__(f"checks failed: {names}", hint="fix what is named above")
        self.exit_code = failures[0].exit_code  # type: ignore[misc]


Check = Callable[[], Iterable[Finding]]


def ok(name: str, detail: str) -> Finding:
    return Finding(name=name, verdict=Verdict.OK, detail=detail)


def warned(name: str, detail: str, hint: str) -> Finding:
    return Finding(name=name, verdict=Verdict.WARNED, detail=detail, hint=hint)


def unknown(name: str, reason: str, hint: str = "") -> Finding:
    return Finding(name=name, verdict=Verdict.UNKNOWN, detail=reason, hint=hint)


def waits(name: str, what: str) -> Finding:
    return Finding(name=name, verdict=Verdict.WAITS, detail=what)


def failed(name: str, error: SpotrunError) -> Finding:
    hint = advice_of(error, "")
    return Finding(name=name, verdict=Verdict.FAILED, detail=error.message, hint=hint, exit_code=error.exit_code)


def advice_of(error: SpotrunError, otherwise: str) -> str:
    """Return an error's hint, else `otherwise`: but a fault that passes by itself needs no other rights or settings."""
    passes = isinstance(error, CloudUnavailable | StoreUnavailable)
    return error.hint or ("look again in some minutes: it may pass by itself" if passes else otherwise)


def findings_of(name: str, check: Check) -> Iterator[Finding]:
    """Yield the findings of a check. If an error ends the check, it is the last finding, under `name`."""
    try:
        yield from check()
    except SpotrunError as error:
        yield failed(name, error)
