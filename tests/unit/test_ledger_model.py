"""
Exhaustive checking of the append and fencing rules in small worlds, with the real Ledger.

Two runners and two agents act on one store. At each conditional put the world may let another actor run first, lose the
request, lose the answer, let the request land late, or crash the writer before or after. All histories with at most two
such turns are run, and some of those with many more; the rules are checked after each.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal

import pytest

from spotrun.errors import StoreUnavailable
from spotrun.folder.ledger import EntryRefused, Ledger, key_of
from spotrun.run import entry_bytes
from spotrun.run import events as ev
from spotrun.run.events import Cause, Entry
from spotrun.run.fold import apply, begin
from spotrun.run.state import RunState
from tests.support.checkpoint_entries import committed
from tests.support.histories import History, intended
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

SAMPLES = [800, pytest.param(4000, marks=pytest.mark.nightly)]
ACTORS = ("agent-a", "runner-a", "agent-b", "runner-b")
FATES = ("ok", "answer lost", "lost", "late", "crash before", "crash after", "another first")


class Crashed(BaseException):
    """The process is gone; nothing of it runs on."""


class Choices:
    """One path through a tree of choices: the given ones first, then always the first option."""

    def __init__(self, given: tuple[int, ...]) -> None:
        self.given = given
        self.taken: list[int] = []
        self.options: list[int] = []

    def choose(self, options: int) -> int:
        at = len(self.taken)
        choice = self.given[at] if at < len(self.given) else 0
        self.taken.append(choice)
        self.options.append(options)
        return choice


def paths(deviations: int) -> Iterator[Choices]:
    """Every path with at most so many choices that are not the first; the consumer runs each before the next."""
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        choices = Choices(waiting.pop())
        yield choices
        if sum(choice > 0 for choice in choices.given) >= deviations:
            continue
        for at in range(len(choices.given), len(choices.taken)):
            straight = (*choices.given, *([0] * (at - len(choices.given))))
            waiting += [(*straight, choice) for choice in range(1, choices.options[at])]


class Actor:
    """A process with one ledger of its own and a list of things to append, each at most once."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.ledger = Ledger(LineTo(world, self), "0123456789", name, ManualClock(), retry_for_s=3600)
        self.written: list[Entry] = []
        self.steps = [self._runner_step] * 3 if name.startswith("runner") else list(self._agent_steps())
        self.busy = False

    def act(self) -> None:
        step = self.steps.pop(0)
        self.busy = True
        try:
            entry = self.ledger.append(step)
            if entry is not None:
                self.written.append(entry)
        except EntryRefused:
            self.steps.clear()  # fenced: it powers off
        except Crashed:
            self.steps.clear()
        finally:
            self.busy = False

    def _runner_step(self, state: RunState) -> ev.AnyEvent | None:
        if state.terminal is not None:
            return None
        pending = state.pending_launch
        if pending is not None and pending.number > 1:
            return ev.LaunchClosed(launch=pending.number, cause=Cause.CAPACITY)
        return None if pending is not None else intent(state)

    def _agent_steps(self) -> Iterator[object]:
        yield self._start
        for _ in range(2):
            yield self._commit
        yield lambda state: ev.RunCompleted(attempt=self._attempt(state), final_commit=None, step=1)

    def _start(self, state: RunState) -> ev.AnyEvent | None:
        """An agent takes the newest launch that waits; one whose launch is taken powers off."""
        pending = state.pending_launch
        if pending is None or state.terminal is not None:
            self.steps.clear()
            return None
        return ev.AttemptStarted(launch=pending.number, instance_id=self.name, booted_at=pending.intended_at)

    def _attempt(self, state: RunState) -> int:
        return next(attempt.number for attempt in state.attempts.values() if attempt.instance_id == self.name)

    def _commit(self, state: RunState) -> ev.AnyEvent:
        attempt = self._attempt(state)
        if not state.attempts[attempt].trainers:
            newest = state.latest_commit()
            chosen = None if newest is None else newest.number
            return ev.ResumedFrom(attempt=attempt, incarnation=0, commit=chosen, epoch=0, step=0)
        return committed(attempt, f"{self.name}-{state.next_number}", 1, state.attempts[attempt].started_at)


def intent(state: RunState) -> ev.LaunchIntended:
    more = {"time_to_live_s": 3600, "standby_for": state.current_attempt}
    return intended(now=state.created_at, usd="1", **more)


class World:
    """The store, the actors, and what is still under way to the store."""

    def __init__(self, choices: Choices, first: int = 0) -> None:
        self.choices = choices
        self.store = MemoryStore()
        start = History(budget_usd=Decimal(27))
        start.launch(on_demand="1")
        start.put_into(self.store)
        self.late: list[tuple[str, bytes]] = []
        self.actors = [Actor(name, self) for name in ACTORS[first:] + ACTORS[:first]]

    def run(self) -> None:
        while ready := self.ready():
            ready[self.choices.choose(len(ready))].act()
        self.land()

    def ready(self) -> list[Actor]:
        return [actor for actor in self.actors if actor.steps and not actor.busy]

    def land(self) -> None:
        for key, data in self.late:
            self.store.put_if_absent(key, data)
        self.late.clear()


