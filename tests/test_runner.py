"""The runner between a ledger and a cloud: crashes, lost answers, a second runner, a blind moment."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from spotrun import events as ev
from spotrun.clock import ManualClock
from spotrun.errors import CloudUnavailable, InsufficientCapacity, LaunchTokenSpent
from spotrun.instance import EndedBy, Instance, InstanceState, LaunchRequest, PriceSegment
from spotrun.ledger import Ledger, key_of
from spotrun.offering import Offering
from spotrun.runner import Runner
from spotrun.store import Store, open_store
from tests.histories import START, History
from tests.test_policy import MARKET, spec


class FakeCloud:
    """A cloud in a dictionary. `before_list` happens between a runner's look at the ledger and its look here."""

    name = "local"

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.instances: dict[str, Instance] = {}
        self.calls: list[str] = []
        self.empty_pools: set[str] = set()
        self.lose_answer = False
        self.blind = False
        self.before_list: Callable[[], None] = lambda: None

    def offerings(self) -> builtins.list[Offering]:
        return list(MARKET)

    def launch(self, request: LaunchRequest) -> Instance:
        self.calls.append(f"launch {request.token}")
        if request.offering.zone in self.empty_pools:
            raise InsufficientCapacity(f"none in {request.offering.zone}")
        known = self.instances.get(request.token)
        if known is not None and not known.alive:
            raise LaunchTokenSpent(request.token)
        self.instances.setdefault(request.token, self._made(request))
        if self.lose_answer:
            raise CloudUnavailable("the answer was lost")
        return self.instances[request.token]

    def _made(self, request: LaunchRequest) -> Instance:
        now = self.clock.now()
        return Instance(
            instance_id=f"i-{request.token}",
            token=request.token,
            run_uid=request.run_uid,
            launch=request.launch,
            offering=request.offering,
            state=InstanceState.RUNNING,
            launched_at=now,
            billed_from=now,
            prices=(PriceSegment(since=now, usd_per_hour=request.offering.price_usd_per_hour),),
        )

    def describe(self, instance_id: str) -> Instance | None:
        return next((found for found in self.instances.values() if found.instance_id == instance_id), None)

    def list(self, run_uid: str | None = None) -> builtins.list[Instance]:
        self.before_list()
        if self.blind:
            raise CloudUnavailable("no route to the cloud")
        return list(self.instances.values())

    def terminate(self, instance_id: str) -> None:
        self.calls.append(f"terminate {instance_id}")
        found = self.describe(instance_id)
        if found is not None and found.alive:
            ended = replace(found, state=InstanceState.TERMINATED, ended_at=self.clock.now(), ended_by=EndedBy.USER)
            self.instances[found.token] = ended

    @property
    def alive(self) -> builtins.list[Instance]:
        return [found for found in self.instances.values() if found.alive]


