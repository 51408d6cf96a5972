"""
Measures how fast a run trains on its user's own machine, and in the cloud.

The two are measured separately. Until both were measured, the machine's speed is the job's own figure
(`hardware.NAME.speed`), a multiple of the cloud's speed.
"""

from __future__ import annotations

from spotrun.offering import CapacityType
from spotrun.policy import assumptions
from spotrun.policy.facts import Facts, once
from spotrun.policy.pace import Pace, measured_pace
from spotrun.run.state import Attempt, RunState


def is_at_home(state: RunState, attempt: Attempt) -> bool:
    return state.launch_of(attempt).intent.offering.capacity_type is CapacityType.OWN


@once
def pace_at_home(facts: Facts) -> Pace | None:
    return measured_pace(facts.state, facts.world, lambda attempt: is_at_home(facts.state, attempt))


@once
def pace_in_cloud(facts: Facts) -> Pace | None:
    """
    Return the pace measured in the cloud; if there is none, an estimate from the pace at home, with the doubt of the
    job's own figure.
    """
    measured = measured_pace(facts.state, facts.world, lambda attempt: not is_at_home(facts.state, attempt))
    at_home = pace_at_home(facts)
    if measured is not None or at_home is None:
        return measured
    doubt = max(at_home.doubt, assumptions.WORK_DOUBT)
    return Pace(at_home.step_s * float(_said(facts)), doubt, at_home.steps)


@once
def times_cloud(facts: Facts) -> float:
    """Return how many times as fast as the cloud's instance the user's machine trains."""
    at_home, in_cloud = pace_at_home(facts), pace_in_cloud(facts)
    if at_home is None or in_cloud is None:
        return float(_said(facts))
    return in_cloud.step_s / at_home.step_s


def times_of(facts: Facts, attempt: Attempt) -> float:
    """Return how many times as fast as the cloud's instance an attempt trains."""
    at_home = facts.spec.home is not None and is_at_home(facts.state, attempt)
    return times_cloud(facts) if at_home else 1.0


def _said(facts: Facts) -> float:
    home = facts.spec.home
    assert home is not None
    return float(home.speed)
