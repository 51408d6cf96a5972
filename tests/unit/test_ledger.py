"""Many writers, one history: nothing is lost, nothing is written twice, and everybody reads the same."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path

import pytest

from spotrun.errors import LedgerDamaged, RunNotFound, SpotrunError, StoreError, StoreUnavailable
from spotrun.folder.ledger import EntryRefused, Ledger, NewestSeen, Witness, key_of
from spotrun.run import events as ev
from spotrun.run.entry_bytes import decode_entry, encode_entry, entry_json, seal
from spotrun.run.events import Entry
from spotrun.run.fold import fold
from spotrun.run.state import RunState
from spotrun.store.local import LocalStore
from spotrun.store.port import Store, StoredObject
from tests.support.checkpoint_entries import committed
from tests.support.histories import History, intended
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.world.faults import LossyStore

UID = "0123456789"
WRITERS, APPENDS = 16, 4


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)


def begun(store: Store | None = None, history: History | None = None) -> Store:
    """A store with the entries of a history: a run with one attempt that trains, where none is given."""
    store = store or MemoryStore()
    if history is None:
        history = History()
        history.running()
    history.put_into(store)
    return store


def ledger(store: Store, writer: str = "test", retry_for_s: float = 60) -> Ledger:
    return Ledger(store, UID, writer, ManualClock(), retry_for_s)


def notice(state: RunState) -> ev.AnyEvent:
    assert state.current_attempt is not None
    return ev.NoticeSeen(attempt=state.current_attempt, kind="rebalance", deadline_at=None)


def stored(store: Store) -> list[Entry]:
    found = [decode_entry(store.get(each.key)) for each in store.list("ledger/")]
    assert None not in found
    return [entry for entry in found if entry is not None]


# -- many writers ----------------------------------------------------------------------------------------------------


def _append_in_a_process(folder: str, number: int, start: object, answers: object) -> None:
    own = ledger(LocalStore(Path(folder)), f"writer-{number}")
    start.wait()
    written = [own.append(notice) for _ in range(APPENDS)]
    answers.put((number, [(entry.number, entry.nonce) for entry in written if entry is not None]))


@pytest.mark.exhaustive
def test_sixteen_racing_processes_lose_nothing_and_agree(tmp_path: Path) -> None:
    first = len(stored(begun(LocalStore(tmp_path))))
    processes = multiprocessing.get_context("fork")
    start, answers = processes.Barrier(WRITERS), processes.Queue()
    writers = [
        processes.Process(target=_append_in_a_process, args=(str(tmp_path), number, start, answers))
        for number in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    acknowledged = dict(answers.get(timeout=100) for _ in range(WRITERS))
    for writer in writers:
        writer.join()
    history = stored(LocalStore(tmp_path))
    assert [entry.number for entry in history] == list(range(first + WRITERS * APPENDS))
    for number, written in acknowledged.items():
        own = [(entry.number, entry.nonce) for entry in history if entry.writer == f"writer-{number}"]
        assert own == written, "what a writer was told is what is there, in its order"
    folds = [ledger(LocalStore(tmp_path)).refresh() for _ in range(3)]
    assert all(found == fold(history) and not found.voids for found in folds)


def test_threads_share_one_ledger() -> None:
    store = begun()
    shared, first = ledger(store), len(stored(store))
    threads = [threading.Thread(target=lambda: [shared.append(notice) for _ in range(5)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stored(store)) == first + 40
    assert shared.entries == stored(store)


def test_a_lost_race_asks_for_the_decision_again_on_the_newer_state() -> None:
    store = begun()
    asked: list[int] = []
    mine, other = ledger(store), ledger(store)

    def decide(state: RunState) -> ev.AnyEvent | None:
        asked.append(state.next_number)
        if len(asked) == 1:
            other.append(lambda _: ev.StopRequested(by="another"))
        return None if state.stop_requested else notice(state)

    first = len(stored(store))
    assert mine.append(decide) is None
    assert asked == [first, first + 1]
    assert [entry.event for entry in stored(store)[first:]] == [ev.StopRequested(by="another")]


def test_an_event_that_would_be_void_is_refused_and_not_written() -> None:
    store = begun()
    mine, first = ledger(store), len(stored(store))
    with pytest.raises(EntryRefused, match="not the current one"):
        mine.append(lambda _: ev.NoticeSeen(attempt=999, kind="termination", deadline_at=None))
    with pytest.raises(EntryRefused, match="another run"):
        Ledger(store, "ffffffffff", "test", ManualClock()).append(notice)
    assert len(stored(store)) == first


# -- a bad line ------------------------------------------------------------------------------------------------------

FATES = ("ok", "answer lost", "lost", "denied", "denied for nothing")


@pytest.mark.parametrize("fates", list(itertools.product(FATES, repeat=3)), ids="-".join)
def test_each_event_is_written_exactly_once_whatever_the_store_answers(fates: tuple[str, ...]) -> None:
    store = begun()
    first, turn = len(stored(store)), iter(fates)
    mine = ledger(LossyStore(store, lambda: next(turn, "ok")))
    written = [mine.append(notice) for _ in range(3)]
    added = stored(store)[first:]
    assert added == written
    assert len({entry.nonce for entry in added}) == 3
    assert mine.state == fold(stored(store))


@pytest.mark.parametrize("seed", range(30))
def test_writers_on_bad_lines_share_one_history(seed: int) -> None:
    rng, store = random.Random(seed), begun()
    first = len(stored(store))
    writers = [ledger(LossyStore(store, lambda: rng.choice(FATES)), f"w{number}") for number in range(4)]
    written = [rng.choice(writers).append(notice) for _ in range(12)]
    assert stored(store)[first:] == written, f"seed {seed}"


class Bursts(MemoryStore):
    """A store that is away for so many calls in a row, whatever they are."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__()
        self.objects = objects
        self.away = 0

    def _answer(self) -> None:
        if self.away:
            self.away -= 1
            raise StoreUnavailable("503 Slow Down")

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        self._answer()
        return super().get(key, start, size)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._answer()
        created = super().put_if_absent(key, data)
        self._answer()
        return created


