"""The interface of a strategy: its inputs and its result. All functions are pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

import msgspec

from spotrun.strategies.history import MarketHistory

ON_DEMAND = "on-demand"

NO_TOLLS: Mapping[str, float] = MappingProxyType({})

Choice = str | None
"""
The decision of a strategy. The name of a zone means: run on spot in this zone. ON_DEMAND means: run on demand. None
means: wait, which costs nothing.
"""


class Job(msgspec.Struct, frozen=True):
    """
    The properties of a job that do not change while it runs. `deadline_s` is infinite if there is no deadline.

    `changeover_s` is the paid time without progress at each start. `tick_s` is the time between two decisions.
    `margin_s` is a part of the slack (the spare time before the deadline) that no strategy may use. It is reserved for
    work that takes longer than estimated, and for the rework after one loss.
    """

    work_s: float
    deadline_s: float
    changeover_s: float
    tick_s: float
    on_demand_usd_per_hour: float
    margin_s: float = 0.0


class Situation(msgspec.Struct):
    """
    The facts on which a strategy bases its decision, as of the start of a tick.

    `running` is the place where the job runs; None after a loss. `since_s` is the number of seconds since its
    changeover to that place ended, or since it last ran if `running` is None. During a changeover, `settled` is False,
    and `since_s` is negative. `spot` maps each zone that has spot capacity in the coming tick to its price in USD per
    hour. The zones are in the cloud's order.

    `tolls` contains the toll of each zone outside the bucket's region, in USD: the extra cost of one start there,
    because the checkpoint has to be sent from one region to another.
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
        The seconds until the deadline minus the seconds of work left. This much time may be spent without progress: on
        waiting, and on changeovers.
        """
        return self.job.deadline_s - self.elapsed_s - self.work_left_s


class Strategy(Protocol):
    """
    Chooses where to run for the coming tick.

    A strategy has no state: in equal situations, it makes equal choices. A zone that it chooses must be in
    `situation.spot`. To leave the job where it runs, it chooses `situation.running`.
    """

    def choose(self, situation: Situation) -> Choice: ...
