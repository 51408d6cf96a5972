"""The strategies for a job, by name."""

from __future__ import annotations

import msgspec

from spotrun.strategies.port import ON_DEMAND, Choice, Situation, Strategy
from spotrun.strategies.reserve import Reserve
from spotrun.strategies.safety_net import SafetyNet


def listed_first(situation: Situation) -> Choice:
    """
    Return the spot zone where the job already runs; otherwise the first zone with spot, like tools that try zones in
    the order of a list; None if no zone has spot.
    """
    if situation.running in situation.spot:
        return situation.running
    return next(iter(situation.spot), None)


class OnDemandOnly(msgspec.Struct, frozen=True):
    """Always runs on demand. Its cost is the baseline for all strategies."""

    def choose(self, situation: Situation) -> Choice:
        return ON_DEMAND


class SpotOnly(msgspec.Struct, frozen=True):
    """Runs only on spot. The job is late if spot is missing for too long."""

    def choose(self, situation: Situation) -> Choice:
        return listed_first(situation)


STRATEGIES: dict[str, Strategy] = {
    "ours": SafetyNet(Reserve()),
    "on_demand_only": OnDemandOnly(),
    "spot_only": SpotOnly(),
}
