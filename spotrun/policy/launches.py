"""Classifies a run's launches by their outcomes, for the other modules of the policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spotrun.instance import EndedBy
from spotrun.offering import CapacityType
from spotrun.run.events import Cause
from spotrun.run.state import Launch, RunState
from spotrun.spec.model import RunSpec

STILLBORN_MAX = 3
"""
If this number of instances in a row ended before an attempt, the next instance is expected to end in the same way.
"""
NO_CAPACITY = "no capacity"
CANNOT_START = "the cloud cannot start an instance"


def why_needed(state: RunState) -> str:
    """
    Return the reason for requesting an instance while nothing trains: the instance is the first one, or a replacement.
    It counts as a replacement if an earlier instance was billed, even if that instance never trained.
    """
    had_one = state.attempts or any(launch.billed_from is not None for launch in state.launches.values())
    return "replacement" if had_one else "first launch"


def is_standby(state: RunState, launch: Launch) -> bool:
    """Return True if the launch was requested while an attempt was running."""
    beside = launch.intent.beside
    if beside is None or launch.intent.standby_for is not None:
        return beside is not None
    end = state.attempts[beside].end
    return end is None or end.known_at > launch.intended_at


def may_be_of(spec: RunSpec, capacity_type: CapacityType) -> bool:
    """Return True if the job allows instances of this capacity type. The user's own machine is always allowed."""
    return capacity_type is CapacityType.OWN or spec.resources.spot_policy in ("auto", capacity_type.in_words)


def refused(launch: Launch) -> bool:
    """Return True if the launch failed because the cloud had no capacity, or because an account quota is full."""
    closed = launch.closed is not None and launch.closed.cause is not Cause.EXTERNAL
    return closed or launch.taken_before_it_ran or launch.over_quota


def rejected(launch: Launch) -> bool:
    """
    Return True if the cloud rejected the request itself, so that the same request would be rejected again. The cloud
    may do so in its response, or later when it starts the instance.
    """
    refused = launch.closed is not None and launch.closed.cause is Cause.EXTERNAL and launch.closed.refused
    return refused or launch.failed_to_start


def denied(launch: Launch) -> bool:
    """Return True if the account may not make this request."""
    return launch.closed is not None and launch.closed.cause is Cause.ACCESS


def is_final(launch: Launch) -> bool:
    """Return True if the same request would be refused again until a person changes something."""
    return rejected(launch) or denied(launch)


def never_asked(launch: Launch) -> bool:
    """
    Return True if the launch failed because no runner was running in time to send its request. Such a failure says
    nothing about the market.
    """
    closed_at = launch.closed_at
    if launch.closed is None or launch.closed.refused or closed_at is None:
        return False
    return closed_at >= launch.intent.not_after


def why_refused(launch: Launch) -> str:
    """
    Return in a few words why the launch failed: capacity, a quota, or the request itself. Return "" if it failed for
    another reason or not at all.
    """
    if never_asked(launch):
        return ""
    if launch.failed_to_start:
        return CANNOT_START
    if rejected(launch):
        return "the request is rejected"
    if launch.over_quota:
        return "a quota is full"
    if denied(launch):
        return "it is denied"
    no_capacity = launch.taken_before_it_ran if launch.closed is None else launch.closed.cause is Cause.CAPACITY
    return NO_CAPACITY if no_capacity else ""


def words_of_refusal(launch: Launch) -> str:
    """
    Return the cloud's message about a failed launch: why it refused the request, or why the instance ended.
    """
    if launch.closed is not None:
        return launch.closed.detail
    return "" if launch.gone is None else launch.gone.evidence


def stillborn(launch: Launch) -> bool:
    """
    Return True if a launch failed for a reason other than a lack of capacity or a full quota: the cloud rejected the
    request, or the instance ended before an attempt began on it.
    """
    if launch.closed is not None:
        return launch.closed.cause is Cause.EXTERNAL
    if launch.gone is None or launch.over_quota or launch.came_up:
        return launch.settled and _never_began(launch)
    return launch.gone.ended_by is not EndedBy.CLOUD


def _never_began(launch: Launch) -> bool:
    """Return True if all members of a gang were ready, but were released because no lead began an attempt."""
    stood = all(member.ready is not None and member.released is not None for member in launch.members)
    return stood and launch.attempt is None and launch.intent.beside is None


def final_in_a_row(launches: Iterable[Launch]) -> Iterator[Launch]:
    """Yield the launches refused for good, newest first, back to the newest launch that got an instance."""
    for launch in launches:
        if is_final(launch):
            yield launch
        elif launch.closed is None:
            return
