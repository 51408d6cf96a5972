"""
Strategies from other tools and the literature. Simulations compare them with spotrun's own strategies; jobs cannot use
them.

To make the comparison fair, each of them is wrapped in a SafetyNet, like spotrun's own strategies. So no strategy
misses a deadline, and the strategies differ only in their rules.
"""

from __future__ import annotations

import msgspec

from spotrun.strategies.catalogue import STRATEGIES, listed_first
from spotrun.strategies.port import ON_DEMAND, Choice, Situation, Strategy
from spotrun.strategies.safety_net import ROUNDING_S, SafetyNet


class StickyFallback(msgspec.Struct, frozen=True):
    """Use spot until it becomes unavailable, then use on-demand to the end."""

    def choose(self, situation: Situation) -> Choice:
        return ON_DEMAND if situation.running == ON_DEMAND else listed_first(situation) or ON_DEMAND


class EagerFallback(msgspec.Struct, frozen=True):
    """Use spot whenever it is available, and on-demand whenever it is not."""

    def choose(self, situation: Situation) -> Choice:
        return listed_first(situation) or ON_DEMAND


class Greedy(msgspec.Struct, frozen=True):
    """
    Use spot, or wait for it, while there is enough time. As soon as R < C + 2d + g, use on-demand until the job is
    done. R is the time left until the deadline, C is the work that is left, d is the duration of a changeover, and g is
    the time between two ticks. This is the first baseline of Wu et al., NSDI 2024.
    """

    def choose(self, situation: Situation) -> Choice:
        job = situation.job
        if situation.running == ON_DEMAND:
            return ON_DEMAND
        last_call = situation.slack_s < 2 * job.changeover_s + job.tick_s + job.margin_s - ROUNDING_S
        if last_call and situation.running is None:
            return ON_DEMAND
        return listed_first(situation)


class UniformProgress(msgspec.Struct, frozen=True):
    """
    Keep progress at least in proportion to time (Wu et al., NSDI 2024, "Can't be late").

    At time t, the required progress is t * C / R, where C is the job's whole work and R is its deadline. Use spot as
    long as it lasts. If there is no spot, wait while the job has made the required progress, and use on-demand while it
    has not. Go back from on-demand to spot only if the job has made the progress that is required `ahead` changeovers
    later. Near the deadline, act like Greedy.

    `ahead` = 2 is the hysteresis of the paper, in the form that reproduces the paper's numbers. With `ahead` = 0, the
    job goes back to spot without this delay.
    """

    ahead: float = 2.0

    def choose(self, situation: Situation) -> Choice:
        spot = listed_first(situation)
        if situation.running == ON_DEMAND:
            if self._behind(situation, self.ahead * situation.job.changeover_s):
                return ON_DEMAND
            return spot or ON_DEMAND
        if Greedy().choose(situation) == ON_DEMAND:
            return ON_DEMAND
        return spot or (ON_DEMAND if self._behind(situation, 0.0) else None)

    @staticmethod
    def _behind(situation: Situation, ahead_s: float) -> bool:
        job = situation.job
        line = (situation.elapsed_s + ahead_s) * job.work_s / job.deadline_s
        return job.work_s - situation.work_left_s < line - ROUNDING_S


COMPARED: dict[str, Strategy] = STRATEGIES | {
    "sticky_fallback": SafetyNet(StickyFallback()),
    "eager_fallback": SafetyNet(EagerFallback()),
    "greedy": SafetyNet(Greedy()),
    "uniform_progress": SafetyNet(UniformProgress()),
    "uniform_progress_no_hysteresis": SafetyNet(UniformProgress(ahead=0.0)),
}
"""All strategies that simulations can compare. Those that a job can use come first."""
