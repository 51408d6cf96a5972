"""Defines how often a runner sends requests that cost money."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple


class PollIntervals(NamedTuple):
    """
    The intervals of one kind of runner. `look_every_s` is the run time between two readings of the agents' heartbeats;
    each reading sends one list request and one write request to the store. `market_every` is the run time between two
    readings of the market record.

    `gap` is in system time. If the runner's own heartbeats do not reach the store for longer than `gap`, the agents are
    not counted as silent during that period: the store may have refused their heartbeats too, or the runner's machine
    may have slept. `gap` must be clearly shorter than the silence after which an agent counts as lost. The difference
    is the time that an agent has for its next heartbeat if one of its writes hangs.
    """

    look_every_s: float
    gap: timedelta
    market_every: timedelta


ALL_THE_TIME = PollIntervals(15.0, timedelta(minutes=2), timedelta(minutes=1))
"""The intervals of a process that takes care of its run all the time."""
BY_THE_MINUTE = PollIntervals(170.0, timedelta(seconds=200), timedelta(minutes=15))
"""
The intervals of a runner that is not a permanent process but is called once a minute. It reads the heartbeats in every
third call, so that a month of nights costs only cents. `gap` is shorter than the silence after which an agent counts as
lost, and longer than the time between two readings.
"""
