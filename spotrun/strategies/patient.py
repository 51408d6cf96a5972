"""
The strategy for a run without a deadline: it uses spot if there is any, and otherwise waits for a while before it uses
on-demand.
"""

from __future__ import annotations

import msgspec

from spotrun.strategies.port import ON_DEMAND, Choice, Situation


class Patient(msgspec.Struct, frozen=True):
    """
    Takes the cheapest spot and stays there. Switches to on-demand once spot has been missing for `on_demand_after_s`,
    and back to spot after `return_after_s` on demand.

    With an `on_demand_after_s` of 0 it switches to on-demand immediately, and with `inf` never. With a `return_after_s`
    of None it never switches back.
    """

    on_demand_after_s: float
    return_after_s: float | None

    def choose(self, situation: Situation) -> Choice:
        running, spot = situation.running, situation.spot
        best = running if running in spot else min(spot, key=spot.__getitem__, default=None)
        return self.place(running, situation.since_s, best)

    def place(self, running: Choice, since_s: float, spot: str | None) -> Choice:
        """Choose where to run next. `running` has lasted for `since_s`, and `spot` is the best available spot zone."""
        if running == ON_DEMAND:
            return spot if spot is not None and self.returns(since_s) else ON_DEMAND
        if running is not None:
            return running
        if spot is not None and self.on_demand_after_s > 0:
            return spot
        return ON_DEMAND if since_s >= self.on_demand_after_s else None

    def returns(self, since_s: float) -> bool:
        """
        Return whether it is time to try spot again: `since_s` is how long the job has run on demand, or spot has been
        missing.
        """
        return self.return_after_s is not None and since_s >= self.return_after_s
