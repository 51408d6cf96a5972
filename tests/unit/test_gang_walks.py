"""Random walks of a gang and its runner: what a runner decides counts, and it comes to rest."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from msgspec.structs import replace

from spotrun.instance import EndedBy, Instance, InstanceState
from spotrun.policy import Append, Execute, Terminate
from spotrun.run import events as ev
from spotrun.run import fold
from spotrun.run.events import Cause
from spotrun.run.gang import MemberName
from tests.support import gang_events as gang
from tests.support.decisions import decided, instance, spec
from tests.support.gang_history import GangHistory

SIZE = 3
STEPS = 150


class Walk:
    """A gang whose members do at random what the fold allows; its cloud does what the runner asks for."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.history = GangHistory(SIZE)
        self.cloud: dict[MemberName, Instance] = {}

    def step(self) -> None:
        self._members_do_something()
        self.history.after(self._random.choice((1, 20, 130, 700)))
        self.decide()

    def decide(self) -> None:
        """
        As a runner does, which decides anew after an entry that does not count any more.

        Raises:
            AssertionError: the first of those that it has decided on would be void, so it would never go on.
        """
        written = 0
        for action in decided(self.history, spec(), self.cloud.values(), silent=self._silent()):
            if isinstance(action, Append):
                if written and fold.refusal(self.history.state, self.history.entry(action.event)):
                    return
                self.history.write(action.event)
                written += 1
                if isinstance(action.event, ev.LaunchIntended) and self._random.random() < 0.3:
                    self.history.close(self.history.state.launches.values()[-1].number)
                    return
            elif isinstance(action, Execute):
                self._launch(action.launch)
            elif isinstance(action, Terminate):
                found = next(name for name, each in self.cloud.items() if each.instance_id == action.instance_id)
                self._end(found, EndedBy.USER)

    @property
    def alive(self) -> list[MemberName]:
        return [name for name, each in self.cloud.items() if each.alive]

    def _launch(self, number: int) -> None:
        for name in self.history.state.launches[number].names:
            seen = instance(self.history, number, instance_id=f"i-{name}", member=name.member)
            self.cloud.setdefault(name, seen)

    def _end(self, name: MemberName, by: EndedBy) -> None:
        ended = {"state": InstanceState.TERMINATED, "ended_at": self.history.now, "ended_by": by}
        self.cloud[name] = replace(self.cloud[name], **ended)

    def _silent(self) -> dict[MemberName, timedelta]:
        return {name: timedelta(minutes=self._random.choice((0, 0, 0, 0, 0, 0, 0, 0, 0, 9))) for name in self.alive}

    def _members_do_something(self) -> None:
        words = [*self._words()]
        for event in self._random.sample(words, min(len(words), self._random.randrange(6))):
            if fold.refusal(self.history.state, self.history.entry(event)) is None:
                self.history.write(event)
        if self.alive and self._random.random() < 0.15:
            self._end(self._random.choice(self.alive), EndedBy.CLOUD)

    def _words(self) -> list[ev.AnyEvent]:
        state = self.history.state
        ready = [name for name in self.alive if _says(state.member(name).ready, state.last_end)][:SIZE]
        words: list[ev.AnyEvent] = [gang.ready(state, name, booted_at=self.history.now) for name in self.alive]
        if len(ready) == SIZE:
            words.append(gang.started(ready, instance_id=f"i-{ready[0]}"))
        if (current := state.current) is None:
            return words
        number, member = current.number, self._random.choice(current.names)
        deadline_at = self.history.now + timedelta(minutes=2)
        words += [
            ev.NoticeSeen(attempt=number, kind="termination", deadline_at=deadline_at, member=member),
            ev.AttemptEnded(attempt=number, cause=Cause.INTERRUPTED, last_step=0, missing=(member,)),
        ]
        if current.leaving:
            words.append(
                ev.AttemptDrained(attempt=number, final_commit=None, stopped_at=self.history.now, reason="leaves")
            )
        return words if current.trainers else [*words, gang.resumed(state)]


def _says(word: ev.MemberReady | None, last_end: int | None) -> bool:
    return word is not None and word.after == last_end


SEEDS = [pytest.param(seed, marks=[pytest.mark.nightly] * (seed % 3 > 0)) for seed in range(40)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", SEEDS)
def test_decisions_of_a_runner_for_a_gang_are_never_void(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(STEPS):
        if walk.history.state.terminal is not None:
            break
        walk.step()


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", SEEDS)
def test_from_wherever_a_gang_is_stopped_nothing_of_it_is_left(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(seed % STEPS):
        if walk.history.state.terminal is None:
            walk.step()
    if walk.history.state.terminal is None:
        walk.history.write(ev.StopRequested(by="me"))
    for _ in range(12):
        walk.history.after(300)
        walk.decide()
    assert walk.history.state.terminal is not None
    assert walk.alive == []
    assert all(launch.settled for launch in walk.history.state.launches.values())
