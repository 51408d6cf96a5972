"""What is due to happen by a clock, and happens as soon as somebody looks, each thing at its own moment."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from typing import Protocol


class Now(Protocol):
    def now(self) -> datetime: ...
    def sleep(self, seconds: float) -> None: ...


class Agenda:
    """`now` is the moment of what happens, which may be earlier than the clock's."""

    def __init__(self, clock: Now) -> None:
        self.now = clock.now()
        self._clock = clock
        self._due: list[tuple[datetime, int, Callable[[], None]]] = []
        self._numbers = count()
        self._is_settling = False

    def after(self, delay: timedelta, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + delay, next(self._numbers), act))

    def settle(self) -> None:
        """
        Let all happen that is due, in the order of its moments. If the clock is put back, time here stands still.

        What happens may look at the time itself: nothing else happens meanwhile.
        """
        if self._is_settling:
            return
        self._is_settling = True
        try:
            until = self._clock.now()
            while self._due and self._due[0][0] <= until:
                moment, _, act = heapq.heappop(self._due)
                self.now = max(self.now, moment)
                act()
            self.now = max(self.now, until)
        finally:
            self._is_settling = False
