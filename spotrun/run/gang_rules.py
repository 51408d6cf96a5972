"""
The additional preconditions for entries of a run that trains on a gang (protocol 32 to 48). Each rule is one function.

`GANG_CHECKS` maps each event to its preconditions.

In a run without a gang, every entry that has a field for gangs is void. Older versions of spotrun do not know these
fields and treat such an entry as void, and all versions have to agree on which entries are void.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from msgspec import UNSET

from spotrun.run import events as ev
from spotrun.run.gang import MEMBERS_MAX, Gang, Layout, MemberName, Shard
from spotrun.run.refusal import require
from spotrun.run.state import Attempt, RunState


def check_intended(state: RunState, event: ev.LaunchIntended) -> None:
    require(
        event.count is not UNSET and event.for_gang is not UNSET,
        "the launch does not say how many members it requests, and for which gang",
    )
    require(1 <= event.instances <= MEMBERS_MAX, f"a gang has 1 to {MEMBERS_MAX} members")
    require(event.standby_for is None, "a launch that replaces members has to name their gang")
    newest = state.attempts.values()[-1].number if state.attempts else None
    require(
        event.for_gang is None or event.for_gang == newest,
        "the gang whose missing members it replaces is not the newest",
    )


def check_is_member(state: RunState, event: ev.OfMember) -> None:
    """
    Require that the launch exists and has a member with that number. In a run on one instance, only member 0 exists.
    """
    require(event.launch in state.launches, f"there is no launch {event.launch}")
    name = ev.name_of(event)
    require(name.member < len(state.launches[event.launch].members), f"there is no member {name}")


def check_another_instance(state: RunState, event: ev.LaunchRecorded) -> None:
    others = (member.recorded for member in state.launches[event.launch].members)
    taken = {other.instance_id for other in others if other is not None}
    require(event.instance_id not in taken, "that instance already belongs to another member")


def check_ready(state: RunState, event: ev.MemberReady) -> None:
    check_is_member(state, event)
    name = ev.name_of(event)
    check_wanted(state, [name])
    check_not_let_go(state, [name])
    recorded, known = state.member(name).recorded, state.member(name).ready
    require(recorded is None or recorded.instance_id == event.instance_id, "that member has another instance")
    check_left(state, name)
    check_after_the_end(state, event)
    require(known is None or known.after != event.after, "the member has already reported this")
    require(event.holds is None or state.commit(event.holds) is not None, "there is no such checkpoint")


def check_left(state: RunState, name: MemberName) -> None:
    """Require that the member holds no rank in the current gang (protocol 33)."""
    require(state.current is None or name not in state.current.names, f"{name} is in the current attempt")


def check_after_the_end(state: RunState, event: ev.MemberReady) -> None:
    """Require that no attempt has ended since the member reported ready (protocol 33)."""
    require(event.after == state.last_end, "an attempt has ended since the member reported ready")


def check_released(state: RunState, event: ev.MemberReleased) -> None:
    check_is_member(state, event)
    member = state.member(ev.name_of(event))
    require(member.gone is None and member.released is None, "already released or gone")
    check_unused(state, ev.name_of(event))


def check_unused(state: RunState, name: MemberName) -> None:
    """
    Require that the member is not in the current gang. The gang needs all of its members to continue (protocol 45).
    """
    require(state.current is None or name not in state.current.names, f"{name} is in the current attempt")


def check_closed(state: RunState, event: ev.LaunchClosed) -> None:
    check_never_ready(state, event)


def check_never_ready(state: RunState, event: ev.LaunchClosed) -> None:
    """
    Require that no member of the launch was ever ready. Closing a launch ends all of its members, and a ready member
    might be training (protocol 46).
    """
    members = state.launches[event.launch].members
    require(all(member.ready is None for member in members), "a member of the launch was ready")


def check_started(state: RunState, event: ev.AttemptStarted) -> None:
    require(event.gang is not UNSET and bool(event.gang.members), "the attempt names no members")
    assert event.gang is not UNSET
    gang = event.gang
    for name in gang.names:
        known = name.launch in state.launches and name.member < len(state.launches[name.launch].members)
        require(known, f"there is no member {name}")
        require(state.member(name).ready is not None, f"{name} has never reported ready")
    check_one_is_current(state)
    check_wanted(state, gang.names)
    check_not_let_go(state, gang.names)
    check_words(state, gang)
    check_order(state, gang)
    lead = state.member(gang.names[0]).ready
    speaks_of_it = lead is not None and (event.launch, event.instance_id) == (lead.launch, lead.instance_id)
    require(speaks_of_it, "the attempt does not describe its lead")


def check_one_is_current(state: RunState) -> None:
    """
    Require that a new attempt is allowed to start: there is no current attempt, or the current attempt has to leave,
    because it has a notice or a drain request (protocol 32, 13).
    """
    require(state.current is None or state.current.leaving, "an attempt is current")


def check_wanted(state: RunState, names: Iterable[MemberName]) -> None:
    """
    Require that each of these members can still train. A member can never train again once it is condemned, released or
    gone, or once its launch is closed (protocol 35).
    """
    for name in names:
        require(state.is_wanted(name), f"{name} is condemned, released, closed or gone")


def check_not_let_go(state: RunState, names: Iterable[MemberName]) -> None:
    """
    Require that none of these members has to leave. A member has to leave if its gang has a drain request, or if the
    cloud gave notice for the member (protocol 32).
    """
    for name in names:
        require(not state.has_to_leave(name), f"{name} has to hand over, or the cloud is taking it")


def check_words(state: RunState, gang: Gang) -> None:
    """
    Require two things of each member of a new gang (protocol 33). The member must have reported ready since the end of
    the last attempt. And it must not be a member of the gang that trains now: a gang that hands over keeps its members
    until its attempt has ended.
    """
    for name in gang.names:
        ready = state.member(name).ready
        require(
            ready is not None and ready.after == state.last_end,
            f"{name} has not reported ready since the last attempt ended",
        )
        check_left(state, name)


def check_order(state: RunState, gang: Gang) -> None:
    """
    Require that the gang has the requested size (or, if it is elastic, at least the minimum size), and that its members
    are in the order of their names, with ascending ranks. So the lead, which has rank 0, is the member with the first
    name.
    """
    names, ranks = gang.names, [seat.rank for seat in gang.members]
    least, most = state.created.least, state.created.size
    sizes = str(most) if least == most else f"{least} to {most}"
    require(least <= len(names) <= most, f"a gang of this run has {sizes} members")
    require(
        all(name < later for name, later in pairwise(names)), "the gang's ranks do not follow the order of its names"
    )
    ascending = all(rank < later for rank, later in zip(ranks, [*ranks[1:], gang.world], strict=True))
    require(ranks[0] == 0 and ascending, "the gang's ranks do not match its number of processes")
    require(len(gang.batches) == gang.world and all(gang.batches), "not every rank has a part of each batch")


def check_resumed(state: RunState, event: ev.ResumedFrom) -> None:
    attempt = state.attempts[event.attempt]
    require(event.meet is not UNSET, "the event does not say where the trainers meet")
    assert event.meet is not UNSET
    lead = state.members_of(attempt)[0].ready
    require(lead is not None and lead.address == event.meet.address, "the trainers would not meet at the lead")
    check_new_place(attempt, event)


def check_new_place(attempt: Attempt, event: ev.ResumedFrom) -> None:
    """
    Require a combination of address and port that no earlier trainer of the attempt has used. Otherwise a trainer that
    is left over from an earlier incarnation could connect to the new trainers (protocol 37).
    """
    require(all(trainer.meet != event.meet for trainer in attempt.trainers), "earlier trainers met at this address")


def check_regroups(state: RunState, event: ev.DrainRequested) -> None:
    """Require that only an elastic gang regroups: in any other gang, the next attempt would have as many members."""
    require(not event.regroup or state.is_elastic, "a gang of this run keeps its size")


def check_named(state: RunState, event: ev.NoticeSeen | ev.NoticesUnseen) -> None:
    require(event.member is not UNSET, "the event does not say which member it concerns")
    require(event.member in state.attempts[event.attempt].names, f"{event.member} is not in the attempt")


def check_committed(state: RunState, event: ev.CheckpointCommitted) -> None:
    attempt = state.attempts[event.attempt]
    assert attempt.gang is not None
    require(
        bool(event.shards) and event.layout is not UNSET, "the checkpoint does not say which rank stored which part"
    )
    assert event.shards is not UNSET
    check_shards(attempt.gang, event, event.shards)
    check_newest(state, event, event.shards[0].snapshot)


def check_newest(state: RunState, event: ev.CheckpointCommitted, snapshot: int) -> None:
    """
    Require two things (protocol 43). The commit must be from the newest trainer. And if this trainer has committed
    before, the new snapshot must be newer than the last one, because a resume from an older snapshot would repeat
    steps.
    """
    newest = len(state.attempts[event.attempt].trainers) - 1
    require(event.incarnation == newest, "a newer trainer has begun")
    last = state.commits[-1].event if state.commits else None
    if last is not None and (last.attempt, last.incarnation) == (event.attempt, event.incarnation):
        assert last.shards is not UNSET
        require(last.shards[0].snapshot < snapshot, "a newer snapshot is committed")


def check_shards(gang: Gang, event: ev.CheckpointCommitted, shards: tuple[Shard, ...]) -> None:
    """
    Require one shard from each rank that has to store a part. If the state is replicated, that is only rank 0;
    otherwise it is every rank. All shards must be from the same snapshot. Their sizes and their numbers of objects must
    add up to the commit's (protocol 42).
    """
    ranks = (0,) if event.layout is Layout.REPLICATED else tuple(range(gang.world))
    require(tuple(shard.rank for shard in shards) == ranks, "shards are missing")
    said = {(one.attempt, one.incarnation, one.snapshot, one.step, one.world) for one in shards}
    ours = (event.attempt, event.incarnation, shards[0].snapshot, event.step, gang.world)
    require(said == {ours}, "the shards are from different snapshots")
    sums = (shards[0].blake3, sum(one.size_bytes for one in shards), sum(one.objects for one in shards))
    require(
        sums == (event.manifest_blake3, event.size_bytes, event.objects),
        "the checkpoint's figures do not match its shards",
    )


def check_missing(state: RunState, event: ev.AttemptEnded) -> None:
    missing = () if event.missing is UNSET else event.missing
    names = state.attempts[event.attempt].names
    require(all(name in names for name in missing), "a missing member is not in the attempt")


GANG_CHECKS: dict[type, Callable[[RunState, Any], object]] = {
    ev.LaunchIntended: check_intended,
    ev.LaunchRecorded: check_another_instance,
    ev.LaunchClosed: check_closed,
    ev.AttemptStarted: check_started,
    ev.DrainRequested: check_regroups,
    ev.ResumedFrom: check_resumed,
    ev.NoticeSeen: check_named,
    ev.NoticesUnseen: check_named,
    ev.CheckpointCommitted: check_committed,
    ev.AttemptEnded: check_missing,
}
"""
The additional checks in the run of a gang, by the type of the event. These types occur in runs without a gang too. An
entry has to pass the checks for all runs first, and then these.
"""
