"""
The strategy for a run without a deadline. It uses spot if available. Otherwise, it waits for a while, and then uses
on-demand.
"""

from __future__ import annotations

import msgspec

from spotrun.strategies.port import ON_DEMAND, Choice, Situation


class Patient(msgspec.Struct, frozen=True):
    """
    A strategy that takes the cheapest spot zone and stays there. It switches to on-demand once no zone has had spot for
    `on_demand_after_s`. After `return_after_s` on demand, it switches back to spot if any zone has it.

    If `on_demand_after_s` is 0, it switches to on-demand immediately; if it is `inf`, never. If `return_after_s` is
    None, it never switches back.
    """

    on_demand_after_s: float
    return_after_s: float | None

    def choose(self, situation: Situation) -> Choice:
        running, spot = situation.running, situation.spot
        best = running if running in spot else min(spot, key=spot.__getitem__, default=None)
        return self.place(running, situation.since_s, best)

    def place(self, running: Choice, since_s: float, spot: str | None) -> Choice:
        """
        Choose where to run next. For the last `since_s` seconds, the job has run on `running`, or has waited if
        `running` is None. `spot` is the best zone that has spot; None if there is none.
        """
        if running == ON_DEMAND:
            return spot if spot is not None and self.returns(since_s) else ON_DEMAND
        if running is not None:
            return running
        if spot is not None and self.on_demand_after_s > 0:
            return spot
        return ON_DEMAND if since_s >= self.on_demand_after_s else None

    def returns(self, since_s: float) -> bool:
        """
        Return True if it is time to try spot again. `since_s` is the number of seconds since the job moved to on-demand
        or, if the job is waiting, since spot became unavailable.
        """
        return self.return_after_s is not None and since_s >= self.return_after_s
