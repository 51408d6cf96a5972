"""Trying again what a store could not do just now. Only passing faults are worth it; what else it says is final."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt, stop_after_delay, wait_random_exponential
from tenacity.stop import stop_base

from spotrun.errors import LoginExpired, StoreUnavailable

TRIES = 8
PAUSE_FIRST_S, PAUSE_MAX_S = 0.05, 2.0
"""Short beside a notice of 30 s, which is when a lost pause costs most."""
T = TypeVar("T")


def through_faults(for_s: float) -> Retrying:
    """Tries for so long, in system time, with growing random pauses; then the last StoreUnavailable is raised."""
    return _until(stop_after_delay(for_s))


def persist(act: Callable[[], T]) -> T:
    """
    What `act` gives, tried again for a person who waits: some seconds in all, and what it may take to fail so often.

    Raises:
        StoreUnavailable: the fault did not pass.
    """
    return _until(stop_after_attempt(TRIES))(act)


def _passes(error: BaseException) -> bool:
    """By itself, and soon: a person who has to log in anew is told at once."""
    return isinstance(error, StoreUnavailable) and not isinstance(error, LoginExpired)


def _until(stop: stop_base) -> Retrying:
    return Retrying(
        retry=retry_if_exception(_passes),
        wait=wait_random_exponential(multiplier=PAUSE_FIRST_S, max=PAUSE_MAX_S),
        stop=stop,
        reraise=True,
    )
