"""Decides what the members of a gang do. Pure: each decision is computed from facts that the caller passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import NamedTuple

from spotrun.agent.gang.worker_statuses import SeenStatus
from spotrun.folder.status_objects import MembersTrainer
from spotrun.run.events import Cause
from spotrun.run.gang import Gang, MemberName, Seat
from spotrun.run.reasons import lost_a_peer
from spotrun.run.state import Attempt, RunState

ANOTHER_STARTS_AFTER_S = 30.0
"""
Seconds of run time for which the gang waits for its lead to start the attempt. Afterwards any ready member is allowed
to start it (protocol 36).
"""
SURVIVORS_WITHIN_S = 15.0
"""
Maximum seconds of run time for which an elastic gang waits for members that have been ready before. One that comes
later joins by regrouping.
"""
FIRST_WAITS_S = 300.0
"""Maximum seconds of run time for which the first gang of an elastic run waits until all its members are ready."""
SILENT_S = 30.0
"""
Seconds of run time without a change of a member's status after which the member counts as unreachable (protocol
44).
"""
SILENT_MIN_S = 10.0
"""Lower limit of SILENT_S in seconds of system time, because a busy machine is slow."""
ENDS_WITHIN_S = 10.0
"""
Maximum seconds of run time for which the lead's agent waits for the other members' trainers to end, after its own has
ended. Usually they end sooner, because each trainer ends as soon as it notices that another trainer has ended.
"""
ENDS_WITHIN_MIN_S = 5.0
"""Lower limit of ENDS_WITHIN_S in seconds of system time."""
TOLD_WITHIN_S = 40.0
"""
Maximum seconds of run time for which the lead's agent waits for the report of the trainer that failed first. If all
reports so far say only that the connection to another trainer was lost, that other trainer failed first, and its report
has not arrived yet. If the report does not arrive in this time, the other trainer's member counts as unreachable.
"""
TOLD_WITHIN_MIN_S = 15.0
"""Lower limit of TOLD_WITHIN_S in seconds of system time."""
BEGINS_WITHIN_S = 60.0
"""
Maximum seconds of run time from the start of the lead's trainer until the other members report that their trainers have
started (protocol 39).
"""
BEGINS_WITHIN_MIN_S = 20.0
"""Lower limit of BEGINS_WITHIN_S in seconds of system time."""


class MemberAction(Enum):
    """The next action of a member that is not in an attempt."""

    LEAVE = auto()
    WAIT = auto()
    SAY_READY = auto()
    TRAIN = auto()


def stands(state: RunState, name: MemberName) -> MemberAction:
    """
    Return the next action of member `name` according to the ledger (protocol 33 to 35).

    A member of the current attempt's gang trains. Meanwhile, each member of the gang that will replace it reports
    ready. When all members of the new gang are ready, a runner tells the current gang to hand over.
    """
    launch = state.launches.get(name.launch)
    if launch is None or state.terminal is not None or name.member >= len(launch.members):
        return MemberAction.LEAVE
    if not state.is_wanted(name):
        return MemberAction.LEAVE
    if state.current is not None and name in state.current.names:
        return MemberAction.TRAIN
    if state.has_to_leave(name):
        return MemberAction.LEAVE
    if state.stop_requested:
        return MemberAction.WAIT
    ready = state.member(name).ready
    return MemberAction.SAY_READY if ready is None or ready.after != state.last_end else MemberAction.WAIT


def stays(state: RunState, attempt: Attempt) -> bool:
    """
    Return True if the members of an ended attempt stay, to train in the next attempt. They stay if the attempt ended
    because it lost a member, or regroups. If it ended because of its training (completed, or failed for good), they
    leave.
    """
    if state.terminal is not None or attempt.end is None or attempt.end.gave_up:
        return False
    lost = any(member.gone is not None or member.condemned is not None for member in state.members_of(attempt))
    return lost or attempt.regroups or bool(attempt.end.missing) or attempt.end.cause is Cause.INTERRUPTED


def gang_to_start(state: RunState, name: MemberName, waited_s: float) -> Gang | None:
    """
    Return the gang of the next attempt if member `name` has to start this attempt now; otherwise None.

    The gang consists of as many members as the job requests. Members that are ready are chosen in the order of their
    names. The first of them starts the attempt. If it has not done so after ANOTHER_STARTS_AFTER_S, any other member of
    the gang starts it (protocol 36).

    An elastic gang starts with fewer members, unless one that has been ready before is about to be so again.
    """
    if state.current is not None or state.terminal is not None or state.stop_requested:
        return None
    chosen = ready_members(state)[: state.created.size]
    least = state.created.size if _waits_for_more(state, waited_s) else state.created.least
    if len(chosen) < least or name not in chosen:
        return None
    if name != chosen[0] and waited_s < ANOTHER_STARTS_AFTER_S:
        return None
    return _seated(state, chosen)


def _waits_for_more(state: RunState, waited_s: float) -> bool:
    """
    Return True if an elastic gang still waits for members. Before the first attempt, it waits for all that were
    requested. Later, it waits only for those that have been ready before, such as survivors whose trainers are ending.
    """
    if not state.attempts:
        return waited_s < FIRST_WAITS_S
    known = (name for name in state.names() if state.member(name).ready is not None)
    coming = any(state.can_train(name) and not _is_ready(state, name) for name in known)
    return coming and waited_s < SURVIVORS_WITHIN_S


def ready_members(state: RunState) -> list[MemberName]:
    """
    Return the ready members, in the order of their names. A member is ready if it has reported ready since the end of
    the last attempt.
    """
    return [name for name in state.names() if _is_ready(state, name)]


def _is_ready(state: RunState, name: MemberName) -> bool:
    ready = state.member(name).ready
    said = ready is not None and ready.after == state.last_end
    return said and state.can_train(name)


def _seated(state: RunState, names: list[MemberName]) -> Gang:
    seats, rank = [], 0
    for name in names:
        seats.append(Seat(name=name, rank=rank))
        ready = state.member(name).ready
        assert ready is not None
        rank += max(1, ready.accelerators)
    return Gang(members=tuple(seats), world=rank, batches=(1,) * rank)


class EndedTrainer(NamedTuple):
    """
    The end of a member's trainer. `damaged` is True if the trainer could not start, because the files of its commit are
    damaged in the store.
    """

    name: MemberName
    exit_code: int
    at: datetime
    reason: str
    damaged: bool = False


def ended_trainers(seen: Mapping[MemberName, SeenStatus], attempt: int, incarnation: int) -> list[EndedTrainer]:
    """Return the trainers of `incarnation` that have ended, in the order in which they ended."""
    found = []
    for name, each in seen.items():
        trainer = _trainer_of(each, attempt, incarnation)
        if trainer is not None and trainer.exit_code is not None and trainer.at is not None:
            found.append(EndedTrainer(name, trainer.exit_code, trainer.at, trainer.reason, trainer.damaged))
    return sorted(found, key=lambda one: one.at)


def has_the_reason(ended: Sequence[EndedTrainer]) -> EndedTrainer:
    """
    Return the trainer that failed first, and so made all other trainers end.

    The reported times alone do not show which trainer failed first, because the machines' clocks differ, and a failed
    process may end late. So the errors are used too: a trainer whose error says that it lost the connection to
    another trainer did not fail first. Such a trainer is returned only if all trainers have such an error.
    """
    return min(ended, key=lambda one: (lost_a_peer(one.reason), one.at))


def silent_members(seen: Mapping[MemberName, SeenStatus], now_s: float, scale: float) -> tuple[MemberName, ...]:
    """Return the members whose statuses have not changed for too long. They count as unreachable."""
    limit_s = max(SILENT_S, SILENT_MIN_S * scale)
    return tuple(name for name, each in seen.items() if now_s - each.since_s >= limit_s)


def cut_off_members(unreached: Mapping[MemberName, tuple[MemberName, ...]], lead: MemberName) -> tuple[MemberName, ...]:
    """
    Return the members to remove from the gang, so that all remaining members can reach one another. In each round, the
    member with the most broken connections is removed. If the lead is that member, return all members except the lead.
    """
    apart = {frozenset((name, other)) for name, others in unreached.items() for other in others if other in unreached}
    missing: set[MemberName] = set()
    while apart:
        counts = Counter(name for pair in apart for name in pair)
        worst = max(counts, key=lambda name: (counts[name], name != lead, name))
        if worst == lead:
            return tuple(name for name in unreached if name != lead)
        missing.add(worst)
        apart = {pair for pair in apart if worst not in pair}
    return tuple(sorted(missing))


def are_settled(
    seen: Mapping[MemberName, SeenStatus], ended: int, since_s: float, now_s: float, scale: float, *, lost: bool = False
) -> bool:
    """
    Return True if enough is known about the other members to judge why the lead's trainer ended at `since_s`. Any of
    three conditions is enough:

    - all other trainers have ended
    - the lead's trainer ended ENDS_WITHIN_S ago, and every other member has sent a status since. A trainer that still
      runs is probably waiting in a collective call, and so has no error to report.
    - a member is silent

    `lost` is True if every trainer that has ended reported a lost connection to another trainer. Then either the report
    of the trainer that failed first has not arrived yet, or the network between the members is broken. To give that
    report time to arrive, the function returns True only after TOLD_WITHIN_S, unless a member is silent.
    """
    if silent_members(seen, now_s, scale):
        return True
    waited_s, limit_s = now_s - since_s, max(ENDS_WITHIN_S, ENDS_WITHIN_MIN_S * scale)
    if lost:
        return waited_s >= max(TOLD_WITHIN_S, TOLD_WITHIN_MIN_S * scale)
    if ended == len(seen):
        return True
    all_heard = all(each.since_s > since_s for each in seen.values())
    return waited_s >= limit_s and all_heard


def missing_at_start(
    seen: Mapping[MemberName, SeenStatus], attempt: int, incarnation: int, since_s: float, scale: float
) -> tuple[MemberName, ...]:
    """
    Return the members whose trainers should have begun by now, but whose agents have not reported it (protocol 39).
    """
    if since_s < max(BEGINS_WITHIN_S, BEGINS_WITHIN_MIN_S * scale):
        return ()
    return tuple(name for name, each in seen.items() if _trainer_of(each, attempt, incarnation) is None)


def _trainer_of(seen: SeenStatus, attempt: int, incarnation: int) -> MembersTrainer | None:
    """Return the member's report on its trainer of `attempt` and `incarnation`; None if that trainer has not begun."""
    trainer = None if seen.status is None else seen.status.trainer
    if trainer is None or (trainer.attempt, trainer.incarnation) != (attempt, incarnation):
        return None
    return trainer
