"""A clock that tests and simulated worlds hold."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta


class ManualClock:
    """Time passes only when somebody sleeps or advances it."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self.scale = 1.0
        self.ahead = timedelta()
        self._start = start
        self._elapsed_s = 0.0

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_s) - self.ahead

    def put_back(self, by: timedelta) -> None:
        self.ahead += by

    def monotonic(self) -> float:
        return self._elapsed_s

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.advance(seconds)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        self.pass_to(self._elapsed_s + max(0.0, seconds))

    def pass_to(self, moment_s: float) -> None:
        """Set `monotonic` to exactly `moment_s`, unless that has passed."""
        self._elapsed_s = max(self._elapsed_s, moment_s)


class AheadClock:
    """The clock of a machine that is so much ahead of what `clock` shows; below 0 it is behind."""

    def __init__(self, clock: ManualClock, by: timedelta) -> None:
        self.scale = clock.scale
        self.ahead = timedelta()
        self.monotonic, self.sleep, self.wait = clock.monotonic, clock.sleep, clock.wait
        self._clock, self._by = clock, by

    def now(self) -> datetime:
        return self._clock.now() + self._by - self.ahead

    def put_back(self, by: timedelta) -> None:
        self.ahead += by
