"""Keeps a strategy from missing the deadline: replaces each choice that could make the job late by on-demand."""

from __future__ import annotations

import msgspec

from spotrun.strategies.port import ON_DEMAND, Choice, Situation, Strategy

ROUNDING_S = 1e-6


class SafetyNet(msgspec.Struct, frozen=True):
    """
    Keeps another strategy within its deadline.

    s = time left - work left is the slack, d a changeover, g a tick, and m the margin (for work that was
    underestimated, and for rework).

        choice               needs             because afterwards
        wait for a tick      s >= d + g + m    on-demand can still be started
        start on spot        s >= 2 d + m      spot may be lost after its changeover, and on-demand needs another
        stay on spot         s >= d + m        spot may be lost now, and on-demand needs a changeover

    While a job makes progress at the estimated speed, its slack stays the same. A start on spot needs s >= 2 d + m, and
    its changeover uses d of that. So s >= d + m is left, as the third condition requires. The third condition is broken
    only if the work or a changeover takes longer than estimated. Whenever nothing runs, s >= d holds, which is enough
    to start on demand. In any market, a job is therefore never late if it could finish in time by running on demand
    from its start.

    In place of the first condition, strategies usually have another rule: start on demand as soon as R < C + 2d + g,
    where R is the time left and C is the work left. That rule reserves one more d, so that a strategy can try spot once
    more after a wait.
    """

    inner: Strategy

    def choose(self, situation: Situation) -> Choice:
        wanted = self.inner.choose(situation)
        return wanted if wanted == ON_DEMAND or situation.slack_s >= slack_needed(wanted, situation) else ON_DEMAND


def slack_needed(choice: Choice, situation: Situation) -> float:
    """
    Return the minimum slack, in seconds, with which `choice` is safe: if the choice is to wait, or if spot is then lost
    at the worst moment, on-demand can still be started in time.
    """
    job = situation.job
    next_loss_s = job.tick_s if choice is None else 0.0 if choice == situation.running else job.changeover_s
    return job.changeover_s + next_loss_s + job.margin_s - ROUNDING_S
