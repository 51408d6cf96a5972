"""Whether a run's store has room again, after an attempt ended because it had none."""

from __future__ import annotations

import pytest

from spotrun.account.outcome import status_word
from spotrun.account.summary import summarise
from spotrun.errors import WritesRefused
from spotrun.folder.heartbeats import Heartbeats
from spotrun.folder.store_capacity import StoreCapacity, shortage
from spotrun.report.next_decision import next_decision
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.store.port import StoreFacts
from tests.support.decisions import spec
from tests.support.histories import History
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore


class SmallStore(MemoryStore):
    """Takes objects of at most `free_bytes`."""

    free_bytes = 1000

    def put_status(self, key: str, data: bytes | memoryview) -> None:
        if len(data) > self.free_bytes:
            raise WritesRefused("no space left", hint="make room")
        super().put_status(key, data)

    def inspect(self) -> StoreFacts:
        return StoreFacts(region=None, expiries=(), versioned=False, free_bytes=self.free_bytes)


def ended_without_room(size_bytes: int) -> History:
    history = History()
    history.running()
    history.write(ev.CheckpointFailed(attempt=history.attempt, step=3, detail="full", size_bytes=size_bytes))
    history.ended(Cause.STORE_FULL)
    return history


def test_a_store_that_holds_small_objects_may_have_no_room_for_a_checkpoint() -> None:
    store, clock, state = SmallStore(), ManualClock(), ended_without_room(50_000_000).state
    room = StoreCapacity(store, clock)
    assert room.refused(state) == "no space left; try: make room"
    store.free_bytes = 20_000_000
    assert room.refused(state) == "no space left; try: make room", "it is not asked at each tick"
    clock.advance(15)
    assert room.refused(state).startswith("the disk of memory has 20 MB left, and a checkpoint takes 50 MB")
    store.free_bytes = 60_000_000
    clock.advance(15)
    assert room.refused(state) == ""
    assert store.objects == {}


def test_a_store_is_tried_only_where_the_last_attempt_found_no_room() -> None:
    history = History()
    history.running()
    store = SmallStore()
    store.free_bytes = -1
    assert StoreCapacity(store, ManualClock()).refused(history.state) == ""


def test_a_full_disk_is_what_comes_next_for_those_who_only_look() -> None:
    history, store = History(), SmallStore()
    history.running()
    store.free_bytes = 20_000_000
    assert shortage(store, history.state) == ""
    history.write(ev.CheckpointFailed(attempt=history.attempt, step=3, detail="full", size_bytes=50_000_000))
    found = shortage(store, history.state)
    assert found.startswith("the disk of memory has 20 MB left, and a checkpoint takes 50 MB")
    coming = next_decision(history.state, spec(), history.now, found)
    assert coming == f"cannot save its next checkpoint: {found}"
    store.free_bytes = 60_000_000
    assert shortage(store, history.state) == ""
    store.free_bytes = 0
    history.completed(history.commit())
    assert shortage(store, history.state) == "", "it needs no room any more"


def test_a_full_disk_in_mid_run_is_shown_as_waiting_and_its_time_as_downtime() -> None:
    history, store = History(), SmallStore()
    history.running()
    history.after(100).commit(size_bytes=4_900_000)
    before = summarise(history.after(50).state, history.now).total
    history.write(ev.CheckpointFailed(attempt=history.attempt, step=3, detail="full", size_bytes=4_900_000))
    assert status_word(history.state) == "waiting"
    during = summarise(history.after(600).state, history.now).total
    assert (during.downtime - before.downtime).total_seconds() == pytest.approx(600)
    store.free_bytes = 212_000
    assert shortage(store, history.state).startswith("the disk of memory has 212 kB left, and a checkpoint takes 4,900")
    history.after(60).commit(stall_s=660)
    assert status_word(history.state) == "training"
    after = summarise(history.after(50).state, history.now).total
    assert (after.downtime - before.downtime).total_seconds() == pytest.approx(660)


def test_a_runner_whose_heartbeat_is_refused_knows_what_to_say() -> None:
    store, clock = SmallStore(), ManualClock()
    heartbeats = Heartbeats(store, clock)
    store.free_bytes = 0
    heartbeats.silent()
    assert heartbeats.refused == "no space left; try: make room"
    store.free_bytes = 1000
    clock.advance(15)
    heartbeats.silent()
    assert heartbeats.refused == ""
