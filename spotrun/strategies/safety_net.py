"""Never late: whatever a strategy would like, it gets only what leaves time to finish on demand."""

from __future__ import annotations

import msgspec

from spotrun.strategies.port import ON_DEMAND, Choice, Situation, Strategy

ROUNDING_S = 1e-6


class SafetyNet(msgspec.Struct, frozen=True):
    """
    Another strategy, kept within its deadline.

    With slack s = time left - work left, changeover d, tick g and margin m (work underestimated, rework)

        waiting a tick         needs  s >= d + g + m    (then on-demand can still be started)
        starting anew on spot  needs  s >= 2 d + m      (it may be lost after its changeover, and on-demand needs one)

    and running on without a start uses no slack. So s >= d + m whenever nothing runs, and a job that on-demand alone
    could finish at its start is never late, whatever the market does. It implies the usual R < C + 2d + g: that keeps
    one more d for a strategy which, after a wait, wants another try at spot.
    """

    inner: Strategy

    def choose(self, situation: Situation) -> Choice:
        wanted = self.inner.choose(situation)
        if wanted == situation.running and wanted is not None:
            return wanted
        return wanted if wanted == ON_DEMAND or situation.slack_s >= slack_needed(wanted, situation) else ON_DEMAND


def slack_needed(choice: Choice, situation: Situation) -> float:
    """The least slack with which nothing but on-demand can be left to run, for a wait or a start on spot."""
    job = situation.job
    needed = job.changeover_s + (job.tick_s if choice is None else job.changeover_s)
    return needed + job.margin_s - ROUNDING_S