@pytest.mark.parametrize("away", range(1, 12))
def test_a_burst_of_faults_is_waited_out(away: int) -> None:
    store = begun()
    first, line = len(stored(store)), Bursts(store.objects)
    mine = ledger(line)
    mine.refresh()
    line.away = away
    entry = mine.append(notice)
    assert stored(store)[first:] == [entry]


def test_after_a_fault_that_does_not_pass_nothing_is_claimed_and_nothing_is_doubled() -> None:
    store = begun()
    first, line = len(stored(store)), Bursts(store.objects)
    mine = ledger(line, retry_for_s=0)
    mine.refresh()

    def decide(state: RunState) -> ev.AnyEvent | None:
        line.away = 2
        return notice(state)

    with pytest.raises(StoreUnavailable):
        mine.append(decide)
    assert mine.append(notice) in stored(store)
    assert len(stored(store)) == first + 1


def test_forbidden_write_fails_at_once() -> None:
    class ReadOnly(MemoryStore):
        def put_if_absent(self, key: str, data: bytes) -> bool:
            raise StoreError("not allowed")

    line = ReadOnly()
    line.objects = begun().objects
    with pytest.raises(StoreError, match="not allowed"):
        ledger(line).append(notice)


def test_a_number_is_never_proposed_before_the_one_below_it_was_read() -> None:
    """Also where the store keeps saying that the own entry is already there, and it never is (S3's 409)."""
    calls: list[tuple[str, str]] = []

    class Told(MemoryStore):
        def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
            data = super().get(key, start, size)
            calls.append(("read", key))
            return data

        def put_if_absent(self, key: str, data: bytes) -> bool:
            calls.append(("proposed", key))
            return turn() and super().put_if_absent(key, data)

    answers = iter([False, False, True, False, True, True])
    turn: Callable[[], bool] = lambda: next(answers)  # noqa: E731
    line = Told()
    line.objects = begun().objects
    own = ledger(line)
    first = own.refresh().next_number
    calls.clear()
    for _ in range(3):
        own.append(notice)
    proposed = [key for verb, key in calls if verb == "proposed"]
    assert proposed == [key_of(first)] * 3 + [key_of(first + 1)] * 2 + [key_of(first + 2)]
    other = ledger(line)
    calls.clear()
    answers = iter([True])
    other.append(notice)
    at = calls.index(("proposed", key_of(first + 3)))
    assert {key for verb, key in calls[:at] if verb == "read"} >= {key_of(number) for number in range(first + 3)}


