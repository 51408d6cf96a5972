"""
Defines the clock of a run, and implements it.

On the local cloud, a run's clock may be faster than real time (`time_scale`). The time on this clock is *run time*.
Whatever the user reads is in run time, and so are prices, notices, times-to-live and the intervals between polls.
*System time* is the time on this machine's own clock.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol

SCALE_VARIABLE = "SPOTRUN_TIME_SCALE"
EPOCH_VARIABLE = "SPOTRUN_CLOCK_EPOCH"


def zone(time_scale: float) -> str:
    """Return the label to show with a run's times: `UTC`, or `of run time` if the run has a `time_scale`."""
    return "UTC" if time_scale == 1 else "of run time"


class Clock(Protocol):
    scale: float
    ahead: timedelta
    """
    The time by which this machine's clock was ahead of the cloud's clock (negative: behind). `put_back` sets this
    value, and `now` subtracts it.
    """

    def now(self) -> datetime:
        """Return the run time as an aware datetime in UTC. Never derive a deadline from it, because it may jump."""

    def monotonic(self) -> float:
        """Return the seconds of run time since some fixed time. This number never decreases."""

    def sleep(self, seconds: float) -> None:
        """Wait `seconds` of run time."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until `event` is set, but at most `seconds` of run time. Return True if the event is set."""

    def put_back(self, by: timedelta) -> None:
        """Correct this clock, which is ahead of the cloud's clock by the time `by` (negative: behind)."""


class ScaledClock:
    """
    A clock whose run time equals system time at `epoch`, and after that passes `scale` times as fast as system time.

        now = epoch + (system now - epoch) * scale - ahead

    `ahead` is the time by which this machine's clock is ahead of the cloud's.
    """

    def __init__(self, epoch: datetime, scale: float) -> None:
        self.epoch = epoch
        self.scale = scale
        self.ahead = timedelta()

    def now(self) -> datetime:
        return self.epoch + (datetime.now(UTC) - self.epoch) * self.scale - self.ahead

    def put_back(self, by: timedelta) -> None:
        self.ahead += by

    def on_the_wall(self, moment: datetime) -> datetime:
        """Return the system time that corresponds to a run time."""
        return self.epoch + (moment - self.epoch) / self.scale

    def monotonic(self) -> float:
        return time.monotonic() * self.scale

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds) / self.scale)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(max(0.0, seconds) / self.scale)

    def environment(self) -> dict[str, str]:
        """Return the environment variables that a child process needs to share this clock."""
        return {SCALE_VARIABLE: repr(self.scale), EPOCH_VARIABLE: self.epoch.isoformat()}


def system_clock() -> ScaledClock:
    """Return a clock whose run time equals system time."""
    return ScaledClock(datetime(2020, 1, 1, tzinfo=UTC), 1.0)


def clock_from_environment(environment: Mapping[str, str] = os.environ) -> ScaledClock:
    """
    Return the clock that the parent process describes in the environment (see `ScaledClock.environment`). If it does
    not describe one, return a clock whose run time equals system time.
    """
    if SCALE_VARIABLE not in environment:
        return system_clock()
    return ScaledClock(datetime.fromisoformat(environment[EPOCH_VARIABLE]), float(environment[SCALE_VARIABLE]))
