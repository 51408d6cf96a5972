"""Each member has a guard of its own, which ends it if nobody else does (protocol 11)."""

from __future__ import annotations

import pytest

from spotrun.clouds.guards import Guard
from spotrun.errors import CloudUnavailable
from spotrun.run import events as ev
from spotrun.runner.runner import Runner
from tests.support.gang_worlds import SIZE, counted, gang_world
from tests.support.small_worlds import STEADY
from tests.support.world import SimulatedWorld


class KeptGuards:
    """Those that are armed, by their tokens. While they are `away`, none can be made."""

    def __init__(self) -> None:
        self.armed: dict[str, Guard] = {}
        self.away = False

    def arm(self, guard: Guard) -> None:
        if self.away:
            raise CloudUnavailable("the scheduler does not answer")
        self.armed[guard.token] = guard

    def disarm(self, token: str, region: str) -> None:
        self.armed.pop(token, None)


class Guarded:
    """A gang's world whose runner has guards, and ticks when it is told to."""

    def __init__(self, guards: KeptGuards) -> None:
        self.world: SimulatedWorld = gang_world(counted("33"), timings=STEADY)
        world = self.world
        ledger = world.ledger("runner")
        self._runner = Runner(ledger, world.store, world.cloud, world.clock, world.spec, world.store.uri, guards=guards)

    def at(self, moment_s: float) -> None:
        self.world.clock.pass_to(moment_s)
        list(self._runner.ticks())

    @property
    def armed_late(self) -> list[object]:
        """The members that were, by the ledger."""
        return [entry.event.member for entry in self.world.entries if isinstance(entry.event, ev.GuardArmed)]


@pytest.fixture
def guards() -> KeptGuards:
    return KeptGuards()


def test_each_member_is_guarded_and_its_guard_goes_with_it(guards: KeptGuards) -> None:
    gang = Guarded(guards)
    gang.at(0.0)
    gang.at(40.0)
    by_token = {token: guard.instance_id for token, guard in guards.armed.items()}
    token = f"{gang.world.uid}-1"
    instances = gang.world.cloud.all
    assert by_token == {
        token: instances[0].instance_id,
        f"{token}.1": instances[1].instance_id,
        f"{token}.2": instances[2].instance_id,
    }
    gang.world.cloud.terminate(instances[1].instance_id)
    gang.at(50.0)
    assert set(guards.armed) == {token, f"{token}.2"}


def test_a_guard_that_could_not_be_made_is_armed_later_for_each_member(guards: KeptGuards) -> None:
    gang = Guarded(guards)
    guards.away = True
    gang.at(0.0)
    gang.at(40.0)
    assert [found.member for found in gang.world.state.unguarded] == [*range(SIZE)]
    guards.away = False
    gang.at(100.0)
    assert not guards.armed, "it is not asked at each tick"
    gang.at(700.0)
    assert len(guards.armed) == SIZE
    assert gang.armed_late == [*range(SIZE)]
    assert gang.world.state.unguarded == []
