"""
Compares how fast a run trains on the user's own machine and in the cloud.

The speeds on the user's machine and in the cloud are measured separately. Until both have been measured,
`hardware.NAME.speed` in the job is used: the machine's speed as a multiple of the cloud's.
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
    Return the pace in the cloud. If it was not measured, estimate it from the pace on the user's machine and the ratio
    that the job gives. The `doubt` of the result is then at least WORK_DOUBT, because the ratio may be wrong.
    """
    measured = measured_pace(facts.state, facts.world, lambda attempt: not is_at_home(facts.state, attempt))
    at_home = pace_at_home(facts)
    if measured is not None or at_home is None:
        return measured
    doubt = max(at_home.doubt, assumptions.WORK_DOUBT)
    return Pace(at_home.step_s * float(_said(facts)), doubt, at_home.steps)


@once
def times_cloud(facts: Facts) -> float:
    """Return the speed of the user's machine as a multiple of the run's speed in the cloud."""
    at_home, in_cloud = pace_at_home(facts), pace_in_cloud(facts)
    if at_home is None or in_cloud is None:
        return float(_said(facts))
    return in_cloud.step_s / at_home.step_s


def times_of(facts: Facts, attempt: Attempt) -> float:
    """Return the speed of an attempt as a multiple of the run's speed in the cloud: 1 for an attempt in the cloud."""
    at_home = facts.spec.home is not None and is_at_home(facts.state, attempt)
    return times_cloud(facts) if at_home else 1.0


def _said(facts: Facts) -> float:
    home = facts.spec.home
    assert home is not None
    return float(home.speed)
