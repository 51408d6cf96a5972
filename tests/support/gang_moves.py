"""
What can happen next in a model of gangs (`tests.support.gang_world`): what agents, trainers and runners do, and faults.

Agents and runners do whatever the fold lets them, in any order. What is theirs to keep of protocol 32 to 48 they keep,
unless a rule is taken away. `Broken` says what must not happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.run.state import Attempt
from tests.support import gang_events as gang
from tests.support.gang_world import Bounds, Broken, Copy, Key, Trainer, World, appended, joined
from tests.support.histories import START, gone

Moves = Iterator[tuple[str, World]]


def moves(world: World, bounds: Bounds) -> Moves:
    """What somebody may do next, and what comes of it. A fault is no move."""
    for at, member in enumerate(world.members):
        if member.acts:
            yield from _of_agent(world, bounds, at)
        yield from _about(world, bounds, at)
    yield from _of_gang(world, bounds)
    yield from _of_launches(world, bounds)


def faults(world: World, bounds: Bounds) -> Moves:
    for at, member in enumerate(world.members):
        if member.on and member.frozen:
            yield f"{at} wakes", world.member(at, frozen=False)
    if world.faults == 0:
        return
    less = world._replace(faults=world.faults - 1)
    for at, member in enumerate(world.members):
        if member.on:
            yield f"{at} is lost", less.off(at)
        if member.acts:
            yield f"{at} freezes", less.member(at, frozen=True)
        if member.acts and not member.cut_off:
            yield f"{at} is cut off", less.member(at, cut_off=True)
    yield from _crashes(less, bounds)
    yield from _notices(less)


def _notices(world: World) -> Moves:
    """The cloud will take a member of the current gang, and that one says so."""
    if world.run.current is None or world.run.current.leaving:
        return
    for at in world.seats(world.run.current):
        member = world.members[at]
        seen = ev.NoticeSeen(
            attempt=world.run.current.number, kind="termination", deadline_at=START, member=member.name
        )
        if member.acts and (run := appended(world.run, seen)) is not None:
            yield f"{at} is told that it will be taken", world._replace(run=run)


def _crashes(world: World, bounds: Bounds) -> Moves:
    """A trainer ends before its work is done, and the lead says so."""
    place = world.place
    if place is None or not world.trains(place) or len(world.attempt(place).trainers) == bounds.incarnations:
        return
    attempt = world.attempt(place)
    lead = world.seats(attempt)[0]
    exited = ev.TrainerExited(
        attempt=attempt.number, incarnation=len(attempt.trainers) - 1, cause=Cause.USER_ERROR, exit_code=1, step=0
    )
    if (run := appended(world.run, exited)) is not None:
        yield "the lead's trainer crashes", world.member(lead, trainer=None)._replace(run=run)


# -- a member's agent --------------------------------------------------------------------------------------------------


def _of_agent(world: World, bounds: Bounds, at: int) -> Moves:
    member, trainer = world.members[at], world.members[at].trainer
    if trainer is not None and _is_over(world, trainer):
        yield f"{at} ends its trainer", world.member(at, trainer=None, spoken=False)
    if member.held is not None:
        yield from _stores(world, bounds, at, member.held)
    if (trainer is None and member.held is None) or 33 in bounds.without:
        yield from _says_ready(world, bounds, at)
    place = world.place
    if place is not None and at in world.seats(world.attempt(place)):
        yield from _in_gang(world, bounds, at, place)
    yield from _commits(world, bounds, at)


def _is_over(world: World, trainer: Trainer) -> bool:
    newest = len(world.attempt(trainer.attempt).trainers) - 1
    return trainer.attempt != world.place or trainer.incarnation != newest


def _says_ready(world: World, bounds: Bounds, at: int) -> Moves:
    """The fold takes one word after each end. Without rule 34, a member thinks that its word still counts."""
    if 34 in bounds.without and world.members[at].spoken:
        return
    if (run := appended(world.run, gang.ready(world.run, world.members[at].name))) is not None:
        yield f"{at} is ready", world.member(at, spoken=True)._replace(run=run)


def _in_gang(world: World, bounds: Bounds, at: int, place: int) -> Moves:
    attempt, member = world.attempt(place), world.members[at]
    seats, newest = world.seats(attempt), attempt.trainers[-1] if attempt.trainers else None
    if at == seats[0] and (newest is None or newest.exited is not None) and len(attempt.trainers) < bounds.incarnations:
        port = 1 if 37 in bounds.without else 1 + len(attempt.trainers)
        if (run := appended(world.run, gang.resumed(world.run, port))) is not None:
            yield f"{at} says where they meet", world._replace(run=run)
    if newest is not None and newest.exited is None and member.trainer is None:
        assert newest.meet is not None
        trainer = Trainer(place, newest.incarnation, seats.index(at), seats[0], newest.meet.port)
        yield f"{at} begins a trainer", world.member(at, trainer=trainer)
    if at == seats[0] and attempt.leaving:
        drained = ev.AttemptDrained(attempt=attempt.number, final_commit=None, stopped_at=START, reason="model")
        if (run := appended(world.run, drained)) is not None:
            yield f"{at} hands over", world._replace(run=run)
    yield from _ends(world, bounds, at, place)


def _ends(world: World, bounds: Bounds, at: int, place: int) -> Moves:
    """Members that are lost, frozen or cut off are missing, from the beginning on or later."""
    attempt = world.attempt(place)
    missing = tuple(world.members[seat].name for seat in world.seats(attempt) if not world.members[seat].meets)
    never_met = len(world.group(place)) < len(attempt.names)
    if not missing or (never_met and 39 in bounds.without):
        return
    ended = ev.AttemptEnded(attempt=attempt.number, cause=Cause.INTERRUPTED, last_step=0, missing=missing)
    if (run := appended(world.run, ended)) is not None:
        yield f"{at} ends the attempt", world._replace(run=run)


# -- shards and commits ------------------------------------------------------------------------------------------------


def _stores(world: World, bounds: Bounds, at: int, copy: Copy) -> Moves:
    if copy.number != copy.snapshot:
        raise Broken(f"{at} stores snapshot {copy.snapshot} under the number {copy.number}")
    key: Key = copy[2:4] if 41 in bounds.without else copy[:4]
    there = dict(world.store)
    if 41 in bounds.without or key not in there:
        there[key] = copy
    for name, was in world.committed:
        if there[name] != was:
            raise Broken(f"a committed shard is overwritten by {at}")
    yield f"{at} stores its shard", world.member(at, held=None)._replace(store=frozenset(there.items()))


def _commits(world: World, bounds: Bounds, at: int) -> Moves:
    """Whoever has been a lead commits what is there of its gangs' snapshots. The fold says whether it may."""
    there = dict(world.store)
    for place, incarnation, number in sorted({copy[:3] for copy in there.values()}):
        attempt = world.attempt(place)
        if world.seats(attempt)[0] == at:
            own = {key: copy for key, copy in there.items() if copy[:3] == (place, incarnation, number)}
            yield from _commit(world, at, attempt, own)


