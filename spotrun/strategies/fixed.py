"""Strategies that stay on one kind of capacity, whatever the market does."""

from __future__ import annotations

import msgspec

from spotrun.strategies.port import ON_DEMAND, Choice, Situation


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
