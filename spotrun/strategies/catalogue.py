"""The strategies for a job, by name, and the two that stay on one kind of capacity."""

from __future__ import annotations

import msgspec

from spotrun.strategies.port import ON_DEMAND, Choice, Situation, Strategy
from spotrun.strategies.reserve import Reserve
from spotrun.strategies.safety_net import SafetyNet


def listed_first(situation: Situation) -> Choice:
    """Return the spot zone where the job runs already, else the first zone with spot, as tools do that walk a list."""
    if situation.running in situation.spot:
        return situation.running
    return next(iter(situation.spot), None)


class OnDemandOnly(msgspec.Struct, frozen=True):
    """Always on demand: the bill that all strategies are compared with."""

    def choose(self, situation: Situation) -> Choice:
        return ON_DEMAND


class SpotOnly(msgspec.Struct, frozen=True):
    """Spot or nothing; late if the market lacks spot."""

    def choose(self, situation: Situation) -> Choice:
        return listed_first(situation)


STRATEGIES: dict[str, Strategy] = {
    "ours": SafetyNet(Reserve()),
    "on_demand_only": OnDemandOnly(),
    "spot_only": SpotOnly(),
}
