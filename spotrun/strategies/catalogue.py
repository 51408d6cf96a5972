"""The strategies that a job can name."""

from __future__ import annotations

import msgspec

from spotrun.strategies.port import ON_DEMAND, Choice, Situation, Strategy
from spotrun.strategies.reserve import Reserve
from spotrun.strategies.safety_net import SafetyNet


def listed_first(situation: Situation) -> Choice:
    """
    Choose spot in the zone where the job already runs, or else in the first zone that has spot. Return None if no zone
    has spot. Tools with an ordered list of zones choose in this way.
    """
    if situation.running in situation.spot:
        return situation.running
    return next(iter(situation.spot), None)


class OnDemandOnly(msgspec.Struct, frozen=True):
    """A strategy that always uses on-demand. The costs of all other strategies are compared with its cost."""

    def choose(self, situation: Situation) -> Choice:
        return ON_DEMAND


class SpotOnly(msgspec.Struct, frozen=True):
    """A strategy that uses only spot. If spot is unavailable for too long, the job misses its deadline."""

    def choose(self, situation: Situation) -> Choice:
        return listed_first(situation)


STRATEGIES: dict[str, Strategy] = {
    "ours": SafetyNet(Reserve()),
    "on_demand_only": OnDemandOnly(),
    "spot_only": SpotOnly(),
}
