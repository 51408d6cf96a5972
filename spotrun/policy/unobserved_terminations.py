"""
Estimates the time at which an instance ended, if no runner observed the end and the cloud no longer lists the instance.

A cloud lists an instance for about an hour after its end. If no runner was active in that hour, the next runner
estimates when the instance ended. Several facts, such as its time-to-live, each give a time by which it must have
ended. The runner records the earliest of these times, and names in the entry the fact that gave it. Later, `spotrun
bill --correct` enters the cloud's own figure.

The last heartbeat is one of these facts in two cases: if the instance's attempt had already ended, or if the instance
is a spot instance, which the cloud may have taken at that time.

The last heartbeat is not used for an on-demand instance that was still training. Such a machine may have hung, and a
machine that hangs is billed until its time-to-live ends. A spot instance that hangs is billed too, but it cannot be
distinguished from a spot instance that was taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from spotrun.instance import EndedBy, PriceSegment
from spotrun.offering import CapacityType
from spotrun.policy.facts import Facts
from spotrun.run import events as ev
from spotrun.run.billing import switched_off_at, until_switched_off
from spotrun.run.gang import MemberName
from spotrun.run.state import RunState

POWER_OFF_GRACE = timedelta(minutes=3)
"""
Time that an instance has, after its attempt, to power itself off. If it has not done so by then, a runner ends it.
"""
HEARTBEATS_APART = timedelta(seconds=30)
"""
Maximum time between two heartbeats. If an agent's newest heartbeat is not older than this, the agent counts as running.
"""


def unseen_end(facts: Facts, name: MemberName) -> ev.InstanceGone:
    recorded = facts.state.shown(name)
    assert recorded is not None
    ended_at, bound = min(_bounds(facts, name))
    heard_at = _heard_at(facts, name)
    return ev.InstanceGone(
        launch=name.launch,
        member=facts.state.told(name),
        instance_id=recorded.instance_id,
        billed_from=recorded.billed_from,
        ended_at=max(recorded.billed_from, ended_at),
        ended_by=EndedBy.CLOUD if _was_taken(facts, name) else EndedBy.FAULT,
        prices=_prices(facts, name),
        evidence=f"the cloud no longer lists it; no runner saw its end, which is estimated from {bound}",
        bounded_by=bound,
        stopped_at=None if heard_at is None else min(heard_at, ended_at),
    )


def _prices(facts: Facts, name: MemberName) -> tuple[PriceSegment, ...]:
    """
    Return the instance's prices: those in the cloud's price history, which knows the changes that no runner observed,
    or, without it, those in the ledger. Either way, the machine costs nothing after a recorded shutdown.
    """
    recorded = facts.state.shown(name)
    assert recorded is not None
    off_since = switched_off_at(recorded.prices)
    prices = facts.world.spot_prices.get(name, recorded.prices)
    return prices if off_since is None else until_switched_off(prices, off_since)


def over_by(state: RunState, name: MemberName) -> datetime | None:
    """
    Return the time by which an instance must have ended, because its attempt is over (protocol 15). By this time, it
    powers itself off or, after a notice, the cloud takes it.

    Return None during the instance's attempt, and while the instance waits for the next attempt.
    """
    if not has_left(state, name):
        return None
    attempt, terminal = state.attempt_of(name), state.terminal
    if attempt is None or attempt.end is None:
        return None if terminal is None else terminal.at + POWER_OFF_GRACE
    deadline_at = None if attempt.notice is None else attempt.notice.deadline_at
    return max(filter(None, (attempt.end.known_at, deadline_at))) + POWER_OFF_GRACE


def has_left(state: RunState, name: MemberName) -> bool:
    """Return True if the member's attempt is over, and no other attempt will use the member."""
    if state.of_gangs and state.terminal is not None:
        return True
    attempt = state.attempt_of(name)
    return attempt is not None and attempt.end is not None and attempt.lets_go(name)


def _bounds(facts: Facts, name: MemberName) -> Iterator[tuple[datetime, str]]:
    state, recorded = facts.state, facts.state.shown(name)
    assert recorded is not None
    life = timedelta(seconds=state.launches[name.launch].intent.time_to_live_s)
    yield facts.now, "the first list without it"
    yield recorded.billed_from + life, "its time-to-live"
    over_at = over_by(state, name)
    if over_at is not None:
        yield over_at, "the end of its attempt"
    heard_at = _heard_at(facts, name)
    if heard_at is not None and not _may_hang(facts, name):
        yield heard_at, "its last heartbeat"


def _may_hang(facts: Facts, name: MemberName) -> bool:
    """Return True if an on-demand instance fell silent while it trained. Such an instance may still exist and hang."""
    state = facts.state
    spot = state.launches[name.launch].intent.offering.capacity_type is CapacityType.SPOT
    if spot or state.member(name).condemned is not None:
        return False
    attempt = state.attempt_of(name)
    return attempt is not None and attempt.end is None


def _heard_at(facts: Facts, name: MemberName) -> datetime | None:
    """
    Return the time of the last sign of life from the member's agent; None if there was none.

    This is the agent's last heartbeat or the last entry that the agent wrote, whichever is newer. In a gang, only the
    lead writes the entries of an attempt.
    """
    heard_at, attempt = facts.world.heard.get(name), facts.state.attempt_of(name)
    if heard_at is None or attempt is None or name != attempt.names[0]:
        return heard_at
    newest = next((each.at for each in reversed(facts.state.commits) if each.event.attempt == attempt.number), heard_at)
    return max(heard_at, attempt.started_at, newest)


def _was_taken(facts: Facts, name: MemberName) -> bool:
    """
    Return True if the cloud had announced the time at which it would take the instance, and the agent was alive until
    that time.
    """
    attempt = facts.state.attempt_of(name)
    notice = None if attempt is None or not attempt.lets_go(name) else attempt.notice
    heard_at = _heard_at(facts, name)
    if notice is None or notice.deadline_at is None or heard_at is None:
        return False
    return heard_at > notice.deadline_at - HEARTBEATS_APART
