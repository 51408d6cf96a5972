"""The port of a strategy: its input and its output. All of it is pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import msgspec

from spotrun.strategies.history import MarketHistory

ON_DEMAND = "on-demand"

NO_TOLLS: Mapping[str, float] = MappingProxyType({})

Choice = str | None
"""A zone means: run on this zone's spot capacity. ON_DEMAND means: run on demand. None means: wait, at no cost."""


class Job(msgspec.Struct, frozen=True):
    """
    The constants of a job. Without a deadline `deadline_s` is infinite.

    `changeover_s` is the time after every start that is paid but brings no progress. `tick_s` is the time between two
    decisions. `margin_s` is the slack that the safety net keeps in case the work takes longer than estimated, and for
    the rework after one loss.
    """

    work_s: float
    deadline_s: float
    changeover_s: float
    tick_s: float
    on_demand_usd_per_hour: float
    margin_s: float = 0.0


class Situation(msgspec.Struct):
    """
    The input of a decision, at the start of a tick.

    `running` is None after a loss. `spot` has the zones that are available in the coming tick, in the cloud's order,
    each with its price in USD per hour. `settled` is False during a changeover. `since_s` is how long `running` has
    lasted; it is negative during a changeover. A zone's toll is what each start there costs, in USD, for bytes that
    cross regions.
    """

    job: Job
    elapsed_s: float
    work_left_s: float
    running: Choice
    settled: bool
    spot: Mapping[str, float]
    history: MarketHistory
    since_s: float = 0.0
    tolls: Mapping[str, float] = NO_TOLLS

    @property
    def slack_s(self) -> float:
        """
        The seconds until the deadline minus the seconds of work left: the time that waits and changeovers may use.
        """
        return self.job.deadline_s - self.elapsed_s - self.work_left_s


class Strategy(Protocol):
    """
    Chooses where to run for the coming tick.

    A strategy has no state: equal situations get equal choices. Any zone that it chooses must be in `situation.spot`.
    To let the job stay where it runs, it returns `situation.running`.
    """

    def choose(self, situation: Situation) -> Choice: ...
