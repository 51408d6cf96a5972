"""The intervals between a runner's requests that each cost money."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple


class PollIntervals(NamedTuple):
    """
    The intervals of one kind of runner. `look_every_s` is the run time between two readings of the heartbeats; each
    reading makes a list and a write request. `market_every` is the run time between two readings of the market's
    record.

    `gap` is a system time. If this runner's heartbeats failed to arrive for longer, that time does not count as silence
    of the agents: the store may have refused the agents' heartbeats too, or this machine slept. The shortest silence
    that has consequences exceeds `gap` by more than an agent's write may hang, so a running agent's heartbeat arrives
    in time.
    """

    look_every_s: float
    gap: timedelta
    market_every: timedelta


ALL_THE_TIME = PollIntervals(15.0, timedelta(minutes=2), timedelta(minutes=1))
"""The intervals of a process that attends to its run all the time."""
BY_THE_MINUTE = PollIntervals(170.0, timedelta(seconds=200), timedelta(minutes=15))
"""
The intervals of a runner that is called once a minute. It reads the heartbeats in every third call, so that a month of
nights costs only cents. `gap` is shorter than the shortest silence that has consequences, and long enough for an agent
to write between two readings.
"""
