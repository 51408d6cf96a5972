"""
Decides when a run trains on the user's own machine, and when in the cloud.

The user's machine costs the same whether it trains or not. So the run prefers it to the cloud, whatever the cloud's
prices are, as long as the machine is free and can meet the deadline:

    time left >= start + time for the remaining work at home + error margin of that time + rework after one fault

If the machine cannot meet the deadline, the run's strategy rents instances in the cloud. As soon as the user's machine
can finish the remaining work by the deadline, the run moves home. While the strategy waits for spot, the run trains on
the user's machine, because slow progress is better than none.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from spotrun.offering import CapacityType, Offering
from spotrun.policy.changeovers import changeover
from spotrun.policy.facts import Facts, once
from spotrun.policy.money import life_of
from spotrun.policy.patience import TICKS_TO_LAUNCH, tick
from spotrun.policy.speed_at_home import is_at_home, pace_at_home, times_cloud
from spotrun.policy.workload import Workload, workload
from spotrun.run.events import Cause
from spotrun.run.state import Attempt, Launch, RunState
from spotrun.units import to_the_second

BACK = "back home"
HANDOVER = timedelta(minutes=2)
"""Upper bound of the time from the last step before a planned handover to the first step after it."""


def stays_at_home(facts: Facts) -> bool:
    """Return True if the run trains on the user's own machine ("at home"), and should keep training there."""
    current = facts.state.current
    at_home = current is not None and not current.leaving and is_at_home(facts.state, current)
    return at_home and holds(facts, there=True)


def starts_again_at_home(facts: Facts) -> bool:
    """
    Return True if the attempt trains at home and ends only because its time-to-live expires, so that the next attempt
    will be at home again. The machine has room for only one instance, so the next attempt has to wait until the old
    instance has ended.
    """
    current = facts.state.current
    leaves = current is not None and current.leaving and is_at_home(facts.state, current)
    return leaves and holds(facts, there=False)


def way_home(facts: Facts) -> Offering | None:
    """Return the user's own machine if the run should start on it now, or move to it from the cloud; otherwise None."""
    current, offering = facts.state.current, at_home_now(facts)
    if offering is None or not holds(facts, there=False):
        return None
    if current is None or current.leaving:
        return offering
    return offering if not is_at_home(facts.state, current) and _pays_to_return(facts, current) else None


def at_home_now(facts: Facts) -> Offering | None:
    """Return the user's own machine, if it is free and can be requested; else None."""
    offered = next((each for each in facts.world.offerings if each.capacity_type is CapacityType.OWN), None)
    if offered is None or _rests(facts) or life_of(facts, offered) is None:
        return None
    return offered


@once
def work_at_home(facts: Facts) -> Workload | None:
    """Return the work that is left, in seconds of training on the user's machine. Return None while it is unknown."""
    work, measured = workload(facts), pace_at_home(facts)
    if work is None:
        return None
    times = times_cloud(facts)
    left_s, done_s = work.left_s / times, work.done_s / times
    doubt_s = work.doubt_s / times if measured is None else left_s * measured.doubt
    return Workload(left_s, doubt_s, done_s, work.rework_s)


def holds(facts: Facts, *, there: bool) -> bool:
    """
    Return True if the user's machine alone can meet the deadline. `there` is True if the run already trains on it; then
    no time for a start is added.
    """
    spare = spare_s(facts, there=there)
    return spare is not None and spare >= 0


def spare_s(facts: Facts, *, there: bool) -> float | None:
    """
    Return the number of seconds by which the user's machine would finish before the deadline. `there` is True if the
    run already trains on it. The result is negative if the machine cannot meet the deadline, infinite if there is no
    deadline, and None if the amount of remaining work is unknown.
    """
    deadline_at = facts.state.created.deadline_at
    if deadline_at is None:
        return float("inf")
    work = work_at_home(facts)
    if work is None:
        return None
    start_s = 0.0 if there else changeover(facts.state)
    asking_s = TICKS_TO_LAUNCH * tick(facts.state).total_seconds()
    needed_s = start_s + work.left_s + work.doubt_s + work.rework_s + asking_s
    return (deadline_at - facts.now).total_seconds() - needed_s


def why_home(facts: Facts, offering: Offering) -> str:
    """Return the reason for requesting the user's machine, for the ledger."""
    spare = spare_s(facts, there=False)
    kept = ""
    if spare is not None and spare != float("inf"):
        kept = f", and the deadline leaves {to_the_second(timedelta(seconds=spare))} more than it needs"
    return f"{offering.instance_type} is free{kept}"


def _pays_to_return(facts: Facts, current: Attempt) -> bool:
    """
    Return True if it pays to move home from the cloud: the remaining work takes longer than the start and the handover.
    """
    if facts.now - current.started_at < facts.spec.policy.return_cooldown:
        return False
    work = workload(facts)
    return work is None or work.left_s > changeover(facts.state) + HANDOVER.total_seconds()


def _rests(facts: Facts) -> bool:
    """
    Return True if the run should not request the user's machine for now, because the machine has recently refused a
    launch, or a launch on it has ended unexpectedly.
    """
    newest = next((each for each in reversed(facts.state.launches.values()) if _is_own(each)), None)
    if newest is None:
        return False
    ended_at = _unplanned_end(facts.state, newest)
    return ended_at is not None and facts.now - ended_at < facts.spec.policy.return_cooldown


def _unplanned_end(state: RunState, launch: Launch) -> datetime | None:
    attempt = None if launch.attempt is None else state.attempts[launch.attempt]
    if attempt is not None and attempt.end is not None and attempt.end.cause is Cause.REPLACED:
        return None
    return launch.closed_at or (None if launch.gone is None else launch.gone.ended_at)


def _is_own(launch: Launch) -> bool:
    return launch.intent.offering.capacity_type is CapacityType.OWN
