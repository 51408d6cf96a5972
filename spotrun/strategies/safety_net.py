"""Keeps a strategy from missing the deadline: if its choice could make the job late, chooses on-demand instead."""

from __future__ import annotations

import msgspec

from spotrun.strategies.port import ON_DEMAND, Choice, Situation, Strategy

ROUNDING_S = 1e-6


class SafetyNet(msgspec.Struct, frozen=True):
    """
    Keeps another strategy from missing the job's deadline.

    s is the slack (time left - work left), d the time of a changeover, g that of a tick, and m the margin for rework
    and for work that was underestimated.

        choice               needs             because afterwards
        wait for a tick      s >= d + g + m    on-demand can still be started
        start on spot        s >= 2 d + m      spot may be lost after its changeover, and on-demand needs another
        stay on spot         s >= d + m        spot may be lost now, and on-demand needs a changeover

    While a job makes progress at the estimated speed, its slack stays the same. A start on spot needs s >= 2 d + m, and
    its changeover uses up d. So s >= d + m remains, as staying on spot requires. Only if the work or a changeover takes
    longer than estimated can the slack become less than that. Whenever nothing runs, s >= d holds, which is enough to
    start on demand. So in any market, a job is never late if it could finish in time by running on demand from its
    start.

    Instead of the first condition, other strategies usually start on demand as soon as R < C + 2d + g, where R is the
    time left and C is the work left. This rule reserves time for one more changeover, so that a strategy can try spot
    again after a wait.
    """

    inner: Strategy

    def choose(self, situation: Situation) -> Choice:
        wanted = self.inner.choose(situation)
        return wanted if wanted == ON_DEMAND or situation.slack_s >= slack_needed(wanted, situation) else ON_DEMAND


def slack_needed(choice: Choice, situation: Situation) -> float:
    """
    Return the minimum slack, in seconds, at which `choice` is safe. Safe means that on-demand can still be started in
    time, even after a wait or if spot is lost at the worst moment.
    """
    job = situation.job
    next_loss_s = job.tick_s if choice is None else 0.0 if choice == situation.running else job.changeover_s
    return job.changeover_s + next_loss_s + job.margin_s - ROUNDING_S