class LineTo(MemoryStore):
    """One actor's line to the world's store."""

    def __init__(self, world: World, actor: Actor) -> None:
        super().__init__()
        self.objects = world.store.objects
        self._world = world
        self._actor = actor

    def put_if_absent(self, key: str, data: bytes) -> bool:
        others = self._world.ready()
        fate = FATES[self._world.choices.choose(len(FATES) - (not others))]
        if fate == "another first":
            others[0].act()
        if fate == "crash before":
            raise Crashed
        if fate == "late":
            self._world.late.append((key, data))
        else:
            self._world.land()
        if fate in ("lost", "late"):
            raise StoreUnavailable(fate)
        created = super().put_if_absent(key, data)
        if fate == "crash after":
            raise Crashed
        if fate == "answer lost":
            raise StoreUnavailable(fate)
        return created


def check(world: World) -> None:
    numbers = sorted(world.store.objects)
    assert numbers == [key_of(number) for number in range(len(numbers))], "there is a hole"
    entries = [entry_bytes.decode_entry(world.store.objects[key]) for key in numbers]
    history = [entry for entry in entries if entry is not None]
    state = begin(history[0])
    for entry in history[1:]:
        before, state = state, apply(state, entry)
        check_step(before, state)
    nonces = [entry.nonce for entry in history]
    assert len(set(nonces)) == len(nonces), "an entry was written twice"
    for actor in world.actors:
        assert all(history[entry.number] == entry for entry in actor.written), "an acknowledged entry is lost"
    voids = {void.number for void in state.voids}
    check_single_writer([entry for entry in history if entry.number not in voids])


def check_step(before: RunState, state: RunState) -> None:
    """What holds at each entry, not at the end alone."""
    assert before.terminal is None or state.terminal == before.terminal, "an end was taken back"
    for launch in state.launches.values():
        assert launch.closed is None or launch.attempt is None, "a closed launch started an attempt"
    assert sum(launch.pending for launch in state.launches.values()) <= 1
    assert state.created.budget_usd is not None
    assert state.reserved_usd() <= state.created.budget_usd, "more is reserved than the budget has"


def check_single_writer(accepted: list[Entry]) -> None:
    """No commit of an attempt after a newer one took over, and nothing of any after the end."""
    newest, ended = -1, False
    for entry in accepted:
        event = entry.event
        if isinstance(event, ev.AttemptStarted):
            assert not ended
            newest = entry.number
        if isinstance(event, ev.CheckpointCommitted | ev.RunCompleted):
            assert not ended, "something was accepted after the end"
            assert event.attempt == newest, "a zombie's entry was accepted"
        ended = ended or isinstance(event, ev.RunCompleted)


class Rng(Choices):
    """A random path, turning aside at about one choice in five. Its seed is its name."""

    def __init__(self, seed: int) -> None:
        super().__init__(())
        self._rng = random.Random(seed)

    def choose(self, options: int) -> int:
        return self._rng.randrange(options) if self._rng.random() < 0.2 else 0


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)


class InTurn:
    """A pool of no threads: a history must be the same each time it is run, and quick."""

    def __init__(self, _: int) -> None: ...

    def __enter__(self) -> InTurn:
        return self

    def __exit__(self, *_: object) -> None: ...

    map = staticmethod(map)


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spotrun.folder.ledger.ThreadPoolExecutor", InTurn)


def completes(choices: Choices, first: int = 0) -> bool:
    world = World(choices, first)
    world.run()
    check(world)
    return any(b'"RunCompleted"' in data for data in world.store.objects.values())


def histories(first: int, faults: int) -> list[bool]:
    """
    Whether each history with at most so many faults completes the run. In the straight one the actors come in turn,
    from `first` on, and every answer arrives.
    """
    outcomes = []
    for choices in paths(faults):
        try:
            outcomes.append(completes(choices, first))
        except AssertionError as error:
            raise AssertionError(f"choices {choices.given}: {error}") from error
    print(f"{len(outcomes):,} histories, of which {sum(outcomes):,} complete the run")
    assert sum(outcomes) > len(outcomes) / 4
    return outcomes


@pytest.mark.parametrize("first", range(len(ACTORS)), ids=ACTORS)
def test_every_history_with_one_fault_keeps_the_rules(first: int) -> None:
    assert len(histories(first, 1)) > 20


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "first",
    [0, *(pytest.param(first, marks=pytest.mark.nightly) for first in range(1, len(ACTORS)))],
    ids=ACTORS,
)
def test_every_history_with_two_faults_keeps_the_rules(first: int) -> None:
    assert len(histories(first, 2)) > 800


@pytest.mark.exhaustive
@pytest.mark.parametrize("samples", SAMPLES)
def test_histories_with_many_faults_keep_the_rules(samples: int) -> None:
    outcomes = []
    for seed in range(samples):
        try:
            outcomes.append(completes(Rng(seed), first=seed % len(ACTORS)))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    print(f"{len(outcomes):,} histories, of which {sum(outcomes):,} complete the run")
    assert any(outcomes)
