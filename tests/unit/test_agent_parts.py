"""The agent's parts: pure decisions in tables, checkpoints on a store that fails."""

from __future__ import annotations

import hashlib
import math
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyrsistent import pvector

from spotrun.agent import decisions
from spotrun.agent.decisions import AgentAction, PredecessorLeaving, SnapshotFacts
from spotrun.agent.logs.console import GIVEN_BACK_AT_ONCE_BYTES, Console, LogShipper
from spotrun.agent.pace import Pace
from spotrun.agent.snapshots.arenas import Arenas
from spotrun.agent.snapshots.snapshot import Snapshot, Stalls
from spotrun.checkpoint import retention
from spotrun.checkpoint.restore import Image, fetch, newest_readable, recognised, verify
from spotrun.checkpoint.upload import NICENESS, PART_MAX_BYTES, Abandoned, UploadControl, cut, upload
from spotrun.clock import ScaledClock
from spotrun.errors import CheckpointDamaged, StoreError, StoreUnavailable
from spotrun.intervals import STALL_SHARE_MAX, auto_interval, checkpoint_interval, drain_moment
from spotrun.run import events as ev
from spotrun.run.bounds import LOG_CHUNK_BYTES
from spotrun.run.events import Cause
from spotrun.run.state import Commit, Prune, RunState, Terminal
from spotrun.spec.model import CheckpointSpec, KeepBestSpec
from spotrun.store.local import LocalStore
from spotrun.trainer_link import Progress, SnapshotTaken
from spotrun.units import Steps
from tests.support.checkpoint_entries import committed, saved
from tests.support.histories import History
from tests.support.memory_store import MemoryStore

# -- decisions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exit_code", "hung", "cause"),
    [
        (1, False, Cause.USER_ERROR),
        (-11, False, Cause.USER_ERROR),
        (-9, False, Cause.OUT_OF_MEMORY),
        (137, False, Cause.OUT_OF_MEMORY),
        (-9, True, Cause.HANG),
        (-6, True, Cause.HANG),
    ],
)
def test_why_a_trainer_ended(exit_code: int, hung: bool, cause: Cause):
    assert decisions.exit_cause(exit_code, hung=hung) is cause


@pytest.mark.parametrize(
    ("deadline_s", "window_s", "commit_s", "step_s", "margin_s", "moment"),
    [
        (120, 120, 10, 1, 0, 120 - 15 - 5 - 1),
        (120, 120, None, 1, 0, 120 - 60 - 1),
        (120, 120, 10, 1, 18, 120 - 15 - 5 - 1 - 18),
        (30, 30, 60, 0, 0, 30 - 95),
    ],
)
def test_the_drain_begins_as_late_as_is_safe(deadline_s, window_s, commit_s, step_s, margin_s, moment):
    assert drain_moment(deadline_s, window_s, commit_s, step_s, margin_s) == moment


def test_the_interval_is_young_s_within_bounds():
    second, hour = timedelta(seconds=1), timedelta(hours=1)
    assert checkpoint_interval(2 * second, hour) == 120 * second
    assert auto_interval(2 * second, hour) == 120 * second
    assert auto_interval(timedelta(0), hour) == 30 * second
    assert auto_interval(14 * second, 100 * hour) == timedelta(minutes=10)
    assert auto_interval(35 * second, hour) == 1000 * second, "3.5 % of the time at most"


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (SnapshotFacts(since_commit_s=None, since_snapshot_s=None, interval_s=600), "interval"),
        (SnapshotFacts(since_commit_s=29, since_snapshot_s=None, interval_s=600), None),
        (SnapshotFacts(since_commit_s=29, since_snapshot_s=700, interval_s=600, rebalance=True), None),
        (SnapshotFacts(since_commit_s=31, since_snapshot_s=None, interval_s=600), "interval"),
        (SnapshotFacts(since_commit_s=None, since_snapshot_s=None, interval_s=600, epoch_ended=True), "interval"),
        (SnapshotFacts(since_commit_s=31, since_snapshot_s=31, interval_s=600), None),
        (SnapshotFacts(since_commit_s=31, since_snapshot_s=31, interval_s=600, epoch_ended=True), "epoch"),
        (SnapshotFacts(since_commit_s=31, since_snapshot_s=31, interval_s=600, rebalance=True), "rebalance"),
        (SnapshotFacts(since_commit_s=590, since_snapshot_s=600, interval_s=600), "interval"),
        (SnapshotFacts(since_commit_s=9999, since_snapshot_s=9999, interval_s=None), None),
    ],
)
def test_when_a_snapshot_is_due(facts: SnapshotFacts, why: str | None):
    assert decisions.snapshot_due(facts, 30) == why