def _commit(world: World, at: int, attempt: Attempt, shards: dict[Key, Copy]) -> Moves:
    size = len(attempt.names)
    found = [
        gang.shard(attempt.number, copy.rank, copy.step, size, incarnation=copy.incarnation, snapshot=copy.number)
        for copy in sorted(shards.values(), key=lambda copy: copy.rank)
    ]
    prefix = f"checkpoints/{attempt.number}-{found[0].incarnation}-{found[0].snapshot}"
    if world.run.commit_at(prefix) is not None:
        return
    if (run := appended(world.run, gang.committed_by(attempt.number, found))) is None:
        return
    if len(shards) < size or len({copy.snapshot for copy in shards.values()}) > 1:
        raise Broken(f"{at} commits what is not there, or of two snapshots")
    if world.run.commits and not world.run.commits[-1].cut_off and found[0].step < world.run.commits[-1].event.step:
        raise Broken(f"{at} commits an old snapshot behind a newer one")
    yield f"{at} commits", world._replace(run=run, committed=world.committed | frozenset(shards.items()))


# -- trainers together -------------------------------------------------------------------------------------------------


def _of_gang(world: World, bounds: Bounds) -> Moves:
    if len(world.run.attempts) < bounds.attempts:
        for size in range(bounds.least or bounds.size, bounds.size + 1):
            for seats in combinations(range(len(world.members)), size):
                yield from _begins(world, seats)
    yield from _regroups(world, bounds)
    yield from _meetings(world, bounds)
    for place in range(len(world.run.attempts)):
        if world.trains(place):
            yield from _snapshots(world, bounds, place)


