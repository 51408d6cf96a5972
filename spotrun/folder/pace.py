"""Intervals of a runner's requests that cost money each time."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple


class Pace(NamedTuple):
    """
    Intervals of one kind of runner. `look_every_s`: run time between two readings of the heartbeats, each of which
    lists and writes. `market_every`: run time between two readings of the market's record.

    `gap`: maximum system time that counts as silence while no heartbeat of this runner got through: the store may have
    taken none from agents either, or this machine slept. The rest of the shortest silence that has consequences is
    longer than an agent's write may hang, so a living agent's heartbeat arrives in time.
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
