"""Two arenas in the memory of four thirds: what is needed of a snapshot is never the trainer's to write to."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from spotrun.agent.decisions import HeldSnapshot, gives_way
from spotrun.agent.machine.cpu_priority import CpuPriority
from spotrun.agent.saver import Saver
from spotrun.agent.snapshots.arenas import Arena, Arenas, overlapping
from spotrun.agent.snapshots.snapshot import Snapshot
from spotrun.checkpoint.manifest import Extent, Part
from spotrun.checkpoint.unchanged import BorrowedParts
from spotrun.checkpoint.upload import First, UploadControl, upload
from spotrun.store.local import LocalStore
from spotrun.trainer_link import SnapshotTaken

SIZE = 10 * mmap.PAGESIZE + 123
IMAGE = os.urandom(5 << 20)


@pytest.fixture
def arenas() -> Iterator[Arenas]:
    arenas = Arenas()
    yield arenas
    arenas.close()


def place(arena: Arena, part: range) -> range:
    """In the memory that both have."""
    return range(arena.start + part.start, arena.start + part.stop)


def meet(one: range, other: range) -> bool:
    return max(one.start, other.start) < min(one.stop, other.stop)


@pytest.mark.parametrize("size_bytes", [1, mmap.PAGESIZE, mmap.PAGESIZE + 1, SIZE, 3 << 20])
def test_two_arenas_agree_on_their_common_bytes(size_bytes: int) -> None:
    first, second = overlapping(0, size_bytes)
    whole, other = place(first, range(size_bytes)), place(second, range(size_bytes))
    in_common = range(max(whole.start, other.start), min(whole.stop, other.stop))
    for arena in (first, second):
        assert place(arena, arena.common) == in_common or not (arena.common or in_common)
    assert os.fstat(first.fd).st_size <= 4 / 3 * size_bytes + mmap.PAGESIZE
    first.close()
    second.close()


@pytest.mark.exhaustive
def test_whatever_happens_nothing_that_is_needed_is_the_trainers(arenas: Arenas) -> None:
    """All histories of six events."""
    acts = ("fill", "spend 0", "spend 1", "free 0", "free 1")
    for history in product(acts, repeat=6):
        arenas = Arenas()
        mine = arenas.grant(SIZE)
        full: dict[int, range] = {}
        given: int | None = mine[0].number
        for act in history:
            what, _, which = act.partition(" ")
            number = int(which or 0)
            if what == "fill":
                if given is not None:
                    assert arenas.fill(given) is mine[given]
                    full[given], given = range(SIZE), None
            elif what == "spend" and number in full:
                arenas.spend(number)
                common = mine[number].common
                full[number] = range(common.start) if number == 0 else range(common.stop, SIZE)
            elif what == "free" and number in full:
                arenas.free(number)
                del full[number]
            got = arenas.give()
            assert got is None or given is None, "one at a time"
            given = got if got is not None else given
            assert arenas.none_is_free is (given is None)
            if given is not None:
                assert given not in full
                writes = place(mine[given], range(SIZE))
                assert not any(meet(writes, place(mine[each], needed)) for each, needed in full.items())
            elif not full:
                pytest.fail("the trainer has nothing to write to, and nothing is being sent")
        for number in list(full):
            arenas.free(number)
        arenas.close()


def test_full_arenas_outlive_their_set_and_their_trainer(arenas: Arenas) -> None:
    first = arenas.grant(4096)
    os.pwrite(first[0].fd, b"snapshot", first[0].start)
    assert arenas.fill(1) is None, "it is not the trainer's yet"
    assert arenas.fill(0) is first[0]
    assert arenas.fill(0) is None, "the trainer may not fill what is not its own"
    assert [arena.number for arena in arenas.grant(8192)] == [2, 3]
    arenas.close()
    with first[0].image(8) as image:
        assert bytes(image) == b"snapshot"
    arenas.free(0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(first[0].fd)


# -- sending -------------------------------------------------------------------------------------------------


class Recording(LocalStore):
    """Keeps the order in which objects came to be there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.events: list[str] = []

    def put(self, key: str, data: bytes | memoryview) -> bool:
        done = super().put(key, data)
        self.events.append(key.rpartition("/")[2])
        return done


def sent_in_order(folder: Path, of: range, **more: Any) -> list[str]:
    store = Recording(folder)
    first = First(of, lambda: store.events.append("then"))
    manifest = upload(store, "checkpoints/1-0-0", memoryview(IMAGE), {}, first=first, **more).manifest
    assert [part.name for part in manifest.parts if not part.of] == sorted(
        event for event in store.events if event.startswith("part-")
    )
    return store.events


@pytest.mark.parametrize(
    ("of", "needed"),
    [
        (range(3 << 20, 5 << 20), {"part-0002", "part-0003"}),
        (range(2 << 20), {"part-0000", "part-0001"}),
        (range(1), {"part-0000"}),
        (range(len(IMAGE) - 1, len(IMAGE)), {"part-0003"}),
        (range(0), set()),
    ],
)
def test_priority_parts_are_stored_before_the_callback(tmp_path: Path, of: range, needed: set[str]) -> None:
    events = sent_in_order(tmp_path, of)
    assert needed <= set(events[: events.index("then")])
    assert events[-1] == "manifest.json"
    assert events.count("then") == 1


def test_the_rest_waits_for_what_goes_first(tmp_path: Path) -> None:
    one_by_one = UploadControl()
    one_by_one.slots = threading.Semaphore(1)
    events = sent_in_order(tmp_path, range(3 << 20, 5 << 20), control=one_by_one)
    assert set(events[:2]) == {"part-0002", "part-0003"}


