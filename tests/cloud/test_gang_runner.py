"""The real runner with the local cloud's real processes: a gang whose members the test speaks for."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from spotrun.account.summary import summarise
from spotrun.clouds.local.driver import LocalDriver
from spotrun.clouds.registry import cloud_of
from spotrun.folder.ledger import Ledger
from spotrun.instance import EndedBy, Instance, InstanceState
from spotrun.run import events as ev
from spotrun.run.gang import MemberName
from spotrun.run.state import RunState
from spotrun.runner.creation import run_created
from spotrun.runner.runner import Runner
from spotrun.store.local import LocalStore
from tests.support import gang_events as gang
from tests.support.eventually import eventually
from tests.support.gang_worlds import SIZE, charged_usd, gang_spec
from tests.support.local_clouds import RUN, Bench, until


class GangRun:
    """A run of three on a bench's cloud."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.bench, self.cloud = bench, bench.cloud(boot_s=0)
        self._spec = gang_spec(on_demand_after="1h")
        self._store = LocalStore(folder)
        self._ledger = Ledger(self._store, RUN, "test", bench.clock)
        self._ledger.create(run_created(self._spec, cloud_of(self._spec), RUN, "", bench.clock, ""))

    def runner(self, cloud: LocalDriver | None = None) -> Runner:
        ledger = Ledger(self._store, RUN, "runner", self.bench.clock)
        return Runner(ledger, self._store, cloud or self.cloud, self.bench.clock, self._spec, self._store.uri)

    @property
    def state(self) -> RunState:
        return self._ledger.refresh()

    def until(self, reached: Callable[[RunState], object], runner: Runner | None = None) -> None:
        """A runner takes care of it until it has come to that."""
        attends = runner or self.runner()

        def seen() -> bool:
            list(attends.ticks())
            return bool(reached(self.state))

        eventually(seen)

    def say(self, word: Callable[[RunState], ev.AnyEvent]) -> None:
        self._ledger.refresh()
        self._ledger.append(word)

    def all_ready(self) -> None:
        """All members that live say so, and the lead begins."""
        alive = {MemberName(each.launch, each.member): each for each in self.living()}
        names = sorted(alive)[:SIZE]
        for name in names:
            self._say_ready(name, alive[name])
        self.say(lambda _: gang.started(names, instance_id=alive[names[0]].instance_id))
        self.say(gang.resumed)

    def _say_ready(self, name: MemberName, shown: Instance) -> None:
        told = {"instance_id": shown.instance_id, "address": shown.address, "booted_at": self.bench.clock.now()}
        self.say(lambda state: gang.ready(state, name, **told))

    def living(self) -> list[Instance]:
        return [each for each in self.cloud.instances(RUN) if each.alive]


@pytest.fixture
def run(bench: Bench, tmp_path: Path) -> GangRun:
    return GangRun(bench, tmp_path / "run")


def recorded(state: RunState) -> int:
    return sum(member.recorded is not None for member in state.members())


def gone(state: RunState) -> int:
    return sum(member.gone is not None for member in state.members())


def ends_well(run: GangRun) -> None:
    """Stopped, with nothing left; and the account is the cloud's."""
    run.say(lambda _: ev.StopRequested(by="test"))
    if run.state.current is not None:
        attempt = run.state.current.number
        now = run.bench.clock.now()
        run.say(lambda _: ev.AttemptDrained(attempt=attempt, final_commit=None, stopped_at=now, reason="stop"))
    for each in run.living():  # as its agent does
        run.cloud.terminate(each.instance_id)
    run.until(lambda state: state.terminal is not None and not run.living())
    run.until(lambda state: gone(state) == len(run.cloud.instances(RUN)))
    state = run.state
    total = summarise(state, run.bench.clock.now()).total
    assert total.spot_usd + total.on_demand_usd == charged_usd(run.cloud.instances(RUN), state.created.billing)
    eventually(lambda: not run.bench.processes())


