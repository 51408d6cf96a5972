"""Retries calls to a store after passing faults. Any other error is final."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential
from tenacity.stop import stop_base

from spotrun.errors import LoginExpired, StoreUnavailable, WritesRefused

TRIES = 8
PAUSE_FIRST_S, PAUSE_MAX_S = 0.05, 2.0
"""
First and maximum pause, in seconds. Both are short because a pause costs most during a notice, which may be only 30 s.
"""
T = TypeVar("T")


def through_faults(for_s: float) -> Retrying:
    """
    Return a retry that repeats a call for `for_s` seconds of system time, with random and growing pauses. Then it
    raises the last error.
    """
    return _until(stop_after_delay(for_s))


def persist(act: Callable[[], T]) -> T:
    """
    Call `act` at most TRIES times, and return its result. The pauses take some seconds in total, because a user waits
    for the result.

    Raises:
        StoreUnavailable: the fault did not pass.
    """
    return _until(stop_after_attempt(TRIES))(act)


def _passes(error: BaseException) -> bool:
    """
    Return True if the fault may pass soon although the user does nothing. An expired login or a full store is reported
    immediately.
    """
    return isinstance(error, StoreUnavailable) and not isinstance(error, LoginExpired | WritesRefused)


def _until(stop: stop_base) -> Retrying:
    return Retrying(
        retry=retry_if_exception(_passes),
        wait=wait_random_exponential(multiplier=PAUSE_FIRST_S, max=PAUSE_MAX_S),
        stop=stop,
        reraise=True,
    )
