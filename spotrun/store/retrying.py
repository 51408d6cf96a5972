"""Retries calls to a store after temporary faults. Any other error is final."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential
from tenacity.stop import stop_base

from spotrun.errors import LoginExpired, StoreUnavailable, WritesRefused

TRIES = 8
PAUSE_FIRST_S, PAUSE_MAX_S = 0.05, 2.0
"""
First pause and maximum pause between two tries, in seconds. The pauses are short, because each second counts after a
notice. A notice may come only 30 s before the machine is lost.
"""
T = TypeVar("T")


def through_faults(for_s: float) -> Retrying:
    """
    Return a retry policy. It repeats a call that fails with a temporary fault for up to `for_s` seconds of system time,
    with random and growing pauses. After that, it raises the last error.
    """
    return _until(stop_after_delay(for_s))


def persist(act: Callable[[], T]) -> T:
    """
    Call `act` at most TRIES times, and return its result. The pauses between the tries take only a few seconds in
    total, because a user is waiting for the result.

    Raises:
        StoreUnavailable: the fault persists.
    """
    return _until(stop_after_attempt(TRIES))(act)


def _passes(error: BaseException) -> bool:
    """
    Return True if the fault may soon pass by itself. Only the user can fix an expired login or a full store, so these
    two faults are reported immediately.
    """
    return isinstance(error, StoreUnavailable) and not isinstance(error, LoginExpired | WritesRefused)


def _until(stop: stop_base) -> Retrying:
    return Retrying(
        retry=retry_if_exception(_passes),
        wait=wait_random_exponential(multiplier=PAUSE_FIRST_S, max=PAUSE_MAX_S),
        stop=stop,
        reraise=True,
    )