def test_borrowed_parts_need_not_be_sent_first(tmp_path: Path) -> None:
    half = len(IMAGE) // 2
    there = Part(name="part-0000", size_bytes=half, blake3="0" * 64, of="checkpoints/1-0-9")
    borrowed = BorrowedParts((there,), (Extent(0, 0, half, half),))
    events = sent_in_order(tmp_path, range(half, len(IMAGE)), borrowed=borrowed)
    assert events[0] == "then"


# -- what the saver makes of it ------------------------------------------------------------------------------


class Saving:
    """A saver whose uploads end when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.spent: list[int] = []
        self.released: list[int] = []
        worker: Any = self
        self.saver = Saver(
            worker,
            lambda snapshot: self.released.append(snapshot.sequence),
            lambda snapshot: self.spent.append(snapshot.sequence),
            CpuPriority(folder / "no such feature"),
        )
        self.controls: list[UploadControl] = []
        self._begun = threading.Event()

    def save(self, snapshot: Snapshot, control: UploadControl, resume_source: int | None) -> None:
        self.controls.append(control)
        self._begun.set()

    def begin(self, *, final: bool = False) -> Snapshot:
        arena, other = overlapping(0, 4096)
        other.close()
        taken = SnapshotTaken(
            arena=0, size_bytes=1, epoch=0, batch=1, step=1, stall_s=1.0, finite=True, final=final, epoch_ended=False
        )
        snapshot = Snapshot(2, 0, 5, arena, taken, datetime.now(UTC), 0.0, 0.0, "interval")
        arena.close()
        self.saver.offer(snapshot)
        self.again()
        return snapshot

    def again(self) -> None:
        self._begun.clear()
        self.saver.turn(hold=False, overdue=False)
        assert self._begun.wait(60)


@pytest.fixture
def saving(tmp_path: Path) -> Saving:
    return Saving(tmp_path)


def test_a_snapshot_of_which_a_part_is_the_trainers_is_sent_this_time_or_never(saving: Saving) -> None:
    snapshot = saving.begin()
    saving.saver.common_part_sent(snapshot.sequence)
    assert saving.spent == [snapshot.sequence]
    saving.saver.settled(failed=True, retry=True)
    assert saving.released == [snapshot.sequence]
    assert saving.saver.idle


def test_training_goes_first_until_the_next_snapshot_is_due_or_there(saving: Saving) -> None:
    snapshot = saving.begin()
    assert not saving.controls[-1].forward
    saving.saver.turn(hold=False, overdue=True)
    assert saving.controls[-1].forward
    saving.saver.settled()
    saving.begin()
    assert not saving.controls[-1].forward, "another upload"
    saving.saver.offer(snapshot)
    saving.saver.turn(hold=True, overdue=False)
    assert saving.controls[-1].forward


HELD = HeldSnapshot(left_s=4.0, steps=20, step_s=3.0, every_steps=20, trains=True, silent_s=1.0)


@pytest.mark.parametrize(
    ("changes", "gives"),
    [
        ({}, True),
        ({"left_s": 6.0}, False),  # a newer one would be held back too
        ({"steps": 19}, False),  # none is due
        ({"trains": False}, False),  # none will come before the validation ends
        ({"every_steps": None}, False),
        ({"step_s": None}, False),
        ({"silent_s": 10.0}, True),  # a slow step
        ({"silent_s": 12.0}, False),  # it stands still, and this is all that is left of it
    ],
)
def test_one_that_is_held_back_gives_way_to_a_newer_one_at_the_last_moment(
    changes: dict[str, Any], gives: bool
) -> None:
    assert gives_way(HELD._replace(**changes), turn_s=1.0) is gives


def test_held_snapshot_is_the_one_that_waits_while_nothing_is_sent(saving: Saving) -> None:
    snapshot = saving.begin()
    assert saving.saver.held is None
    saving.saver.offer(snapshot)
    assert saving.saver.held is None, "it waits for the one that is being sent"
    saving.saver.settled()
    saving.saver.turn(hold=True, overdue=False)
    assert saving.saver.held is snapshot


def test_one_that_is_whole_is_tried_again(saving: Saving) -> None:
    saving.begin()
    saving.saver.settled(failed=True, retry=True)
    assert (saving.released, saving.spent) == ([], [])
    saving.again()


def test_the_last_snapshot_stays_whole_until_it_is_durable(saving: Saving) -> None:
    """Nothing can follow it."""
    snapshot = saving.begin(final=True)
    saving.saver.common_part_sent(snapshot.sequence)
    saving.saver.abandon()
    assert saving.spent == []
    saving.saver.settled(failed=True)
    saving.again()
    assert not saving.controls[-1].cancelled


def test_abandoned_snapshot_makes_room_at_once(saving: Saving) -> None:
    """Parts that are travelling may be seconds from their end; nothing will come of them."""
    snapshot = saving.begin()
    saving.saver.abandon()
    assert saving.controls[-1].cancelled
    assert saving.spent == [snapshot.sequence]
    saving.saver.common_part_sent(snapshot.sequence)
    assert saving.spent == [snapshot.sequence]


def test_an_upload_that_was_given_up_never_becomes_a_checkpoint_whatever_is_written_meanwhile(tmp_path: Path) -> None:
    """The last part is on its way when room is made, and half of it is another snapshot's."""
    image, control = bytearray(IMAGE), UploadControl()

    class Overwritten(LocalStore):
        def put(self, key: str, data: bytes | memoryview) -> bool:
            if key.endswith("part-0003"):
                control.cancel()
                image[-100:] = bytes(100)
            return super().put(key, data)

    store = Overwritten(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(upload, store, "checkpoints/1-0-0", memoryview(image), {}, control=control)
        assert type(sending.exception(60)).__name__ == "Abandoned"
    assert not any("manifest" in stored.key for stored in store.list("checkpoints/"))