def test_a_hang_is_ten_steps_but_at_least_what_the_spec_says():
    five = timedelta(minutes=5)
    assert decisions.hang_limit_s(1, five, 30, training=True) == 300
    assert decisions.hang_limit_s(60, five, 30, training=True) == 600
    assert decisions.hang_limit_s(None, five, 1800, training=True) == 1800
    assert decisions.hang_limit_s(None, five, 30, training=False) == 900


def test_each_stall_is_accounted_for_once_whatever_becomes_of_its_snapshot():
    """The second came while the first was being sent, and the third displaced it; then another trainer began."""
    arenas, stalls, told_s = Arenas(), Stalls(), []
    [arena, _] = arenas.grant(1)
    taken = SnapshotTaken(
        arena=0, size_bytes=1, epoch=0, batch=1, step=1, stall_s=1.0, finite=True, final=False, epoch_ended=False
    )
    for incarnation, stalled_s in [(0, 1.0), (0, 7.0), (0, 7.5), (1, 2.0)]:
        kept = Snapshot(2, incarnation, 0, arena, taken, datetime.now(UTC), 0.0, stalled_s, "interval")
        told_s.append(stalls.since(kept))
        stalls.accounted(kept)
    arenas.close()
    assert told_s == [1.0, 6.0, 0.5, 2.0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("stall_s", [0.004, 0.1, 2.0, 20.0])
@pytest.mark.parametrize("step_s", [0.005, 5.0])
@pytest.mark.parametrize("hours", [1.5, pytest.param(6, marks=pytest.mark.nightly)])
def test_training_stands_still_for_a_bounded_share_whether_steps_are_short_or_long(
    step_s: float, stall_s: float, hours: float
):
    pace, now_s, stalled_s, snapshots = Pace("auto", committed_s=0.0), 0.0, 0.0, 0
    while now_s < hours * 3600:
        now_s += 0.1  # a turn of the agent
        if pace.snapshot_due(now_s) is None:
            continue
        taken_s = math.ceil(now_s / step_s) * step_s  # at the end of the step that is under way
        now_s = taken_s + stall_s
        stalled_s, snapshots = stalled_s + stall_s, snapshots + 1
        pace.snapshot(snapshots, stall_s, now_s)
        pace.committed(10.0, now_s)
    assert snapshots >= hours * 3600 / (10 * 60 + 30), "no interval is above ten minutes"
    assert stalled_s <= STALL_SHARE_MAX * now_s + stall_s, "the first one is taken before its stall was measured"


def test_the_pace_is_measured_per_step_and_an_ended_epoch_is_due_until_it_is_snapshot():
    pace = Pace(timedelta(seconds=100), committed_s=None)

    def at(step: int, second: float) -> None:
        pace.progressed(Progress(epoch=0, batch=step, batches=9, step=step, epochs=1, phase="train"), second)

    at(1, 10)
    at(3, 14)
    at(4, 16)
    assert pace.step_s == 2
    pace.snapshot(4, 0.5, 16)
    pace.committed(8, 20)
    pace.epoch_ended(6)
    assert (pace.snapshot_due(49), pace.snapshot_due(51)) == (None, "epoch")
    pace.snapshot(6, 0.5, 51)
    pace.committed(8, 55)
    assert (pace.snapshot_due(150), pace.snapshot_due(152)) == (None, "interval")
    assert Pace(Steps(5), None).interval_s(0.0) is None


def test_a_trainer_makes_no_checkpoint_for_an_epoch_that_the_one_before_it_ended():
    pace = Pace(timedelta(seconds=100), committed_s=None)
    pace.snapshot(8, 0.5, 0)
    pace.committed(8, 5)
    pace.epoch_ended(100)
    pace.new_trainer()
    pace.snapshot(9, 0.5, 40)
    pace.committed(8, 45)
    assert (pace.snapshot_due(100), pace.snapshot_due(145)) == (None, "interval")


# -- who may start -------------------------------------------------------------------------------------------


def test_only_the_newest_launch_of_a_run_that_goes_on_may_start():
    history = History()
    first = history.launch()
    assert decisions.standing(history.state, first) is AgentAction.START
    assert decisions.standing(history.state, 99) is AgentAction.LEAVE
    history.write(ev.AttemptStarted(launch=first, instance_id="i", booted_at=history.now))
    assert decisions.standing(history.state, first) is AgentAction.CONTINUE
    second = history.launch()
    assert decisions.standing(history.state, second) is AgentAction.STAND_BY
    history.write(ev.AttemptStarted(launch=second, instance_id="j", booted_at=history.now))
    assert decisions.standing(history.state, first) is AgentAction.LEAVE


def test_a_standby_waits_for_the_word_of_its_predecessor_or_for_the_notice_window():
    history = History()
    launch = history.launch()
    attempt = history.write(ev.AttemptStarted(launch=launch, instance_id="i", booted_at=history.now))
    standby = history.launch()

    def verdict(leaving: PredecessorLeaving | None, now_s: float) -> AgentAction:
        return decisions.standby_verdict(history.state, standby, leaving, 0, now_s)

    assert decisions.leaving_window_s(history.state) is None
    assert verdict(None, 1799) is AgentAction.STAND_BY
    assert verdict(None, 1801) is AgentAction.LEAVE, "never fence one that was not told to go"
    deadline = history.now + timedelta(seconds=100)
    history.write(ev.NoticeSeen(attempt=attempt, kind="termination", deadline_at=deadline))
    assert decisions.leaving_window_s(history.state) == 100
    leaving = PredecessorLeaving(seen_s=10, window_s=100)
    assert verdict(leaving, 139) is AgentAction.STAND_BY
    assert verdict(leaving, 140) is AgentAction.START
    history.write(ev.AttemptDrained(attempt=attempt, final_commit=None, stopped_at=history.now, reason="notice"))
    assert verdict(leaving, 20) is AgentAction.START


def failing_history(*steps: int) -> tuple[History, ev.TrainerExited]:
    history = History()
    launch = history.launch()
    attempt = history.write(ev.AttemptStarted(launch=launch, instance_id="i", booted_at=history.now))
    exited = None
    for incarnation, step in enumerate(steps):
        history.write(ev.ResumedFrom(attempt=attempt, incarnation=incarnation, commit=None, epoch=0, step=0))
        exited = ev.TrainerExited(
            attempt=attempt, incarnation=incarnation, cause=Cause.USER_ERROR, exit_code=1, step=step
        )
        history.write(exited)
    assert exited is not None
    return history, exited


@pytest.mark.parametrize(
    ("steps", "max_restarts", "gives_up"),
    [((5,), 2, False), ((5,), 0, True), ((5, 7), 2, False), ((5, 5), 9, True), ((5, 7, 9), 2, True)],
)
def test_failing_script_is_restarted_a_limited_number_of_times(steps, max_restarts, gives_up):
    history, exited = failing_history(*steps)
    assert (decisions.why_give_up(history.state, exited, max_restarts) is not None) == gives_up


@pytest.mark.parametrize("why", [decisions.why_give_up, decisions.why_give_up_command])
def test_script_that_lacks_a_module_is_not_restarted(why):
    history, exited = failing_history(0)
    assert why(history.state, exited, 9) is None
    lacks = replace(exited, detail="ModuleNotFoundError: No module named 'jsonargparse' (exit code 1)")
    assert why(history.state, lacks, 9) == "it would be missing again: install it in setup"


# -- checkpoints on a store ----------------------------------------------------------------------------------


@given(st.integers(1, 200 << 20))
def test_parts_cover_an_image_once(size: int):
    pieces = cut(size)
    ends = [*accumulate(n for _, n in pieces)]
    assert [start for start, _ in pieces] == [0, *ends[:-1]]
    assert ends[-1] == size
    assert max(n for _, n in pieces) <= PART_MAX_BYTES
    assert len(pieces) >= 4 or size <= 4 << 20


class Shaky(LocalStore):
    """A store whose calls can be made to fail: `fault` sees (verb, key) and may raise, or return other bytes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fault: Callable[[str, str], bytes | None] = lambda verb, key: None

    def put(self, key, data):
        self.fault("put", key)
        super().put(key, data)

    def get(self, key, start=0, size=None):
        wrong = self.fault("get", key)
        return super().get(key, start, size) if wrong is None else wrong


class ShakyInPieces(Shaky):
    """It breaks, or lies, in the middle of an object."""

    def pieces(self, key, size_bytes):
        whole = LocalStore.get(self, key, 0, size_bytes)
        yield whole[:100]
        wrong = self.fault("get", key)
        rest = whole[100:] if wrong is None else wrong
        yield from (rest[start : start + 99_999] for start in range(0, len(rest), 99_999))


IMAGE = os.urandom(5 << 20)


@pytest.fixture(params=[Shaky, ShakyInPieces], ids=["whole objects", "in pieces"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Shaky:
    kind: type[Shaky] = request.param
    return kind(tmp_path)


def read(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def test_restored_image_has_the_saved_bytes(store: Shaky):
    commit = saved(store, 1, IMAGE)
    image = fetch(store, commit)
    assert hashlib.sha256(read(image.fd)).digest() == hashlib.sha256(IMAGE).digest()
    verify(store, commit)
    image.close()


def test_passing_faults_do_not_matter(store: Shaky):
    seen: set[tuple[str, str]] = set()

    def once(verb: str, key: str) -> bytes | None:
        if (verb, key) not in seen:
            seen.add((verb, key))
            raise StoreUnavailable("503")
        return None

    store.fault = once
    commit = saved(store, 1, IMAGE)
    seen.clear()
    fetch(store, commit).close()


def test_one_mismatch_is_forgiven_and_two_condemn(store: Shaky):
    commit = saved(store, 1, IMAGE)
    lies = iter([b"wrong"])
    store.fault = lambda verb, key: next(lies, None) if key.endswith("part-0002") else None
    fetch(store, commit).close()
    store.fault = lambda verb, key: b"wrong" if key.endswith("part-0002") else None
    with pytest.raises(CheckpointDamaged, match="part-0002"):
        fetch(store, commit)


def test_the_walk_back_stops_at_a_fault_that_is_no_damage(store: Shaky):
    older, newer = saved(store, 1, IMAGE), saved(store, 2, IMAGE)

    def away(verb: str, key: str) -> bytes | None:
        if "1-0-2" in key:
            raise StoreError("AccessDenied")
        return None

    store.fault = away
    with pytest.raises(StoreError, match="AccessDenied"):
        newest_readable(store, [newer, older])
    store.fault = lambda verb, key: None
    store.delete("checkpoints/1-0-2/part-0001")
    found = newest_readable(store, [newer, older])
    assert (found.image.commit.number, found.skipped) == (1, (2,))
    found.image.close()


@pytest.fixture
def memory() -> Iterator[Callable[[bytes], int]]:
    """Bytes in a memory of their own; a descriptor that is still open in the end is a leak."""
    made: list[int] = []

    def make(data: bytes) -> int:
        fd = os.memfd_create("arena")
        os.write(fd, data)
        made.append(fd)
        return fd

    yield make
    for fd in made:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_an_arena_that_still_holds_a_commit_need_not_be_fetched(store: Shaky, memory: Callable[[bytes], int]):
    commit = saved(store, 1, IMAGE)
    store.delete("checkpoints/1-0-1/part-0001")
    image = recognised(store, Image(commit, memory(IMAGE + b"what an arena has beyond its image")))
    assert image is not None
    found = newest_readable(store, [commit], image)
    assert found.image is image
    assert os.pread(image.fd, len(IMAGE), 0) == IMAGE
    image.close()


@pytest.mark.parametrize("where", [0, len(IMAGE) // 2, len(IMAGE) - 1])
def test_an_arena_with_another_byte_is_not_that_commit(store: Shaky, memory: Callable[[bytes], int], where: int):
    commit = saved(store, 1, IMAGE)
    written_to = bytearray(IMAGE)
    written_to[where] ^= 1
    assert recognised(store, Image(commit, memory(bytes(written_to)))) is None
    assert recognised(store, Image(commit, memory(IMAGE[:-1]))) is None


def test_an_arena_that_cannot_be_told_from_a_commit_is_not_it(store: Shaky, memory: Callable[[bytes], int]):
    commit = saved(store, 1, IMAGE)
    store.fault = lambda verb, key: b"{}"
    assert recognised(store, Image(commit, memory(IMAGE))) is None


def test_a_ready_image_that_is_not_used_is_closed(store: Shaky, memory: Callable[[bytes], int]):
    older, newer = saved(store, 1, IMAGE), saved(store, 2, IMAGE)
    ready = recognised(store, Image(older, memory(IMAGE)))
    assert ready is not None
    newest_readable(store, [newer, older], ready).image.close()


def test_bytes_that_read_back_wrong_are_never_called_saved(store: Shaky):
    store.fault = lambda verb, key: b"torn" if verb == "get" else None
    with pytest.raises(StoreUnavailable, match="differ from the bytes sent"):
        upload(store, "checkpoints/1-0-0", memoryview(IMAGE), {}, retry_for_s=0.1)


def test_an_upload_can_be_called_off(store: Shaky):
    control = UploadControl()
    with pytest.raises(Abandoned):
        upload(
            store,
            "checkpoints/1-0-0",
            memoryview(IMAGE),
            {},
            sent=lambda done: control.cancel() if done else None,
            control=control,
        )
    assert all("manifest" not in stored.key for stored in store.list("checkpoints/"))


def test_in_a_hurry_more_parts_travel_side_by_side(store: Shaky):
    control = UploadControl()
    both, all_four = threading.Barrier(2, action=control.hurry), threading.Barrier(4)

    def fault(verb: str, key: str) -> None:
        if verb == "put" and "part-" in key:
            if key.endswith(("0", "1")):
                both.wait(60)
            all_four.wait(60)

    store.fault = fault
    assert upload(store, "checkpoints/1-0-0", memoryview(IMAGE), {}, control=control).objects == 5


def test_training_goes_first_until_there_is_a_hurry(store: Shaky):
    control, seen = UploadControl(), []

    def fault(verb: str, key: str) -> None:
        if verb == "put" and "part-" in key:
            seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            control.hurry()
            seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    store.fault = fault
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert upload(store, "checkpoints/1-0-0", memoryview(IMAGE), {}, control=control).objects == 5
    assert seen[0] == min(usual + NICENESS, 19)
    assert (usual in seen) is _may_come_forward(usual)


def _may_come_forward(usual: int) -> bool:
    """Whether this user may take back what a thread has given."""
    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(os.setpriority, os.PRIO_PROCESS, 0, usual + 1).result()
            pool.submit(os.setpriority, os.PRIO_PROCESS, 0, usual).result()
        except PermissionError:
            return False
    return True


def test_a_manifest_cannot_name_objects_elsewhere(store: Shaky):
    commit = saved(store, 1, IMAGE)
    key = f"{commit.event.prefix}/manifest.json"
    data = store.get(key).replace(b'"part-0000"', b'"../../ledg"')
    store.put(key, data)
    event = ev.msgspec.structs.replace(commit.event, manifest_blake3=blake3(data).hexdigest())
    with pytest.raises(CheckpointDamaged, match="outside its prefix"):
        fetch(store, Commit(number=1, at=commit.at, event=event))


@pytest.mark.parametrize(
    ("save_s", "uploading", "fits"),
    [(None, False, True), (None, True, True), (10, True, True), (11, True, False), (11, False, True)],
)
def test_n16_an_upload_is_given_up_only_for_a_final_snapshot_that_will_be_in_time(save_s, uploading, fits):
    assert decisions.final_snapshot_fits(10, save_s, uploading=uploading) is fits


def run_with(*facts: dict[str, Any], prune: Prune | None = None) -> RunState:
    """A run that has committed these, numbered from 0; a step is the number where none is given."""
    events = [
        committed(1, f"checkpoints/1-0-{number}", **({"step": number, "taken_at": datetime.now(UTC)} | fact))
        for number, fact in enumerate(facts)
    ]
    commits = [Commit(number=number, at=event.taken_at, event=event) for number, event in enumerate(events)]
    return replace(History().state, commits=pvector(commits), prune=prune)


@pytest.mark.parametrize(
    ("usable", "keep_last", "source", "retired"),
    [
        ([True] * 5, 3, None, [0, 1]),
        ([True] * 5, 3, 1, [0]),
        ([True, True, False, True, False], 2, None, [0]),
        ([True, False, True, True], 2, None, [0, 1]),
        ([False, False], 1, None, []),
        ([True], 1, None, []),
    ],
)
def test_which_checkpoints_are_retired(usable, keep_last, source, retired):
    state = run_with(*({"suspect": not good} for good in usable))
    assert retention.to_retire(state, CheckpointSpec(keep_last=keep_last), source) == retired


def test_last_checkpoint_of_each_fit_stays_until_the_run_is_complete():
    state = run_with(*({"fit": fit} for fit in (1, 1, 2, 2, 3, 3)))
    assert retention.to_retire(state, CheckpointSpec(keep_last=1), None) == [0, 2, 4]
    assert [end.number for end in state.ends_before(state.commits[-1])] == [1, 3]
    assert [end.number for end in state.ends_before(state.commits[2])] == [1]
    end = Terminal(outcome="stopped", number=9, at=state.created_at, cause=Cause.STOPPED, final_commit=5)
    stopped, completed = (replace(state, terminal=replace(end, outcome=how)) for how in ("stopped", "completed"))
    assert [each.number for each in retention.to_prune(stopped, CheckpointSpec(keep_last=1))] == [0, 2, 4]
    assert [each.number for each in retention.to_prune(completed, CheckpointSpec(keep_last=1))] == [0, 1, 2, 3, 4]


def test_a_fit_that_has_ended_in_nan_is_restored_from_there():
    state = run_with({"fit": 1}, {"fit": 1, "suspect": True}, {"fit": 2})
    assert [end.number for end in state.ends_before(state.commits[-1])] == [1]
    assert retention.to_retire(state, CheckpointSpec(keep_last=1), None) == [0]


@pytest.mark.parametrize(
    ("mode", "count", "kept"),
    [("min", 1, [3]), ("max", 1, [1]), ("min", 2, [3, 5]), ("min", 9, [1, 3, 5])],
)
def test_the_best_stay_each_as_the_first_with_its_value(mode, count, kept):
    losses = [None, 0.9, 0.9, 0.2, 0.2, 0.4, 0.4, None]
    state = run_with(*({"metrics": {} if loss is None else {"val_loss": loss}} for loss in losses))
    best = KeepBestSpec(metric="val_loss", mode=mode, count=count)
    gone = retention.to_retire(state, CheckpointSpec(keep_last=1, keep_best=best), None)
    assert gone == [number for number in range(7) if number not in kept]


def test_one_checkpoint_stays_for_each_keep_every_steps():
    steps = [40, 90, 110, 150, 205, 390, 401, 460]
    rule = CheckpointSpec(keep_last=1, keep_every=Steps(100))
    gone = retention.to_retire(run_with(*({"step": step} for step in steps)), rule, None)
    assert [steps[number] for number in gone] == [40, 90, 150]


@pytest.mark.parametrize(
    ("asked_at", "keep", "source", "retired"),
    [(10, 1, None, [0, 1, 2, 3, 4]), (3, 1, None, [0, 1]), (3, 5, None, []), (10, 2, 1, [0, 2, 3]), (0, 1, None, [])],
)
def test_a_request_to_prune_is_about_the_checkpoints_before_it(asked_at, keep, source, retired):
    state = run_with(*[{}] * 6, prune=Prune(number=asked_at, keep=keep))
    assert retention.to_retire(state, CheckpointSpec(keep_last=100), source) == retired


# -- logs -----------------------------------------------------------------------------------------


def test_a_restarted_shipper_goes_on_where_the_last_one_ended(tmp_path: Path):
    store, console = LocalStore(tmp_path / "run"), Console(tmp_path)
    clock = ScaledClock(datetime.now(UTC), 1000)
    for line in ("one", "two", "three"):
        console.note(line)
        shipper = LogShipper(store, clock, console, "7")
        shipper.start()
        shipper.stop()
    chunks = store.list("logs/7/")
    assert [chunk.key for chunk in chunks] == [f"logs/7/{n:06d}.log" for n in range(3)]
    assert b"".join(store.get(chunk.key) for chunk in chunks) == console.path.read_bytes()


def test_the_disk_gets_back_what_was_shipped_and_nothing_else_changes(tmp_path: Path):
    store, clock, kept = MemoryStore(), ScaledClock(datetime.now(UTC), 1000), 1 << 20
    written = b"".join(b"step %d: loss %d\n" % (step, step * 7) for step in range(200_000))
    console = Console(tmp_path, kept_bytes=kept)
    program = console.open()
    for half in (written[: len(written) // 2], written[len(written) // 2 :]):
        with os.fdopen(os.dup(program), "wb") as output:
            output.write(half)
        shipper = LogShipper(store, clock, console, "7")
        shipper.start()
        shipper.stop()
        console = Console(tmp_path, kept_bytes=kept)  # of an agent that was started again
    os.close(program)
    assert b"".join(store.objects[key] for key in sorted(store.objects)) == written
    assert console.size_bytes() == len(written) > 4 * kept
    assert console.path.stat().st_blocks * 512 <= kept + GIVEN_BACK_AT_ONCE_BYTES + LOG_CHUNK_BYTES
    assert console.tail(100).encode() in written[-100:]
    assert console.read(len(written) - kept, kept) == written[-kept:]


def test_unshipped_output_stays_on_the_disk(tmp_path: Path):
    console = Console(tmp_path, kept_bytes=1 << 20)
    written = bytes(range(1, 201)) * 20_000
    console.path.write_bytes(written)
    console.give_back(0)
    assert console.path.read_bytes() == written
