"""
The strategy for a run without a deadline: it uses spot if there is any, and otherwise waits before it uses on-demand.
"""

from __future__ import annotations

import msgspec

from spotrun.strategies.port import ON_DEMAND, Choice, Situation


class Patient(msgspec.Struct, frozen=True):
    """
    Takes the cheapest spot and stays there. Uses on-demand once spot has been missing for `on_demand_after_s`, and spot
    again after `return_after_s` on demand.

    An `on_demand_after_s` of 0 means on-demand immediately, and `inf` never. A `return_after_s` of None means never.
    """

    on_demand_after_s: float
    return_after_s: float | None

    def choose(self, situation: Situation) -> Choice:
        running, spot = situation.running, situation.spot
        best = running if running in spot else min(spot, key=spot.__getitem__, default=None)
        return self.place(running, situation.since_s, best)

    def place(self, running: Choice, since_s: float, spot: str | None) -> Choice:
        """Choose where to run, if `running` has lasted for `since_s` and `spot` is the best available zone."""
        if running == ON_DEMAND:
            return spot if spot is not None and self.returns(since_s) else ON_DEMAND
        if running is not None:
            return running
        if spot is not None and self.on_demand_after_s > 0:
            return spot
        return ON_DEMAND if since_s >= self.on_demand_after_s else None

    def returns(self, since_s: float) -> bool:
        """Return whether on-demand has run, or spot has been missing, for long enough to try spot again."""
        return self.return_after_s is not None and since_s >= self.return_after_s
