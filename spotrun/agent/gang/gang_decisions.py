"""Decides what the members of a gang do, from facts. Pure: nothing here reads a clock or touches a process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import NamedTuple

from spotrun.agent.gang.worker_statuses import Seen
from spotrun.folder.status_objects import MembersTrainer
from spotrun.run.events import Cause
from spotrun.run.gang import Gang, MemberName, Seat
from spotrun.run.reasons import lost_a_peer
from spotrun.run.state import Attempt, RunState

ANOTHER_STARTS_AFTER_S = 30.0
"""Run seconds after which another member than the lead may start the attempt (protocol 36)."""
SILENT_S = 30.0
"""Run seconds after which an unchanged status means that a member is not reached (protocol 44)."""
SILENT_MIN_S = 10.0
"""The same in system time: a busy machine is slow."""
ENDS_WITHIN_S = 10.0
"""Maximum run seconds for which the others' trainers outlive the lead's; they end at once where they notice it."""
ENDS_WITHIN_MIN_S = 5.0
"""The same in system time."""
TOLD_WITHIN_S = 40.0
"""
Maximum run seconds until the loss that has ended the others is reported, or its member is found not to be reached.
"""
TOLD_WITHIN_MIN_S = 15.0
"""The same in system time."""
BEGINS_WITHIN_S = 60.0
"""Maximum run seconds after the lead's trainer has begun until the others report that theirs have (protocol 39)."""
BEGINS_WITHIN_MIN_S = 20.0
"""The same in system time."""


class MemberStands(Enum):
    """The next act of a member that is in no attempt."""

    LEAVE = auto()
    WAIT = auto()
    SAY_READY = auto()
    TRAIN = auto()


def stands(state: RunState, name: MemberName) -> MemberStands:
    """
    Return a member's next act by the ledger (protocol 33 to 35).

    A member that was named and has not read it is in the current attempt, and trains. A member that is to replace those
    that train reports itself ready meanwhile: a runner tells them to hand over once a whole gang stands ready.
    """
    launch = state.launches.get(name.launch)
    if launch is None or state.terminal is not None or name.member >= len(launch.members):
        return MemberStands.LEAVE
    if not state.is_wanted(name):
        return MemberStands.LEAVE
    if state.current is not None and name in state.current.names:
        return MemberStands.TRAIN
    if state.has_to_leave(name):
        return MemberStands.LEAVE
    if state.stop_requested:
        return MemberStands.WAIT
    ready = state.member(name).ready
    return MemberStands.SAY_READY if ready is None or ready.after != state.last_end else MemberStands.WAIT


def stays(state: RunState, attempt: Attempt) -> bool:
    """
    Return True if a member of an attempt that is over may train in the next one: the attempt has lost another member.
    If it ended for a cause in its training, no member trains on by itself.
    """
    if state.terminal is not None or attempt.end is None or attempt.end.gave_up:
        return False
    lost = any(member.gone is not None or member.condemned is not None for member in state.members_of(attempt))
    return lost or bool(attempt.end.missing) or attempt.end.cause is Cause.INTERRUPTED


def gang_to_start(state: RunState, name: MemberName, waited_s: float) -> Gang | None:
    """
    Return the gang of the next attempt, if `name` is to start it: that of the earliest members that are ready, in the
    number that the job requests. The first of them starts it; after a while another one may (protocol 36).
    """
    if state.current is not None or state.terminal is not None or state.stop_requested:
        return None
    chosen = ready_members(state)[: state.created.size]
    if len(chosen) < state.created.size or name not in chosen:
        return None
    if name != chosen[0] and waited_s < ANOTHER_STARTS_AFTER_S:
        return None
    return _seated(state, chosen)


def ready_members(state: RunState) -> list[MemberName]:
    """Return the members that have reported ready since the newest end, the earliest name first."""
    return [name for name in state.names() if _is_ready(state, name)]


def _is_ready(state: RunState, name: MemberName) -> bool:
    ready = state.member(name).ready
    said = ready is not None and ready.after == state.last_end
    return said and state.is_wanted(name) and not state.has_to_leave(name)


def _seated(state: RunState, names: list[MemberName]) -> Gang:
    seats, rank = [], 0
    for name in names:
        seats.append(Seat(name=name, rank=rank))
        ready = state.member(name).ready
        assert ready is not None
        rank += max(1, ready.accelerators)
    return Gang(members=tuple(seats), world=rank, batches=(1,) * rank)


class EndedTrainer(NamedTuple):
    """The end of a member's trainer, with its moment and reason; `damaged` as in MembersTrainer."""

    name: MemberName
    exit_code: int
    at: datetime
    reason: str
    damaged: bool = False


def ended_trainers(seen: Mapping[MemberName, Seen], attempt: int, incarnation: int) -> list[EndedTrainer]:
    """Return the ended trainers of this incarnation, the first one first."""
    found = []
    for name, each in seen.items():
        trainer = _trainer_of(each, attempt, incarnation)
        if trainer is not None and trainer.exit_code is not None and trainer.at is not None:
            found.append(EndedTrainer(name, trainer.exit_code, trainer.at, trainer.reason, trainer.damaged))
    return sorted(found, key=lambda one: one.at)


def has_the_reason(ended: Sequence[EndedTrainer]) -> EndedTrainer:
    """
    Return the end that is the reason of all: the first one. A rank that failed because it lost another one was not the
    first, whatever the clocks say: they are of two machines, and a process may take long to end.
    """
    return min(ended, key=lambda one: (lost_a_peer(one.reason), one.at))


def silent_members(seen: Mapping[MemberName, Seen], now_s: float, scale: float) -> tuple[MemberName, ...]:
    """Return the members whose agents have been silent so long that they count as not reached."""
    limit_s = max(SILENT_S, SILENT_MIN_S * scale)
    return tuple(name for name, each in seen.items() if now_s - each.since_s >= limit_s)


def cut_off_members(unreached: Mapping[MemberName, tuple[MemberName, ...]], lead: MemberName) -> tuple[MemberName, ...]:
    """
    Return the members that do not reach others, or are not reached: without them all others reach one another. All but
    the lead, if it is the lead that most of them do not reach.
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
    seen: Mapping[MemberName, Seen], ended: int, since_s: float, now_s: float, scale: float, *, lost: bool = False
) -> bool:
    """
    Return True if enough is known of the others, after the lead's trainer has ended at `since_s`: all their trainers
    have ended, or those that live on wait in a collective call and do not notice, or a member is silent. If all that
    have ended have only `lost` another one, there is one that is about to be reported, or the network between them is
    broken.
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
    seen: Mapping[MemberName, Seen], attempt: int, incarnation: int, since_s: float, scale: float
) -> tuple[MemberName, ...]:
    """
    Return the members whose agents have not reported in time that they have begun the trainer of this incarnation
    (protocol 39).
    """
    if since_s < max(BEGINS_WITHIN_S, BEGINS_WITHIN_MIN_S * scale):
        return ()
    return tuple(name for name, each in seen.items() if _trainer_of(each, attempt, incarnation) is None)


def _trainer_of(seen: Seen, attempt: int, incarnation: int) -> MembersTrainer | None:
    """Return the report of a member's agent on that trainer; None if it has not begun it."""
    trainer = None if seen.status is None else seen.status.trainer
    if trainer is None or (trainer.attempt, trainer.incarnation) != (attempt, incarnation):
        return None
    return trainer
