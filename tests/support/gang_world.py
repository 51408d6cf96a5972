"""
One moment of a model of gangs: the ledger, the members with their agents and trainers, and the shards in the store.

The ledger is the real one: entries are folded by `spotrun.run.fold`, and what that refuses does not happen. What can
happen next is in `tests.support.gang_moves`.
"""

from __future__ import annotations

from typing import NamedTuple

from spotrun.run import events as ev
from spotrun.run import fold
from spotrun.run.events import Entry
from spotrun.run.gang import MemberName
from spotrun.run.state import Attempt, Launch, RunState
from tests.support import gang_events as gang
from tests.support.gang_history import GangHistory
from tests.support.histories import FREE_STORAGE, START


class Broken(Exception):
    """What the rules are there to prevent has happened."""


class Bounds(NamedTuple):
    """
    How large the world is, and how far it goes. An elastic gang has a `least` size. `without` are the rules that agents
    and runners do not keep.
    """

    size: int = 2
    members: int = 3
    members_max: int = 3
    attempts: int = 2
    incarnations: int = 1
    snapshots: int = 0
    faults: int = 1
    least: int | None = None
    without: frozenset[int] = frozenset()


class Trainer(NamedTuple):
    """A process of an attempt, by the place of that among all. `taken` is how many snapshots it has made."""

    attempt: int
    incarnation: int
    rank: int
    lead: int
    port: int
    met: bool = False
    taken: int = 0


class Copy(NamedTuple):
    """A rank's part of a snapshot. `number` is what its agent calls it, `snapshot` which one it truly is."""

    attempt: int
    incarnation: int
    number: int
    rank: int
    snapshot: int

    @property
    def step(self) -> int:
        """No two snapshots of a run are of the same step."""
        return 100 * self.attempt + 10 * self.incarnation + self.snapshot


class Member(NamedTuple):
    """An instance with its agent. What is `held` is in memory and not in the store yet."""

    name: MemberName
    on: bool = True
    frozen: bool = False
    cut_off: bool = False
    trainer: Trainer | None = None
    held: Copy | None = None
    copies: int = 0
    spoken: bool = False

    @property
    def acts(self) -> bool:
        return self.on and not self.frozen

    @property
    def meets(self) -> bool:
        """Whether the others reach it."""
        return self.acts and not self.cut_off


Key = tuple[int, ...]


class World(NamedTuple):
    """One moment. `committed` is what lay in the store under a name when a commit named it."""

    run: RunState
    members: tuple[Member, ...]
    store: frozenset[tuple[Key, Copy]] = frozenset()
    committed: frozenset[tuple[Key, Copy]] = frozenset()
    faults: int = 0

    def member(self, at: int, **changes: object) -> World:
        changed = self.members[at]._replace(**changes)  # type: ignore[arg-type]
        return self._replace(members=(*self.members[:at], changed, *self.members[at + 1 :]))

    def off(self, at: int) -> World:
        return self.member(at, on=False, trainer=None, held=None)

    @property
    def place(self) -> int | None:
        """The place of the current attempt among all."""
        return None if self.run.current_attempt is None else list(self.run.attempts).index(self.run.current_attempt)

    def attempt(self, place: int) -> Attempt:
        return self.run.attempts.values()[place]

    def seats(self, attempt: Attempt) -> list[int]:
        """The members of an attempt by their places, in the order of their ranks."""
        places = {member.name: at for at, member in enumerate(self.members)}
        return [places[name] for name in attempt.names]

    def has_to_end(self, at: int) -> bool:
        """Whether what cannot be taken back was said of it, or its gang has let it go."""
        name = self.members[at].name
        in_gang = self.run.current is not None and name in self.run.current.names
        return not self.run.is_wanted(name) or (self.run.has_to_leave(name) and not in_gang)

    def group(self, place: int) -> list[Member]:
        """The members whose trainers of the newest incarnation of an attempt have met."""
        newest = len(self.attempt(place).trainers) - 1
        return [
            member
            for member in (self.members[at] for at in self.seats(self.attempt(place)))
            if member.trainer is not None and member.trainer.met and member.trainer[:2] == (place, newest)
        ]

    def trains(self, place: int) -> bool:
        group = self.group(place)
        return len(group) == len(self.attempt(place).names) and all(member.meets for member in group)


def begin(bounds: Bounds) -> World:
    """All members of one launch are there."""
    created = GangHistory(bounds.size, FREE_STORAGE, bounds.least)
    world = joined(World(created.state, (), faults=bounds.faults), bounds.members)
    assert world is not None
    return world


def joined(world: World, count: int) -> World | None:
    """The same after a launch of so many members; None if the fold refuses it."""
    newest = world.run.attempts.values()[-1].number if world.run.attempts else None
    number = world.run.next_number
    run = appended(world.run, gang.intended(count, newest))
    names = [MemberName(number, at) for at in range(count)]
    for name in names:
        run = None if run is None else appended(run, gang.recorded(name))
    return None if run is None else world._replace(run=run, members=(*world.members, *map(Member, names)))


def appended(run: RunState, event: ev.AnyEvent) -> RunState | None:
    """The state after one more entry; None if that is void."""
    number = run.next_number
    entry = Entry(number=number, run=run.created.uid, nonce=f"n{number}", at=START, writer="model", event=event)
    after = fold.apply(run, entry)
    return after if len(after.voids) == len(run.voids) else None


def shape(world: World) -> object:
    """The same for two worlds that go on alike: without the numbers of entries, which only grow."""
    run = world.run
    places = {number: place for place, number in enumerate(run.attempts)}
    launches = tuple(_shape_of_launch(run, launch) for launch in run.launches.values())
    attempts = tuple(
        (
            tuple(world.seats(attempt)),
            None if attempt.end is None else attempt.end.detail == "fenced",
            (attempt.leaving, attempt.regroups),
            tuple((trainer.exited is not None, trainer.meet) for trainer in attempt.trainers),
        )
        for attempt in run.attempts.values()
    )
    commits = tuple(
        (places[commit.event.attempt], commit.event.incarnation, commit.event.step, commit.cut_off)
        for commit in run.commits
    )
    members = tuple(member._replace(name=MemberName(0, 0)) for member in world.members)
    return launches, attempts, commits, world.place, members, world.store, world.committed, world.faults


def _shape_of_launch(run: RunState, launch: Launch) -> object:
    return (
        launch.closed is not None,
        launch.attempt is not None,
        tuple(
            (
                one.condemned is not None,
                one.released is not None,
                one.gone is not None,
                one.ready is not None,
                one.ready is not None and one.ready.after == run.last_end,
            )
            for one in launch.members
        ),
    )
