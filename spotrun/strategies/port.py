"""The port of a strategy, its input and its output. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import msgspec

from spotrun.strategies.history import MarketHistory

ON_DEMAND = "on-demand"

NO_TOLLS: Mapping[str, float] = MappingProxyType({})

Choice = str | None
"""A zone: run on its spot capacity. ON_DEMAND: run on demand. None: wait, without cost."""


class Job(msgspec.Struct, frozen=True):
    """
    The constants of a job. Without a deadline `deadline_s` is infinite.

    `changeover_s` passes after every start, paid but without progress. `tick_s` is the time between two decisions.
    `margin_s` is slack that the safety net keeps for work that takes longer than estimated and for the rework of one
    loss.
    """

    work_s: float
    deadline_s: float
    changeover_s: float
    tick_s: float
    on_demand_usd_per_hour: float
    margin_s: float = 0.0


class Situation(msgspec.Struct):
    """
    A moment at which to decide: the start of a tick.

    `running` is None after a loss. `spot` has the zones that are available in the coming tick, in the cloud's order,
    with their price in USD per hour. `settled` is False during a changeover. `since_s` is how long `running` has
    lasted; it is negative during a changeover. Each start in a zone costs its toll in USD, if any, for bytes that cross
    regions.
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
        """Seconds until the deadline minus seconds of work left. Waits and changeovers may use them."""
        return self.job.deadline_s - self.elapsed_s - self.work_left_s


class Strategy(Protocol):
    """
    Chooses where to run for the coming tick.

    A strategy has no state: equal situations get equal choices. It may choose only a zone in `situation.spot`. To stay
    where the job runs, it returns `situation.running`.
    """

    def choose(self, situation: Situation) -> Choice: ...
