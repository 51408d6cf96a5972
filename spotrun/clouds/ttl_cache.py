"""A cache with a time-to-live. If a new value cannot be read, it continues to return the old one."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Generic, TypeVar

from spotrun.clock import Clock
from spotrun.errors import CloudError

T = TypeVar("T")

ASKED_AGAIN_S = 30.0
"""Seconds from a failed reading to the next try, if an old value is known."""


class TtlCache(Generic[T]):
    """
    A cached value that is read again when it is too old. `for_s` is the maximum age in seconds, or a function that
    computes this age from the value. `trouble` is the reason why the last read failed; "" if it succeeded.
    """

    def __init__(self, clock: Clock, for_s: float | Callable[[T], float], read: Callable[[], T]) -> None:
        self._clock = clock
        self._for_s = for_s
        self._read = read
        self._known: tuple[float, T] | None = None
        self._failed_s = -inf
        self.trouble = ""

    def get(self) -> T:
        """
        Return the value; read it again if it is too old.

        Raises:
            CloudError: the value cannot be read now, and was never read before.
        """
        if self._known is None or self._due(self._known):
            self._known = self._read_or(self._known)
        return self._known[1]

    def forget(self) -> None:
        self._known = None

    def expire(self) -> None:
        """Read the value again at the next `get`. If that fails, the old value stays in use."""
        if self._known is not None:
            self._known = (-inf, self._known[1])

    def _due(self, known: tuple[float, T]) -> bool:
        now_s = self._clock.monotonic()
        return now_s - known[0] >= self._lasts_s(known[1]) and now_s - self._failed_s >= ASKED_AGAIN_S

    def _read_or(self, known: tuple[float, T] | None) -> tuple[float, T]:
        try:
            read = (self._clock.monotonic(), self._read())
        except CloudError as error:
            if known is None:
                raise
            self._failed_s, self.trouble = self._clock.monotonic(), error.message
            return known
        self.trouble = ""
        return read

    def _lasts_s(self, fact: T) -> float:
        return self._for_s(fact) if callable(self._for_s) else self._for_s
