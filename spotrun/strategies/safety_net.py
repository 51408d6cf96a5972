"""Keeps a strategy from being late: it allows only choices that leave time to finish on demand."""

from __future__ import annotations

import msgspec

from spotrun.strategies.port import ON_DEMAND, Choice, Situation, Strategy

ROUNDING_S = 1e-6


class SafetyNet(msgspec.Struct, frozen=True):
    """
    Keeps another strategy within its deadline.

    With slack s = time left - work left, changeover d, tick g and margin m (work underestimated, rework)

        waiting a tick         needs  s >= d + g + m    (after the tick, on-demand can still be started) a new start on
        spot    needs  s >= 2 d + m      (spot may be lost after its changeover; on-demand needs another) staying on
        spot        needs  s >= d + m        (spot may be lost now, and on-demand needs a changeover)

    A steady job uses no slack while it runs, so the third condition follows from the second; the third matters if work
    or a changeover takes longer than estimated. Thus s >= d whenever nothing runs. So, in any market, a job is never
    late if it could finish in time by running on demand from its start. The first condition corresponds to the usual
    rule R < C + 2d + g, which keeps one more d for a strategy that tries spot again after a wait.
    """

    inner: Strategy

    def choose(self, situation: Situation) -> Choice:
        wanted = self.inner.choose(situation)
        return wanted if wanted == ON_DEMAND or situation.slack_s >= slack_needed(wanted, situation) else ON_DEMAND


def slack_needed(choice: Choice, situation: Situation) -> float:
    """
    Return the minimum slack, in seconds, with which `choice` is safe: even after the wait, or after the worst loss of
    spot, on-demand can still be started in time.
    """
    job = situation.job
    next_loss_s = job.tick_s if choice is None else 0.0 if choice == situation.running else job.changeover_s
    return job.changeover_s + next_loss_s + job.margin_s - ROUNDING_S
