"""
Computes the age of a run without its pauses, and how long a run waits for an answer. The waits are long enough for a
slow disk.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from spotrun.policy.facts import Facts
from spotrun.run.state import Launch, RunState

CLOCKS_APART = timedelta(minutes=10)
"""
Maximum difference that is assumed between the clocks of two machines. If an entry's time is further ahead of the
runner's clock, it is ignored.
"""
REAL_PATIENCE = timedelta(seconds=90)
"""
Minimum length of a wait, in system time. If run time passes fast, a shorter wait could end just because a disk is slow.
"""

NO_ANSWER_MAX = timedelta(seconds=90)
"""Time after which a launch is given up, if the cloud has neither answered nor listed an instance for it."""

TICK_S = 2.0
"""
Run time in seconds between two ticks. It is short because a notice is found only at a tick, and each second until then
is lost for the standby's boot.
"""
TICK_SYSTEM_MIN_S = 0.1
"""
Minimum system time in seconds between two ticks. A tick takes some system time itself, however fast run time passes.
"""

TICKS_TO_LAUNCH = 3
"""
Number of ticks until a refused launch is closed: one writes the intent, one sends the request, and one closes the
launch.
"""

LOOK_S = 0.5
"""
Run time in seconds between two reads of the ledger. It is read more often than there are ticks, so that a notice does
not have to wait for the next tick.
"""
LOOK_SYSTEM_MIN_S = 0.05
"""Minimum system time in seconds between two reads of the ledger."""


def tick(state: RunState) -> timedelta:
    """Return the run time between two ticks."""
    return timedelta(seconds=tick_s(state.created.time_scale))


def tick_s(time_scale: float) -> float:
    """
    Return the seconds of run time between two ticks, if run time passes `time_scale` times as fast as system time.
    """
    return max(TICK_S, TICK_SYSTEM_MIN_S * time_scale)


def look_s(time_scale: float) -> float:
    """
    Return the seconds of run time between two reads of the ledger, if run time passes `time_scale` times as fast as
    system time.
    """
    return max(LOOK_S, LOOK_SYSTEM_MIN_S * time_scale)


def at_least_real(patience: timedelta, state: RunState) -> timedelta:
    """
    Return `patience`, a length of run time; but if it is shorter than `REAL_PATIENCE` in system time, return the
    latter.
    """
    return max(patience, REAL_PATIENCE * state.created.time_scale)


def unanswered_for_too_long(state: RunState, launch: int, now: datetime) -> bool:
    """
    Return whether the cloud has not answered a launch for so long that it is given up, because another pool may answer.
    """
    return now - state.launches[launch].intended_at >= at_least_real(NO_ANSWER_MAX, state)


def age(facts: Facts) -> timedelta:
    """
    Return how long the run has been open. Its pauses, in which it was stopped or failed, are not counted.

    A pause that ends in the future is not subtracted: if a run has no key, any process with access to the store may
    have written the entry.
    """
    over = [pause for pause in facts.state.pauses if pause.until <= facts.now + CLOCKS_APART]
    pauses = (pause.until - pause.since for pause in over)
    return facts.now - facts.state.created_at - sum(pauses, timedelta())


def since_opened(state: RunState) -> list[Launch]:
    return [launch for launch in state.launches.values() if launch.intended_at >= state.opened_at]