class Desk:
    """A run, its store and its cloud, and as many runners as one likes."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(START)
        self.cloud = FakeCloud(self.clock)
        self.store: Store = open_store(str(folder))
        history = History()
        self.store.put(key_of(0), ev.encode_entry(history.entries[0]))
        self.uid = history.uid

    def runner(self) -> Runner:
        return Runner(self.ledger(), self.store, self.cloud, self.clock, spec(), self.store.uri)

    def ledger(self) -> Ledger:
        return Ledger(self.store, self.uid, "test", self.clock)

    def kinds(self) -> list[str]:
        ledger = self.ledger()
        ledger.refresh()
        return [ev.kind(entry.event) for entry in ledger.entries]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_run_is_intended_executed_and_recorded_in_that_order(desk: Desk) -> None:
    runner = desk.runner()
    for _ in range(3):
        runner.tick()
    assert desk.kinds() == ["RunCreated", "LaunchIntended", "LaunchRecorded"]
    assert desk.cloud.calls == [f"launch {desk.uid}-1"]


def test_a_crash_between_intent_and_launch_is_made_good_by_any_other_runner(desk: Desk) -> None:
    desk.runner().tick()
    assert desk.cloud.alive == []
    desk.runner().tick()
    assert len(desk.cloud.alive) == 1


def test_a_lost_launch_answer_gives_no_second_instance(desk: Desk) -> None:
    runner = desk.runner()
    runner.tick()
    desk.cloud.lose_answer = True
    assert runner.tick().blind == "the answer was lost"
    desk.cloud.lose_answer = False
    for _ in range(3):
        desk.runner().tick()
    assert len(desk.cloud.instances) == 1
    assert desk.kinds() == ["RunCreated", "LaunchIntended", "LaunchRecorded"]


def test_two_runners_in_turn_rent_one_instance(desk: Desk) -> None:
    one, two = desk.runner(), desk.runner()
    for _ in range(5):
        one.tick()
        two.tick()
    assert len(desk.cloud.instances) == 1
    assert desk.kinds().count("LaunchIntended") == 1


def test_an_instance_that_another_runner_launched_between_our_two_looks_is_not_an_orphan(desk: Desk) -> None:
    """
    Protocol 9 reads the ledger first and the cloud second. That alone is not enough: this runner has read the ledger
    when the other one intends and launches, and would find an instance that it does not know.
    """
    other = desk.runner()

    def meanwhile() -> None:
        desk.cloud.before_list = lambda: None
        other.tick()
        other.tick()

    desk.cloud.before_list = meanwhile
    desk.runner().tick()
    assert len(desk.cloud.alive) == 1
    assert not any(call.startswith("terminate") for call in desk.cloud.calls)


def test_a_real_orphan_is_ended(desk: Desk) -> None:
    runner = desk.runner()
    for _ in range(3):
        runner.tick()
    known = desk.cloud.alive[0]
    desk.cloud.instances["orphan"] = replace(known, instance_id="i-orphan", token="orphan", launch=77)
    runner.tick()
    assert [found.instance_id for found in desk.cloud.alive] == [known.instance_id]


def test_a_blind_runner_does_nothing_and_says_so(desk: Desk) -> None:
    runner = desk.runner()
    for _ in range(3):
        runner.tick()
    desk.cloud.blind = True
    desk.clock.advance(timedelta(days=1).total_seconds())
    before, calls = desk.kinds(), list(desk.cloud.calls)
    assert runner.tick().blind == "no route to the cloud"
    assert (desk.kinds(), desk.cloud.calls) == (before, calls)


def test_a_refused_launch_is_closed_and_the_next_zone_is_asked(desk: Desk) -> None:
    desk.cloud.empty_pools = {"local-a"}
    runner = desk.runner()
    for _ in range(5):
        runner.tick()
    assert [found.offering.zone for found in desk.cloud.alive] == ["local-b"]
    assert "LaunchClosed" in desk.kinds()


def test_a_stopped_run_leaves_nothing_running(desk: Desk) -> None:
    runner = desk.runner()
    for _ in range(3):
        runner.tick()
    desk.ledger().append(lambda _: ev.StopRequested(by="me"))
    passes = [runner.tick() for _ in range(5)]
    assert desk.cloud.alive == []
    assert passes[-1].done
    assert desk.kinds()[-1] in ("RunStopped", "InstanceGone")


class Gone(BaseException):
    """SIGKILL, at a call of a port."""


def test_a_runner_killed_at_any_call_of_a_port_is_replaced_without_duplicate_or_orphan(tmp_path: Path) -> None:
    at = 0
    while True:
        desk = Desk(tmp_path / str(at))
        killed = _run_until_killed(desk, at)
        for _ in range(6):
            desk.runner().tick()
        assert len(desk.cloud.instances) == 1, f"killed at call {at}"
        assert desk.kinds() == ["RunCreated", "LaunchIntended", "LaunchRecorded"], f"killed at call {at}"
        if not killed:
            break
        at += 1
    assert at > 20


def _run_until_killed(desk: Desk, at: int) -> bool:
    """Three passes of a runner that dies right before its call number `at` to the store or to the cloud."""
    runner = desk.runner()
    calls = iter(range(10_000))

    def guarded(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **more: object) -> object:
            if next(calls) == at:
                raise Gone
            return function(*args, **more)

        return call

    store, cloud = runner._store, runner._driver
    ports = [(store, ("put_if_absent", "put_hint", "get", "list")), (cloud, ("launch", "list", "offerings"))]
    for port, names in ports:
        for name in names:
            setattr(port, name, guarded(getattr(port, name)))
    try:
        for _ in range(3):
            runner.tick()
    except Gone:
        return True
    finally:
        for port, names in ports:
            for name in names:
                delattr(port, name)
    return False
