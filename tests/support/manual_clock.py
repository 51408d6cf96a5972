"""A clock that tests and simulated worlds hold."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta


class ManualClock:
    """Time passes only when somebody sleeps or advances it."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self.scale = 1.0
        self._start = start
        self._elapsed_s = 0.0

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_s)

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
