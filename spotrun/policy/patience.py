"""Computes the age of a run without its pauses, and the limits of its waits, which allow for a slow disk."""

from __future__ import annotations

from datetime import datetime, timedelta

from spotrun.policy.facts import Facts
from spotrun.run.state import Launch, RunState

CLOCKS_APART = timedelta(minutes=10)
"""
Maximum difference between the clocks of two machines. A time that is further ahead of the runner's clock is ignored.
"""
REAL_PATIENCE = timedelta(seconds=90)
"""Minimum patience in system time: a slow disk is not evidence, even if run time passes fast."""

NO_ANSWER_MAX = timedelta(seconds=90)
"""Time after which a launch is given up, if the cloud has neither answered nor listed an instance for it."""

TICK_S = 2.0
"""
Run time in seconds between two ticks: each second of delay in finding a notice leaves a standby one second less to
boot.
"""
TICK_SYSTEM_MIN_S = 0.1
"""Minimum system time in seconds between two ticks: a tick needs system time, however fast run time passes."""

TICKS_TO_LAUNCH = 3
"""Ticks until a refusal is known: one each to intend the launch, to request it, and to give it up."""

LOOK_S = 0.5
"""
Interval of run time in seconds at which the ledger is read between ticks, so that a notice need not wait for the next
tick.
"""
LOOK_SYSTEM_MIN_S = 0.05
"""Minimum system time in seconds between two reads of the ledger."""


def tick(state: RunState) -> timedelta:
    """Return the run time between two decisions."""
    return timedelta(seconds=tick_s(state.created.time_scale))


def tick_s(time_scale: float) -> float:
    """Return the seconds of run time between two decisions, for a clock of scale `time_scale`."""
    return max(TICK_S, TICK_SYSTEM_MIN_S * time_scale)


def look_s(time_scale: float) -> float:
    """Return the seconds of run time between two reads of the ledger, for a clock of scale `time_scale`."""
    return max(LOOK_S, LOOK_SYSTEM_MIN_S * time_scale)


def at_least_real(patience: timedelta, state: RunState) -> timedelta:
    """Return `patience` in run time, but at least `REAL_PATIENCE` in system time, however fast run time passes."""
    return max(patience, REAL_PATIENCE * state.created.time_scale)


def unanswered_for_too_long(state: RunState, launch: int, now: datetime) -> bool:
    """Return whether to give up a launch that the cloud has not answered yet: another pool may answer."""
    return now - state.launches[launch].intended_at >= at_least_real(NO_ANSWER_MAX, state)


def age(facts: Facts) -> timedelta:
    """
    Return how long the run has been open, without its pauses, in which it was stopped or failed.

    A pause that ends in the future is not subtracted, because in a run without a key anyone may have written that
    entry.
    """
    over = [pause for pause in facts.state.pauses if pause.until <= facts.now + CLOCKS_APART]
    pauses = (pause.until - pause.since for pause in over)
    return facts.now - facts.state.created_at - sum(pauses, timedelta())


def since_opened(state: RunState) -> list[Launch]:
    return [launch for launch in state.launches.values() if launch.intended_at >= state.opened_at]