def _regroups(world: World, bounds: Bounds) -> Moves:
    """A runner finds that a smaller gang could take in a member that stands ready."""
    attempt = world.run.current
    if attempt is None or attempt.leaving or len(attempt.names) == bounds.size:
        return
    others = [member.name for member in world.members if member.name not in attempt.names]
    if any(world.run.is_wanted(name) and world.run.member(name).ready is not None for name in others):
        drain = ev.DrainRequested(attempt=attempt.number, reason="model", regroup=True)
        if (run := appended(world.run, drain)) is not None:
            yield "the gang regroups", world._replace(run=run)


def _begins(world: World, seats: tuple[int, ...]) -> Moves:
    if not any(world.members[at].acts for at in seats):
        return
    if (run := appended(world.run, gang.started([world.members[at].name for at in seats]))) is None:
        return
    for at in seats:
        if world.members[at].trainer is not None:
            raise Broken(f"a gang begins while the old trainer of {at} is there")
        if world.has_to_end(at):
            raise Broken(f"a gang waits for {at}, which has to end")
    yield f"{seats} begin", world._replace(run=run)


def _meetings(world: World, bounds: Bounds) -> Moves:
    """Trainers that find each other are a group. Without rule 37 they find who listens at the same place."""
    waiting: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for at, member in enumerate(world.members):
        trainer = member.trainer
        if trainer is not None and not trainer.met and member.meets:
            found = (trainer.lead, trainer.port) if 37 in bounds.without else (trainer.attempt, trainer.incarnation)
            waiting.setdefault(found, {}).setdefault(trainer.rank, []).append(at)
    for ranks in waiting.values():
        if len(ranks) == max(_size(world, at) for ats in ranks.values() for at in ats):
            for group in product(*ranks.values()):
                yield f"{sorted(group)} meet", _met(world, group)


def _size(world: World, at: int) -> int:
    """How many ranks a member's trainer waits for."""
    trainer = world.members[at].trainer
    assert trainer is not None
    return len(world.attempt(trainer.attempt).names)


def _met(world: World, group: tuple[int, ...]) -> World:
    trainers = [trainer for trainer in (world.members[at].trainer for at in group) if trainer is not None]
    if len({trainer[:2] for trainer in trainers}) > 1:
        raise Broken(f"{group} do a step together, and are not of one gang")
    for at, trainer in zip(group, trainers, strict=True):
        world = world.member(at, trainer=trainer._replace(met=True))
    training = [place for place in range(len(world.run.attempts)) if world.trains(place)]
    if any(_was_told_nothing(world.attempt(place)) for place in training[:-1]):
        raise Broken("two gangs train, and nobody has ended the first one")
    return world


def _was_told_nothing(attempt: Attempt) -> bool:
    """It was ended by the begin of another one, and by no word of its own or of a runner."""
    return attempt.end is not None and attempt.end.detail == "fenced" and not attempt.leaving


