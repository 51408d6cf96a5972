"""Time as a port."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from spotrun.clock import Clock, ScaledClock
from tests.support.manual_clock import ManualClock


@pytest.mark.parametrize(
    "clock", [ScaledClock(datetime(2026, 1, 1, tzinfo=UTC), 1.0), ManualClock()], ids=["scaled", "manual"]
)
def test_a_clock_that_is_put_back_shows_less_and_runs_on(clock: Clock) -> None:
    before, before_s = clock.now(), clock.monotonic()
    clock.put_back(timedelta(minutes=4))
    assert clock.now() - before < timedelta(minutes=-3)
    assert clock.monotonic() >= before_s
    clock.put_back(timedelta(minutes=-4))
    assert timedelta() <= clock.now() - before < timedelta(minutes=1)
    assert clock.ahead == timedelta()
