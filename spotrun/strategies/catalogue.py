"""The strategies that a job can be run by, by name, and the two that stay on one kind of capacity."""

from __future__ import annotations

import msgspec

from spotrun.strategies.port import ON_DEMAND, Choice, Situation, Strategy
from spotrun.strategies.reserve import Reserve
from spotrun.strategies.safety_net import SafetyNet


def listed_first(situation: Situation) -> Choice:
    """Spot where it runs already, else in the first zone that has some, as tools do that walk a list."""
    if situation.running in situation.spot:
        return situation.running
    return next(iter(situation.spot), None)


class OnDemandOnly(msgspec.Struct, frozen=True):
    """The bill that everything is compared with."""

    def choose(self, situation: Situation) -> Choice:
        return ON_DEMAND


class SpotOnly(msgspec.Struct, frozen=True):
    """Spot or nothing; late when the market says so."""

    def choose(self, situation: Situation) -> Choice:
        return listed_first(situation)


STRATEGIES: dict[str, Strategy] = {
    "ours": SafetyNet(Reserve()),
    "on_demand_only": OnDemandOnly(),
    "spot_only": SpotOnly(),
}
