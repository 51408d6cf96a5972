"""Trying again what a store could not do just now, for a person who waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from spotrun.errors import StoreUnavailable

TRIES = 8
T = TypeVar("T")


def persist(act: Callable[[], T]) -> T:
    """
    What `act` gives, tried again through passing faults: some seconds in all, and what it may take to fail so often.

    Raises:
        StoreUnavailable: the fault did not pass.
    """
    retrying = Retrying(
        retry=retry_if_exception_type(StoreUnavailable),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        stop=stop_after_attempt(TRIES),
        reraise=True,
    )
    return retrying(act)
