"""
Computes a run's age without its pauses, and the limits for how long the run waits for its cloud and its instances. Each
limit is so long that a slow disk alone does not exceed it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from spotrun.policy.facts import Facts
from spotrun.run.state import Launch, RunState

CLOCKS_APART = timedelta(minutes=10)
"""
Maximum difference that is assumed between the clocks of two machines. If the time of an entry is ahead of the runner's
clock by more than this, the entry's time is ignored.
"""
REAL_PATIENCE = timedelta(seconds=90)
"""
Minimum length of a wait, in system time. If run time passes much faster than system time, a shorter wait could end only
because a disk is slow.
"""

NO_ANSWER_MAX = timedelta(seconds=90)
"""
Time after which a launch is given up if the cloud has neither answered the request nor listed an instance of the
launch.
"""

TICK_S = 2.0
"""
Run time in seconds between two ticks. It is short because the runner acts on a notice only at its next tick. The longer
this takes, the less time is left for the standby to boot.
"""
TICK_SYSTEM_MIN_S = 0.1
"""
Minimum system time in seconds between two ticks. A tick takes some system time itself, however fast run time passes.
"""

TICKS_TO_LAUNCH = 3
"""
Number of ticks until a refused launch is closed: one tick writes the intent, one sends the request, and one closes the
launch.
"""

LOOK_S = 0.5
"""
Run time in seconds between two reads of the ledger. The ledger is read more often than there are ticks. If an agent has
written an entry, such as a notice, the next tick is made at once.
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
    Return `patience`, in run time, or the run time that passes in `REAL_PATIENCE` of system time, whichever is longer.
    """
    return max(patience, REAL_PATIENCE * state.created.time_scale)


def unanswered_for_too_long(state: RunState, launch: int, now: datetime) -> bool:
    """
    Return True if the cloud has not answered a launch for so long that the launch is given up. Another pool may answer
    sooner.
    """
    return now - state.launches[launch].intended_at >= at_least_real(NO_ANSWER_MAX, state)


def age(facts: Facts) -> timedelta:
    """
    Return the time since the run was created, not counting its pauses, in which the run was stopped or had failed.

    A pause is not subtracted if the entry that ends it is dated in the future. Such an entry may be forged: if a run
    has no key, any process with access to the store can write entries.
    """
    over = [pause for pause in facts.state.pauses if pause.until <= facts.now + CLOCKS_APART]
    pauses = (pause.until - pause.since for pause in over)
    return facts.now - facts.state.created_at - sum(pauses, timedelta())


def since_opened(state: RunState) -> list[Launch]:
    return [launch for launch in state.launches.values() if launch.intended_at >= state.opened_at]
