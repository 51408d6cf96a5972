"""Retries calls of a store after passing faults; any other answer is final."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential
from tenacity.stop import stop_base

from spotrun.errors import LoginExpired, StoreUnavailable, WritesRefused

TRIES = 8
PAUSE_FIRST_S, PAUSE_MAX_S = 0.05, 2.0
"""The first and the maximum pause. Both are short against a notice of 30 s, during which a pause costs most."""
T = TypeVar("T")


def through_faults(for_s: float) -> Retrying:
    """Return a retry for `for_s` seconds of system time, with growing random pauses; it raises the last error."""
    return _until(stop_after_delay(for_s))


def persist(act: Callable[[], T]) -> T:
    """
    Return the result of `act`, with TRIES tries: some seconds of pauses, for a user who waits, and the calls' own time.

    Raises:
        StoreUnavailable: the fault did not pass.
    """
    return _until(stop_after_attempt(TRIES))(act)


def _passes(error: BaseException) -> bool:
    """
    Return whether the fault passes by itself, and soon. If the user has to log in or to make room, the error is
    reported at once.
    """
    return isinstance(error, StoreUnavailable) and not isinstance(error, LoginExpired | WritesRefused)


def _until(stop: stop_base) -> Retrying:
    return Retrying(
        retry=retry_if_exception(_passes),
        wait=wait_random_exponential(multiplier=PAUSE_FIRST_S, max=PAUSE_MAX_S),
        stop=stop,
        reraise=True,
    )
