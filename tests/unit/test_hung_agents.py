"""An agent that hangs, and one that never speaks: acted on soon, and never for want of an answer (promise I6)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from spotrun.folder.heartbeats import Heartbeats
from spotrun.folder.status_objects import AgentStatus, agent_key, write_status
from spotrun.run.events import Cause
from spotrun.run.gang import MemberName
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.plain_aws_run import PlainAwsRun

READS, WRITES = {"get", "list"}, {"put", "put_if_absent", "put_status"}
WRITE_HANGS_S = 70.0
"""10 s to connect and 60 s for the answer: an agent whose heartbeat hangs tries again after that."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> PlainAwsRun:
    return PlainAwsRun(monkeypatch)


@pytest.fixture
def trains(run: PlainAwsRun) -> PlainAwsRun:
    assert run.trains_within(60)
    run.goes_on(60)
    return run


def test_an_agent_that_hangs_is_replaced_within_five_minutes(trains: PlainAwsRun) -> None:
    (hung,) = trains.aws.alive
    trains.is_hung = True
    trains.goes_on(200)
    assert trains.aws.alive == [hung], "a silence may pass"
    trains.goes_on(100)
    assert trains.training is not None
    assert trains.training.instance_id != hung
    assert [launch.condemned and launch.condemned.cause for launch in trains.state.launches.values()] == [
        Cause.HANG,
        None,
    ]


def test_an_instance_whose_agent_never_speaks_is_ended_within_a_quarter_of_an_hour(run: PlainAwsRun) -> None:
    run.boots = False
    run.goes_on(800)
    (mute,) = run.aws.alive
    run.goes_on(100)
    assert mute not in run.aws.alive
    (given_up, *_) = run.state.launches.values()
    assert given_up.closed is not None
    assert given_up.closed.detail == "its agent never reported"


def test_a_boot_of_ten_minutes_is_waited_for(run: PlainAwsRun) -> None:
    run.boots = False
    run.goes_on(600)
    run.boots = True
    assert run.trains_within(10)
    assert len(run.aws.rows) == 1


@pytest.mark.parametrize("down", [READS | WRITES, WRITES], ids=["all", "writes"])
@pytest.mark.parametrize("minutes", [3, 20])
def test_an_outage_of_the_store_is_no_hang(trains: PlainAwsRun, minutes: int, down: set[str]) -> None:
    """The agent cannot write either, and its last write hangs for a while."""
    trains.is_hung, trains.down = True, down
    trains.goes_on(60 * minutes)
    trains.down = set()
    trains.goes_on(WRITE_HANGS_S)
    trains.is_hung = False
    trains.goes_on(600)
    assert trains.training is not None
    assert len(trains.aws.rows) == 1


@pytest.mark.parametrize("down", [READS | WRITES, WRITES], ids=["all", "writes"])
def test_an_outage_of_the_store_during_a_boot_gives_nothing_up(run: PlainAwsRun, down: set[str]) -> None:
    run.boots = False
    run.goes_on(60)
    run.down = down
    run.goes_on(1200)
    run.down = set()
    run.goes_on(WRITE_HANGS_S)
    run.boots = True
    assert run.trains_within(10)
    assert len(run.aws.rows) == 1


def test_agent_that_hangs_through_an_outage_is_replaced_after_it(trains: PlainAwsRun) -> None:
    trains.is_hung, trains.down = True, READS | WRITES
    trains.goes_on(1200)
    trains.down = set()
    trains.goes_on(200)
    assert trains.training is not None
    assert len(trains.aws.rows) == 2


def test_heartbeat_from_while_the_machine_slept_counts_at_once() -> None:
    """The monotonic clock stood still meanwhile."""
    clock = ManualClock()
    store = MemoryStore(clock)
    heartbeats = Heartbeats(store, clock)
    for _ in range(3):
        heartbeats.silent()
        clock.advance(15)
    assert (heartbeats.silent(), heartbeats.open_for) == ({}, timedelta.max)
    clock.put_back(timedelta(minutes=-20))
    assert heartbeats.open_for == timedelta(), "nobody knows what the store took meanwhile"
    write_status(store, agent_key(1), AgentStatus(launch=1, phase="boot", at=clock.now(), sequence=1))
    assert list(heartbeats.silent()) == [MemberName(1, 0)]
