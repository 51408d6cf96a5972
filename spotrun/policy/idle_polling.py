"""Checks whether a run is idle, so that its runner does not have to list the run's instances at each tick."""

from __future__ import annotations

from collections.abc import Iterable

from spotrun.instance import Instance, InstanceState
from spotrun.run.member import Member
from spotrun.run.state import Attempt, RunState


def is_still(state: RunState, shown: Iterable[Instance]) -> bool:
    """
    Return True if the run is idle, which means that all of these are true:

    - one attempt trains, or all instances have ended
    - `shown`, the cloud's newest list, contains no other instance of the run
    - no launch, notice, stop or end of an instance is in progress

    `state` may be newer than `shown`. If an entry about an instance was added to the ledger after the cloud made the
    list, return False.
    """
    if state.stop_requested or state.terminal is not None:
        return False
    current = state.current
    left = {name for launch in state.launches.values() if not launch.settled for name in launch.names}
    left = {name for name in left if state.member(name).gone is None}
    alive = {(each.instance_id, each.state) for each in shown if each.alive}
    if current is None:
        return not left and not alive
    members = state.members_of(current)
    goes_on = all(member.recorded is not None and member.wanted for member in members) and not current.leaving
    return goes_on and left == set(current.names) and alive == _running(current, members)


def _running(current: Attempt, members: Iterable[Member]) -> set[tuple[str, InstanceState]]:
    """
    Return the instances that the cloud should list while the attempt trains, each with its id and state. The first of
    `members` is the lead, whose instance id comes from the attempt.
    """
    _, *others = (member.recorded.instance_id for member in members if member.recorded is not None)
    return {(each, InstanceState.RUNNING) for each in (current.instance_id, *others)}