def test_a_gang_is_launched_recorded_and_loses_a_member(run: GangRun) -> None:
    runner = run.runner()
    run.until(lambda state: recorded(state) == SIZE, runner)
    (launch,) = run.state.launches.values()
    by_member = {each.member: each.instance_id for each in run.cloud.instances(RUN)}
    ids = [member.recorded.instance_id for member in launch.members if member.recorded is not None]
    assert ids == [by_member[at] for at in range(SIZE)]
    run.all_ready()
    list(runner.ticks())
    assert len(run.state.launches) == 1
    run.cloud.interrupt(by_member[1], None)
    run.until(lambda state: gone(state) == 1, runner)
    assert launch.number in run.state.launches
    lost = run.state.member(MemberName(launch.number, 1)).gone
    assert lost is not None
    assert lost.ended_by is EndedBy.CLOUD
    run.until(lambda state: recorded(state) == SIZE + 1, runner)
    newest = run.state.launches.values()[-1]
    assert (newest.intent.instances, newest.intent.beside) == (1, run.state.attempts.values()[-1].number)
    assert newest.intent.offering.pool == launch.intent.offering.pool
    run.all_ready()
    (before, after) = run.state.attempts.values()
    assert len({*before.names} & {*after.names}) == SIZE - 1
    ends_well(run)


def test_a_runner_that_dies_midway_in_a_launch_is_followed_by_one_that_has_all_members(
    run: GangRun, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = subprocess.Popen
    for begun in range(SIZE):
        left = [begin] * begun

        def die(*arguments: object, left: list[type] = left, **options: object) -> object:
            if not left:
                raise OSError("the launcher dies here")
            return left.pop()(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr("spotrun.clouds.local.launching.subprocess.Popen", die)
            list(run.runner().ticks())
        assert recorded(run.state) == 0, "half a gang is none"
    run.until(lambda state: recorded(state) == SIZE)
    assert len(run.state.launches) == 1
    assert len(run.cloud.instances(RUN)) == SIZE
    ends_well(run)


def test_runners_that_die_at_each_tick_launch_one_gang(run: GangRun) -> None:
    for _ in range(4):
        run.runner().tick()
        assert len(run.cloud.instances(RUN)) in (0, SIZE)
    run.until(lambda state: recorded(state) == SIZE)
    assert len(run.state.launches) == 1
    ends_well(run)


def test_gang_stopped_while_it_boots_ends_as_a_whole(run: GangRun) -> None:
    run.until(lambda state: recorded(state) == SIZE)
    run.say(lambda _: ev.StopRequested(by="test"))
    run.until(lambda state: state.terminal is not None and gone(state) == SIZE)
    assert run.living() == []
    assert {each.ended_by for each in run.cloud.instances(RUN)} == {EndedBy.USER}
    eventually(lambda: not run.bench.processes())


def test_a_member_that_is_of_no_use_is_ended_alone(run: GangRun) -> None:
    run.until(lambda state: recorded(state) == SIZE)
    run.all_ready()
    attempt, name = run.state.attempts.values()[-1], MemberName(run.state.launches.values()[0].number, 2)
    run.say(lambda _: ev.AttemptEnded(attempt=attempt.number, cause=ev.Cause.INTERRUPTED, last_step=0, missing=(name,)))
    run.say(lambda _: ev.MemberReleased(launch=name.launch, member=name.member, reason="no use"))
    run.until(lambda state: state.member(name).gone is not None)
    released = run.state.member(name).gone
    assert released is not None
    ended = run.cloud.describe(released.instance_id)
    assert ended is not None
    assert until(run.cloud, ended, InstanceState.TERMINATED).member == 2
    assert all(each.ended_at is None or each.member == 2 for each in run.cloud.instances(RUN))
    assert timedelta() < run.bench.clock.now() - released.ended_at
    ends_well(run)
