"""How often a runner asks for what costs money each time it is asked."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple


class Pace(NamedTuple):
    """
    `look_every_s`: run time between two looks at the heartbeats, each of which lists and writes. `gap`: see Heartbeats.
    `market_every`: run time between two readings of what other runs saw of the market.
    """

    look_every_s: float
    gap: timedelta
    market_every: timedelta


ALL_THE_TIME = Pace(15.0, timedelta(minutes=2), timedelta(minutes=1))
"""Of a process that attends to its run."""
BY_THE_MINUTE = Pace(170.0, timedelta(seconds=200), timedelta(minutes=15))
"""
Of a runner that is called once a minute: a look in every third call, so that a month of nights costs cents. No gap is
as long as the shortest silence that has consequences, and from one look to the next an agent has time to be heard.
"""