# -- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_a_missing_entry_below_a_listed_one_is_damage_that_is_named(missing: int) -> None:
    store = begun()
    store.delete(key_of(missing))
    before = [found.key for found in store.list("")]
    with pytest.raises(LedgerDamaged, match=f"entry {missing} is missing") as damaged:
        ledger(store).refresh()
    assert damaged.value.hint
    with pytest.raises(LedgerDamaged):
        ledger(store).append(notice)
    assert [found.key for found in store.list("")] == before, "nobody appends to a damaged ledger"


class Remembers:
    """A machine's record of the newest entry, which all of its processes share."""

    def __init__(self) -> None:
        self.seen: NewestSeen | None = None

    def newest(self) -> NewestSeen | None:
        return self.seen

    def record(self, seen: NewestSeen) -> None:
        self.seen = seen


def witnessed(store: Store, witness: Witness) -> Ledger:
    return Ledger(store, UID, "test", ManualClock(), 0, witness=witness)


def test_entry_that_another_process_records_during_a_listing_is_no_damage() -> None:
    machine = Remembers()
    other = witnessed(begun(store := MemoryStore()), machine)

    class Overtaken(MemoryStore):
        def list(self, prefix: str, after: str = "") -> list[StoredObject]:
            found = super().list(prefix, after)
            if self is overtaken:
                other.append(notice)
            return found

    overtaken = Overtaken()
    overtaken.objects = store.objects
    assert witnessed(overtaken, machine).refresh().next_number == other.state.next_number
    assert machine.seen is not None
    assert machine.seen.number == other.state.next_number - 1


def test_recorded_entry_that_a_late_listing_lacks_is_read() -> None:
    machine = Remembers()

    class Late(MemoryStore):
        def list(self, prefix: str, after: str = "") -> list[StoredObject]:
            return super().list(prefix, after)[:-2]

    begun(store := Late())
    whole = witnessed(store, machine).refresh()
    assert witnessed(store, machine).refresh() == whole
    store.delete(key_of(whole.next_number - 1))
    with pytest.raises(LedgerDamaged, match="is missing, and this machine has read entry"):
        witnessed(store, machine).append(notice)


def test_reader_that_meets_a_gap_does_not_append() -> None:
    store = begun()
    mine, other = ledger(store), ledger(store)
    mine.refresh()
    for _ in range(2):
        other.append(notice)
    store.delete(other_key := key_of(other.state.next_number - 2))
    with pytest.raises(LedgerDamaged):
        mine.append(notice)
    assert other_key not in {found.key for found in store.list("")}


def test_a_listing_that_was_overtaken_by_writers_is_no_damage() -> None:
    """Reading a folder while entries n and n+1 come into it may show n+1 alone; n is there when it is asked for."""

    class Overtaken(MemoryStore):
        def list(self, prefix: str, after: str = "") -> list[StoredObject]:
            return [found for found in super().list(prefix, after) if found.key != key_of(2)]

    line = Overtaken()
    line.objects = begun().objects
    own = ledger(line)
    assert own.refresh() == fold(stored_in_order(line))
    assert own.append(notice) is not None


def stored_in_order(store: MemoryStore) -> list[Entry]:
    found = (decode_entry(store.objects[key]) for key in sorted(store.objects))
    return [entry for entry in found if entry is not None]


def test_a_run_that_was_never_created_takes_no_other_event() -> None:
    with pytest.raises(RunNotFound, match="holds no run"):
        ledger(MemoryStore()).append(lambda _: ev.StopRequested(by="test"))


# -- void entries ----------------------------------------------------------------------------------------------------


def _changed(entry: Entry, **changes: object) -> bytes:
    """As a writer of another mind would have sealed it."""
    return seal(json.dumps({**json.loads(entry_json(entry)), **changes}).encode())


