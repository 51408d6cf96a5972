"""
When an instance ended that the cloud no longer lists, and whose end no runner saw.

A cloud forgets an instance about an hour after its end. A runner that was away for longer takes the earliest moment by
which it may have been over, and the entry says which one that is: `spotrun bill --correct` has the cloud's own later.

The last heartbeat is such a moment where something ended the instance: its agent, which says so, or the cloud, which
takes spot. What is on demand and falls silent in the middle of its training is not over, as far as anybody knows: a
machine that hangs is billed until its time-to-live. So is spot that hangs, but nobody can tell it from what was taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from spotrun.instance import EndedBy
from spotrun.offering import CapacityType
from spotrun.policy.facts import Facts
from spotrun.run import events as ev
from spotrun.run.state import Attempt, Launch

POWER_OFF_GRACE = timedelta(minutes=3)
"""An instance whose attempt is over powers itself off; after this long a runner ends it."""
HEARTBEATS_APART = timedelta(seconds=30)
"""Between two heartbeats passes less: who has spoken so shortly before a moment has lived until then."""


def unseen_end(facts: Facts, launch: Launch) -> ev.InstanceGone:
    """The end of a recorded instance, as far as it can be told."""
    recorded = launch.recorded
    assert recorded is not None
    ended_at, bound = min(_bounds(facts, launch))
    heard_at = _heard_at(facts, launch)
    return ev.InstanceGone(
        launch=launch.number,
        instance_id=recorded.instance_id,
        billed_from=recorded.billed_from,
        ended_at=max(recorded.billed_from, ended_at),
        ended_by=EndedBy.CLOUD if _was_taken(facts, launch) else EndedBy.FAULT,
        prices=recorded.prices,
        evidence=f"the cloud's list no longer has it; nobody saw its end, which is taken from {bound}",
        bounded_by=bound,
        stopped_at=heard_at if heard_at is not None and heard_at < ended_at else None,
    )


def over_by(attempt: Attempt) -> datetime | None:
    """
    By when its instance had time to power off by itself, or to be taken by the cloud that gave it notice (protocol 15).
    None while the attempt goes on.
    """
    if attempt.end is None:
        return None
    deadline_at = None if attempt.notice is None else attempt.notice.deadline_at
    return max(filter(None, (attempt.end.known_at, deadline_at))) + POWER_OFF_GRACE


def _bounds(facts: Facts, launch: Launch) -> Iterator[tuple[datetime, str]]:
    assert launch.recorded is not None
    yield facts.now, "the look that missed it"
    yield launch.recorded.billed_from + timedelta(seconds=launch.intent.time_to_live_s), "its time-to-live"
    over_at = None if launch.attempt is None else over_by(facts.state.attempts[launch.attempt])
    if over_at is not None:
        yield over_at, "the end of its attempt"
    heard_at = _heard_at(facts, launch)
    if heard_at is not None and not _may_hang(facts, launch):
        yield heard_at, "its last heartbeat"


def _may_hang(facts: Facts, launch: Launch) -> bool:
    """Whether it was training, and nobody but its user would have ended it."""
    if launch.intent.offering.capacity_type is CapacityType.SPOT or launch.condemned is not None:
        return False
    return launch.attempt is not None and facts.state.attempts[launch.attempt].end is None


def _heard_at(facts: Facts, launch: Launch) -> datetime | None:
    """Its agent's last sign of life: an entry is one too, if no heartbeat got through after it."""
    heard_at = facts.world.heard.get(launch.number)
    if heard_at is None or launch.attempt is None:
        return heard_at
    newest = next((each.at for each in reversed(facts.state.commits) if each.event.attempt == launch.attempt), heard_at)
    return max(heard_at, facts.state.attempts[launch.attempt].started_at, newest)


def _was_taken(facts: Facts, launch: Launch) -> bool:
    """The cloud had said when it would take it, and it lived until then."""
    notice = None if launch.attempt is None else facts.state.attempts[launch.attempt].notice
    heard_at = _heard_at(facts, launch)
    if notice is None or notice.deadline_at is None or heard_at is None:
        return False
    return heard_at > notice.deadline_at - HEARTBEATS_APART
