"""Repeats what a store could not do just now. Only passing faults are repeated; any other answer is final."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential
from tenacity.stop import stop_base

from spotrun.errors import LoginExpired, StoreUnavailable, WritesRefused

TRIES = 8
PAUSE_FIRST_S, PAUSE_MAX_S = 0.05, 2.0
"""Short beside a notice of 30 s, when a pause costs most."""
T = TypeVar("T")


def through_faults(for_s: float) -> Retrying:
    """Tries for this long (system time) with growing random pauses; then raises the last StoreUnavailable."""
    return _until(stop_after_delay(for_s))


def persist(act: Callable[[], T]) -> T:
    """
    What `act` returns, tried again for a person who waits: for some seconds, and the time that the failures take.

    Raises:
        StoreUnavailable: the fault did not pass.
    """
    return _until(stop_after_attempt(TRIES))(act)


def _passes(error: BaseException) -> bool:
    """Whether the fault passes by itself, and soon. A person who has to log in, or to make room, is told at once."""
    return isinstance(error, StoreUnavailable) and not isinstance(error, LoginExpired | WritesRefused)


def _until(stop: stop_base) -> Retrying:
    return Retrying(
        retry=retry_if_exception(_passes),
        wait=wait_random_exponential(multiplier=PAUSE_FIRST_S, max=PAUSE_MAX_S),
        stop=stop,
        reraise=True,
    )