def bodies() -> Iterable[tuple[str, Callable[[Entry], bytes]]]:
    """A body for the entry after the last that a writer of another mind may have sealed there."""
    yield "nothing", lambda entry: seal(b"{}")
    yield "no JSON", lambda entry: seal(b"{")
    yield "half of one", lambda entry: seal(entry_json(entry)[:-20])
    yield "not UTF-8", lambda entry: seal(b'{"writer":"\xff\xfe"}')
    yield "very deep", lambda entry: seal(b'{"a":' * 10_000)
    yield "an unknown field", lambda entry: _changed(entry, more=1)
    yield "an unknown event", lambda entry: _changed(entry, event={"type": "Party"})
    yield "a time without zone", lambda entry: _changed(entry, at="2026-01-01T00:00:00")
    yield "no nonce", lambda entry: _changed(entry, nonce=None)
    yield "of another run", lambda entry: _changed(entry, run="ffffffffff")
    created = json.loads(entry_json(History().entries[0]))["event"]
    yield "a second creation", lambda entry: _changed(entry, event=created)


@pytest.mark.parametrize(("what", "body"), list(bodies()), ids=lambda value: value if isinstance(value, str) else "")
def test_an_entry_that_is_none_is_named_and_has_no_effect(what: str, body: Callable[[Entry], bytes]) -> None:
    history = History()
    history.running()
    store, at = begun(history=history), history.state.next_number
    store.put_if_absent(key_of(at), body(history.entry(notice(history.state))))
    mine = ledger(store)
    state = mine.refresh()
    assert [void.number for void in state.voids] == [at]
    assert state.voids[0].reason
    assert state.next_number == at + 1
    assert (state.attempts, state.launches, state.commits) == (
        history.state.attempts,
        history.state.launches,
        history.state.commits,
    )
    entry = mine.append(notice)
    assert entry is not None
    assert entry.number == at + 1


@pytest.mark.parametrize("seconds", [1e300, 1e18, 1e10, 0.0, -1.0, -1e300])
def test_no_entry_can_keep_others_from_reading(seconds: float) -> None:
    """An instance's role may append: figures that no clock can hold must not break the fold of everybody."""
    history = History(budget_usd=Decimal(100))
    event = intended(now=history.now, usd="1", time_to_live_s=seconds)
    store = begun(history=history)
    store.put_if_absent(key_of(1), encode_entry(history.entry(event)))
    mine = ledger(store)
    assert [void.number for void in mine.refresh().voids] == [1]
    assert mine.append(lambda _: ev.StopRequested(by="test")) is not None
    assert ledger(store).refresh() == mine.state


def test_an_entry_larger_than_64_kb_is_refused_and_not_written() -> None:
    store = begun()
    mine, first = ledger(store), len(stored(store))
    with pytest.raises(SpotrunError, match="an entry may have at most 65,536"):
        mine.append(lambda _: ev.StopRequested(by="x" * 65_536))
    assert len(stored(store)) == first
    assert mine.append(lambda _: ev.StopRequested(by="x" * 60_000)) is not None


# -- speed -----------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_ten_thousand_entries_are_read_in_seconds(tmp_path: Path) -> None:
    history = History()
    history.running()
    history.step = 1
    history.put_into(LocalStore(tmp_path))
    commit = entry_json(history.entry(committed(history.attempt, "PREFIX", 1, history.now)))
    first = history.state.next_number
    for number in range(first, 10_000):
        data = commit.replace(b"PREFIX", b"%d" % number).replace(b'"number":%d' % first, b'"number":%d' % number, 1)
        (tmp_path / key_of(number)).write_bytes(seal(data))
    began = time.process_time()
    state = ledger(LocalStore(tmp_path)).refresh()
    took_s = time.process_time() - began
    print(f"cold fold of 10,000 entries, {len(state.commits):,} of them checkpoints: {took_s:.2f} s")
    assert (state.next_number, len(state.commits), len(state.voids)) == (10_000, 10_000 - first, 0)
    assert took_s < 9, "3 s is the promise; a slow machine may take longer"
