"""
Determines which members a gang has, and requests the missing ones.

If a gang has lost a member, the run requests a replacement in the pool of the remaining members. The remaining members
wait for the replacement, and are billed while they wait. So if the replacement takes longer than a start normally
takes, the run releases the remaining members and requests a whole new gang, in any pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from spotrun.offering import Offering, Pool
from spotrun.policy.actions import Action, Append, Wait
from spotrun.policy.changeovers import changeover
from spotrun.policy.deadline import too_late_for_spot
from spotrun.policy.facts import Facts
from spotrun.policy.housekeeping import condemned
from spotrun.policy.launches import why_needed
from spotrun.policy.money import intend
from spotrun.policy.patience import at_least_real
from spotrun.policy.ranking import on_demand_now, spot_now
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.run.gang import MemberName
from spotrun.run.state import Attempt, Launch, RunState
from spotrun.units import count_of, to_the_second

WINDOW_MIN = timedelta(minutes=10)
"""Minimum time for which a ready member is kept while no attempt uses it (protocol 45)."""
SPEAKS_WITHIN = timedelta(seconds=60)
"""
Time within which a member has to report again that it is ready, after an attempt ended because the other members could
not reach it. If the member does not report within this time, it is replaced.
"""
JOIN_TOGETHER_WITHIN = timedelta(minutes=2)
"""Maximum time for which a member that could join an elastic gang waits for others that are booting."""
TIMES_MISSING = 2
"""Number of successive attempts that failed to reach a member, after which this member is ended (protocol 39)."""


def available(state: RunState) -> list[MemberName]:
    """
    Return the members that can take part in the next attempt: members that are booting, members that are ready, and
    members that train and do not have to leave.
    """
    return [name for name in state.names() if state.can_train(name)]


def lacking(facts: Facts) -> int:
    """
    Return the number of additional instances that the run needs before it can train. It is 0 while an attempt trains,
    unless one of the attempt's instances has to leave.
    """
    missed = _missed(facts)
    return max(0, facts.size - sum(name not in missed for name in available(facts.state)))


def idle(state: RunState) -> list[MemberName]:
    """Return the members that have reported ready and are not used by the current attempt."""
    training = () if state.current is None else state.current.names
    return [name for name in available(state) if name not in training and state.member(name).ready is not None]


def standing_by(facts: Facts) -> Launch | None:
    """
    Return the launch of a standby that is ready to take over from the running attempt; None if there is none. The
    standby of a gang is ready if enough of its members are ready.
    """
    state = facts.state
    pending = state.pending_launch
    if not state.of_gangs:
        return pending if pending is not None and pending.number in facts.world.ready else None
    waiting = idle(state)
    return state.launches[waiting[-1].launch] if len(waiting) >= facts.size else None


def joining(facts: Facts) -> list[MemberName]:
    """
    Return the members that a smaller elastic gang can take in now; [] if there are none. It waits a while for further
    members that are booting, because each change of a gang restarts its trainers.
    """
    state = facts.state
    if not state.is_elastic or state.current is None or state.current.leaving:
        return []
    waiting, training = idle(state), state.current.names
    if not waiting or len(training) >= facts.size:
        return []
    boots = any(name not in training and name not in waiting for name in available(state))
    since = min(_idle_since(state, name) for name in waiting)
    return waiting if not boots or facts.now - since > at_least_real(JOIN_TOGETHER_WITHIN, state) else []


def regroup(facts: Facts, names: list[MemberName]) -> Append:
    """Order the gang to hand over to itself and the members that wait."""
    assert facts.state.current is not None
    several = count_of(len(names), "member")
    reason = f"{several} {'is' if len(names) == 1 else 'are'} ready to join"
    return Append(event=ev.DrainRequested(attempt=facts.state.current.number, reason=reason, regroup=True))


def fill(facts: Facts) -> Iterator[Action]:
    """Request the members that a gang lacks. If its other members have waited for too long, release them instead."""
    lacks, there = lacking(facts), available(facts.state)
    offered = _offered(facts, facts.state.launches[there[0].launch].intent.offering.pool)
    why = f"{lacks} of {count_of(facts.size, 'member')} missing"
    if given_up := _why_given_up(facts, offered):
        yield from _released(idle(facts.state), given_up)
    elif offered is None and _trains(facts.state):
        return  # with the members that are there
    elif offered is None:
        yield Wait(reason=f"{why}, and no capacity in the pool of the other members now")
    else:
        yield from intend(facts, offered, f"{why_needed(facts.state)}: {why}, in the pool of the other members", lacks)


def dismiss(facts: Facts) -> Iterator[Action]:
    """End the members that the other members cannot reach, and the members that have waited too long for an attempt."""
    state = facts.state
    if not state.of_gangs or state.terminal is not None:
        return
    for name in _cut_off(state):
        if state.is_wanted(name):
            detail = f"the other members did not reach it in {TIMES_MISSING} attempts in a row"
            yield Append(event=condemned(state, name, Cause.EXTERNAL, detail))
    if state.pending_launch is None:
        window = at_least_real(_window(state), state)
        unused = [name for name in idle(state) if facts.now - _idle_since(state, name) > window]
        yield from _released(unused, f"no attempt has used it for {to_the_second(window)}")


def trains_with_fewer(facts: Facts) -> bool:
    """Return True if an elastic gang trains while members are missing."""
    return facts.state.is_elastic and _trains(facts.state) and lacking(facts) > 0


def _trains(state: RunState) -> bool:
    return state.current is not None and not state.current.leaving


def _missed(facts: Facts) -> set[MemberName]:
    """
    Return the members that the newest attempt did not reach and that have still not reported ready after SPEAKS_WITHIN.
    """
    state = facts.state
    newest = state.attempts.values()[-1] if state.attempts else None
    if newest is None or newest.end is None or facts.now - newest.end.known_at < at_least_real(SPEAKS_WITHIN, state):
        return set()
    words = {name: state.member(name).ready for name in newest.end.missing}
    return {name for name, ready in words.items() if ready is None or ready.after != state.last_end}


def _offered(facts: Facts, pool: Pool) -> Offering | None:
    """Return the offering of `pool`, if it can be requested now; else None."""
    return next((found for found in (*spot_now(facts), *on_demand_now(facts)) if found.pool == pool), None)


def _why_given_up(facts: Facts, offered: Offering | None) -> str:
    """Return the reason why the gang no longer waits for its missing members; "" if it still waits."""
    state = facts.state
    if state.current is not None:
        return ""
    patience = at_least_real(timedelta(seconds=changeover(state)), state)
    if facts.now - _short_since(state) > patience:
        return f"the missing members did not come within {to_the_second(patience)}"
    if state.created.deadline_at is not None and offered is not None and too_late_for_spot(facts, offered):
        return "the deadline leaves no more time for spot"
    return ""


def _short_since(state: RunState) -> datetime:
    """
    Return the time at which the number of missing members last changed. It changes when a ready member is lost, when a
    member becomes ready, and when a member's attempt ends. The loss of a member that was never ready is ignored.
    """
    ends = [one.gone.ended_at for one in state.members() if one.gone is not None and one.ready is not None]
    begun = [_idle_since(state, name) for name in idle(state)]
    return max([state.opened_at, *ends, *begun])


def _released(names: list[MemberName], reason: str) -> Iterator[Action]:
    for name in names:
        yield Append(event=ev.MemberReleased(launch=name.launch, member=name.member, reason=reason))


def _window(state: RunState) -> timedelta:
    """
    Return how long a ready member may wait for an attempt. This is the longest time that boot and setup have taken so
    far, because the missing members may need that long.
    """
    starts = (known.at - known.launch.intended_at for known in state.setups())
    return max([WINDOW_MIN, *starts])


def _idle_since(state: RunState, name: MemberName) -> datetime:
    """
    Return the time at which the member became idle: when it became ready or when its last attempt ended, whichever was
    later.
    """
    ready_at, attempt = state.member(name).ready_at, state.attempt_of(name)
    assert ready_at is not None
    return ready_at if attempt is None or attempt.end is None else max(ready_at, attempt.end.known_at)


def _cut_off(state: RunState) -> set[MemberName]:
    newest = [_not_met(attempt) for attempt in state.attempts.values()[-TIMES_MISSING:]]
    return set.intersection(*newest) if len(newest) == TIMES_MISSING else set()


def _not_met(attempt: Attempt) -> set[MemberName]:
    """
    Return the members that the other members of the attempt could not reach.

    The lead reports which members it did not reach. If there are two or more other members, and the lead reached none
    of them, the fault is probably in the lead itself, so return only the lead.
    """
    missing = set() if attempt.end is None else set(attempt.end.missing)
    lead, *others = attempt.names
    return {lead} if len(others) > 1 and missing == set(others) else missing