def _snapshots(world: World, bounds: Bounds, place: int) -> Moves:
    """All ranks copy their state after the same step. One whose last copy is not stored yet drops this one."""
    taken = max(member.trainer.taken for member in world.group(place) if member.trainer is not None)
    if taken == bounds.snapshots:
        return
    for at in world.seats(world.attempt(place)):
        member, trainer = world.members[at], world.members[at].trainer
        assert trainer is not None
        made = trainer._replace(taken=taken + 1)
        if member.held is not None:
            world = world.member(at, trainer=made)
            continue
        number = member.copies if 40 in bounds.without else taken
        copy = Copy(trainer.attempt, trainer.incarnation, number, trainer.rank, taken)
        world = world.member(at, trainer=made, held=copy, copies=member.copies + 1)
    yield f"the gang of attempt {place} makes snapshot {taken}", world


# -- runners -----------------------------------------------------------------------------------------------------------


def _about(world: World, bounds: Bounds, at: int) -> Moves:
    """What a runner says of an instance, and does to it. An agent that reads the same powers its instance off."""
    member, known = world.members[at], world.run.member(world.members[at].name)
    names = {"launch": member.name.launch, "member": member.name.member}
    if member.on and world.has_to_end(at):
        yield f"{at} ends", world.off(at)
    if not member.on and known.gone is None:
        end = gone(ended_at=START, instance_id=f"i-{member.name}", billed_from=START, **names)
        if (run := appended(world.run, end)) is not None:
            yield f"{at} is gone", world._replace(run=run)
    if member.on and member.frozen and known.condemned is None:
        condemned = ev.InstanceCondemned(**names, cause=Cause.EXTERNAL)
        if (run := appended(world.run, condemned)) is not None:
            yield f"{at} is condemned", world._replace(run=run)
    if member.on and 45 not in bounds.without:
        yield from _releases(world, bounds, at)


def _releases(world: World, bounds: Bounds, at: int) -> Moves:
    """A runner looks whether others train, or too few are left to train with. Another may be first with an entry."""
    launch, member = world.members[at].name.launch, world.members[at].name.member
    run = appended(world.run, ev.MemberReleased(launch=launch, member=member, reason="model"))
    if run is None:
        return
    if world.place is not None and at in world.seats(world.attempt(world.place)):
        raise Broken(f"{at} trains, and is released")
    if _is_of_no_use(world, bounds, at):
        yield f"{at} is released", world._replace(run=run)


def _is_of_no_use(world: World, bounds: Bounds, at: int) -> bool:
    left = sum(not world.has_to_end(other) for other in range(len(world.members)))
    return world.place is not None or left < (bounds.least or bounds.size)


def _of_launches(world: World, bounds: Bounds) -> Moves:
    for number, launch in world.run.launches.items():
        if launch.pending and launch.closed is None:
            closed = appended(world.run, ev.LaunchClosed(launch=number, cause=Cause.EXTERNAL))
            if closed is not None:
                if any(member.ready is not None and member.wanted for member in launch.members):
                    raise Broken(f"launch {number} is closed, and members of it stand ready")
                yield f"launch {number} is closed", world._replace(run=closed)
    wanted = sum(not world.has_to_end(at) for at in range(len(world.members)))
    gap = min(bounds.size - wanted, bounds.members_max - len(world.members))
    if gap > 0 and (more := joined(world, gap)) is not None:
        yield f"{gap} more are launched", more


# -- what must hold ----------------------------------------------------------------------------------------------------


def check_rest(world: World, bounds: Bounds) -> None:
    """
    Nobody has anything to do any more: then each instance that is billed trains, or the world has come to its bounds.

    Raises:
        Broken: somebody is billed for ever.
    """
    if world.place is None and len(world.run.attempts) == bounds.attempts:
        return
    if world.place is not None and _is_bounded(world, bounds, world.place):
        return
    training = world.seats(world.attempt(world.place)) if world.place is not None and world.trains(world.place) else []
    for at, member in enumerate(world.members):
        if member.on and at not in training:
            raise Broken(f"{at} is billed for ever")


def _is_bounded(world: World, bounds: Bounds, place: int) -> bool:
    trainers = world.attempt(place).trainers
    return len(trainers) == bounds.incarnations and trainers[-1].exited is not None
