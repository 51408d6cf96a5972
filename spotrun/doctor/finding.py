"""Runs checks, and defines their findings and verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from spotrun.errors import AccessDenied, CloudUnavailable, SpotrunError, StoreUnavailable


class Verdict(StrEnum):
    """
    The verdict of a check. With `failed`, runs will not work; with `warned`, they work, but with a disadvantage. With
    `unknown`, the check could not tell. With `waits`, there is no verdict yet, and the finding says what the check
    waits for.
    """

    OK = "ok"
    WARNED = "warned"
    UNKNOWN = "unknown"
    FAILED = "failed"
    WAITS = "waits"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """
    One result of a check. `hint` completes the text "try: …". `exit_code` is the failure's exit code, or 0 if nothing
    failed.
    """

    name: str
    verdict: Verdict
    detail: str
    hint: str = ""
    exit_code: int = 0


class ChecksFailed(SpotrunError):
    """
    A check has failed, so the job must not be launched. This error has the hint and the exit code of the first failure:
    checks are in the order in which their subjects are needed.
    """

    def __init__(self, failures: Sequence[Finding]) -> None:
        names = ", ".join(dict.fromkeys(failure.name for failure in failures))
        first = failures[0]
        hint = f"first, {first.name}: {first.hint}" if first.hint else "fix the failures listed above"
        super().__init__(f"checks failed: {names}", hint=hint)
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
    return _FAILURE.finding(name, error)


def _advice_of(error: SpotrunError, otherwise: str) -> str:
    """
    Return the error's hint. If it has none, return the advice to wait if the fault is temporary, else `otherwise`.
    """
    passes = isinstance(error, CloudUnavailable | StoreUnavailable)
    return error.hint or ("try again in a few minutes: the fault may pass" if passes else otherwise)


class Refusal(NamedTuple):
    """
    A rule that turns an error of the class `error`, raised by a check, into a finding with the verdict `verdict`. The
    default rule is for AccessDenied: if the user is not allowed to read what a check needs, the verdict is `unknown`.

    The finding's detail is the error's message, preceded by the text `words`. Its hint is `hint`; if that is "", the
    error's own hint; and if the error has none, `advice`.
    """

    words: str = ""
    hint: str = ""
    advice: str = ""
    error: type[SpotrunError] = AccessDenied
    verdict: Verdict = Verdict.UNKNOWN

    def finding(self, name: str, error: SpotrunError) -> Finding:
        return Finding(
            name=name,
            verdict=self.verdict,
            detail=f"{self.words}: {error.message}" if self.words else error.message,
            hint=self.hint or _advice_of(error, self.advice),
            exit_code=error.exit_code if self.verdict is Verdict.FAILED else 0,
        )


_FAILURE = Refusal(error=SpotrunError, verdict=Verdict.FAILED)


def findings_of(name: str, check: Check, *refusals: Refusal) -> Iterator[Finding]:
    """
    Yield the findings of a check. If the check raises an error, the first item of `refusals` for this class of error
    defines the finding. If there is none, the finding is a failure.
    """
    try:
        yield from check()
    except SpotrunError as error:
        meant = next((each for each in refusals if isinstance(error, each.error)), _FAILURE)
        yield meant.finding(name, error)


class Step(NamedTuple):
    """
    One step in a list of checks. `name` is the subject of the check. `needs` names the steps that must succeed first.
    If one of them failed or was skipped, `otherwise` runs instead of this step's `check`. If the step fails and
    `is_vital` is True, no more steps run.
    """

    name: str
    check: Check
    refusal: Refusal = _FAILURE
    needs: tuple[str, ...] = ()
    otherwise: Check = tuple
    is_vital: bool = False


def findings_of_steps(steps: Iterable[Step]) -> Iterator[Finding]:
    """Run the steps in order, and yield the findings of each."""
    lacking: set[str] = set()
    for step in steps:
        if not lacking.isdisjoint(step.needs):
            lacking.add(step.name)
            yield from findings_of(step.name, step.otherwise, step.refusal)
            continue
        for finding in findings_of(step.name, step.check, step.refusal):
            if finding.verdict is Verdict.FAILED:
                lacking.add(step.name)
            yield finding
        if step.is_vital and step.name in lacking:
            return
