"""What a strategy is asked and what it answers. Pure: seconds and prices in, a market out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import msgspec

from spotrun.strategies.history import MarketHistory

ON_DEMAND = "on-demand"

NO_TOLLS: Mapping[str, float] = MappingProxyType({})

Choice = str | None
"""A zone: run on its spot capacity. ON_DEMAND: run on demand. None: pay for nothing and wait."""


class Job(msgspec.Struct, frozen=True):
    """
    What does not change while a job runs. Without a deadline `deadline_s` is infinite.

    `changeover_s` passes, paid but without progress, after every start. `tick_s` is the time between two decisions.
    `margin_s` is what the work left may turn out longer than estimated, and the rework of one loss: it widens the net.
    """

    work_s: float
    deadline_s: float
    changeover_s: float
    tick_s: float
    on_demand_usd_per_hour: float
    margin_s: float = 0.0


class Situation(msgspec.Struct):
    """
    One moment at which to decide: the start of a tick.

    `running` is None after a loss. `spot` has the zones that can be had in the coming tick, in the order in which the
    cloud lists them, with their price in USD per hour. `settled` is False during a changeover. `running` has been what
    it is for `since_s`, less than nothing during a changeover. A start costs the toll of its zone in USD, where there
    is one: for bytes that cross regions.
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
        """Time left beyond the work left: what may still be spent on waiting and on changeovers."""
        return self.job.deadline_s - self.elapsed_s - self.work_left_s


class Strategy(Protocol):
    """
    Where to run for the coming tick.

    A strategy holds no state of its own: equal situations get equal choices. It may choose only a zone in
    `situation.spot`; to stay where it runs it names `situation.running`.
    """

    def choose(self, situation: Situation) -> Choice: ...
