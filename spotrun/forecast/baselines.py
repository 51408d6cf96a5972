"""
The strategies of other tools and of the literature. Simulations compare them with spotrun's strategies; no job can use
them.

A SafetyNet keeps each of them from missing the deadline, as it does for spotrun's strategies. So only the rules differ.
"""

from __future__ import annotations

import msgspec

from spotrun.strategies.catalogue import STRATEGIES, listed_first
from spotrun.strategies.port import ON_DEMAND, Choice, Situation, Strategy
from spotrun.strategies.safety_net import ROUNDING_S, SafetyNet


class StickyFallback(msgspec.Struct, frozen=True):
    """Use spot as long as it is available. After the first time without spot, use on-demand to the end."""

    def choose(self, situation: Situation) -> Choice:
        return ON_DEMAND if situation.running == ON_DEMAND else listed_first(situation) or ON_DEMAND


class EagerFallback(msgspec.Struct, frozen=True):
    """Use spot whenever it is available, and on-demand whenever it is not."""

    def choose(self, situation: Situation) -> Choice:
        return listed_first(situation) or ON_DEMAND


class Greedy(msgspec.Struct, frozen=True):
    """Use spot or wait until R < C + 2d + g, then on-demand to the end (the first baseline of Wu et al., NSDI 2024)."""

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

    The line t * C / R is the progress in proportion to time. Stay on spot while it lasts. Without spot, wait while
    progress is on or above the line; below it, use on-demand. Go back to spot when it is available and progress has
    reached the line's value at t + `ahead` changeovers. With `ahead` = 2 this is the paper's hysteresis, in the form
    that gives the paper's numbers; with 0, go back as soon as progress reaches the line. Near the deadline, act like
    Greedy.
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
"""All strategies that a study may compare and a simulated world may use. Those that a job may name come first."""
