"""How old a run is and how long it is waited for: pauses do not count, and patience never runs faster than a disk."""

from __future__ import annotations

from datetime import datetime, timedelta

from spotrun.policy.facts import Facts
from spotrun.run.state import Launch, RunState

CLOCKS_APART = timedelta(minutes=10)
"""The clocks of two machines are hardly further apart. A moment that is later than that by ours was made up."""
REAL_PATIENCE = timedelta(seconds=90)
"""System time: a slow disk is no evidence, however fast run time passes."""

NO_ANSWER_MAX = timedelta(seconds=90)
"""A launch that the cloud has not answered for this long, and of which it shows no instance, is given up."""

TICK_S = 2.0
"""Run time between two looks: each second that a notice is found late is one less to boot a standby in."""
TICK_SYSTEM_MIN_S = 0.1
"""System time: however fast run time passes, looking costs something."""

TICKS_TO_LAUNCH = 3
"""A refusal is known at the third tick: the launch is intended, asked for, and given up."""

LOOK_S = 0.5
"""Run time between two looks at the ledger, between two ticks: a notice is not to wait for the next tick."""
LOOK_SYSTEM_MIN_S = 0.05
"""System time."""


def tick(state: RunState) -> timedelta:
    """The run time between two decisions."""
    return timedelta(seconds=tick_s(state.created.time_scale))


def tick_s(time_scale: float) -> float:
    """The same in seconds, for a clock of that scale."""
    return max(TICK_S, TICK_SYSTEM_MIN_S * time_scale)


def look_s(time_scale: float) -> float:
    """The run time between two looks at the ledger, for a clock of that scale."""
    return max(LOOK_S, LOOK_SYSTEM_MIN_S * time_scale)


def at_least_real(patience: timedelta, state: RunState) -> timedelta:
    """A patience in run time that is never less than `REAL_PATIENCE` on the wall, however fast run time passes."""
    return max(patience, REAL_PATIENCE * state.created.time_scale)


def unanswered_for_too_long(state: RunState, launch: int, now: datetime) -> bool:
    """Whether a launch that was not answered yet is to be given up: another pool may answer."""
    return now - state.launches[launch].intended_at >= at_least_real(NO_ANSWER_MAX, state)


def age(facts: Facts) -> timedelta:
    """
    How long the run has been open; while it was stopped or failed its clock stood still. A pause that is to last on is
    none: in a run without a key anybody may have written it.
    """
    over = [pause for pause in facts.state.pauses if pause.until <= facts.now + CLOCKS_APART]
    pauses = (pause.until - pause.since for pause in over)
    return facts.now - facts.state.created_at - sum(pauses, timedelta())


def since_opened(state: RunState) -> list[Launch]:
    return [launch for launch in state.launches.values() if launch.intended_at >= state.opened_at]
