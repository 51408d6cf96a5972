"""Intervals of a runner's requests that cost money each time."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple


class Pace(NamedTuple):
    """
    Intervals of one kind of runner. `look_every_s`: run time between two readings of the heartbeats, each of which
    lists and writes. `gap`: see Heartbeats. `market_every`: run time between two readings of the market's record.
    """

    look_every_s: float
    gap: timedelta
    market_every: timedelta


ALL_THE_TIME = Pace(15.0, timedelta(minutes=2), timedelta(minutes=1))
"""Pace of a process that attends to its run."""
BY_THE_MINUTE = Pace(170.0, timedelta(seconds=200), timedelta(minutes=15))
"""
Pace of a runner that is called once a minute: it reads the heartbeats in every third call, so that a month of nights
costs cents. No gap is as long as the shortest silence that has consequences, and between two readings an agent has time
to write.
"""
