"""The ledger under races, lost answers and damage."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spotrun import events as ev
from spotrun.clock import ManualClock
from spotrun.errors import LedgerDamaged, SpotrunError
from spotrun.ledger import EntryRefused, Ledger, key_of
from spotrun.store import Store, open_store
from tests.histories import History
from tests.worlds import LossyStore, MemoryStore

UID = "0123456789"
APPEND = """
import sys
from spotrun import events as ev
from spotrun.clock import system_clock
from spotrun.ledger import Ledger
from spotrun.store import open_store
ledger = Ledger(open_store(sys.argv[1]), "0123456789", sys.argv[2], system_clock())
sys.stdin.readline()
for n in range(5):
    ledger.append(lambda _: ev.StopRequested(by=f"{sys.argv[2]}-{n}"))
"""


def filled(store: Store, history: History) -> Store:
    for entry in history.entries:
        store.put(key_of(entry.number), ev.encode_entry(entry))
    return store


def ledger_over(store: Store, writer: str = "test") -> Ledger:
    return Ledger(store, UID, writer, ManualClock(), retry_for_s=30)


def test_sixteen_processes_append_and_nothing_is_lost(tmp_path: Path) -> None:
    store = filled(open_store(str(tmp_path)), History())
    command = [sys.executable, "-c", APPEND, str(tmp_path)]
    writers = [subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, text=True) for n in range(16)]
    for writer in writers:
        writer.communicate("go\n", timeout=120)
    ledger = ledger_over(store)
    ledger.refresh()
    told = [entry.event.by for entry in ledger.entries if isinstance(entry.event, ev.StopRequested)]
    assert sorted(told) == sorted(f"{writer}-{n}" for writer in range(16) for n in range(5))
    assert [entry.number for entry in ledger.entries] == list(range(81))
    for writer in range(16):
        own = [name for name in told if name.startswith(f"{writer}-")]
        assert own == sorted(own), "a writer's own entries are in its order"


@pytest.mark.parametrize("seed", range(20))
def test_over_a_bad_line_each_event_is_written_exactly_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    dice = random.Random(seed)
    store = filled(MemoryStore(), History())
    fates = ("ok", "answer lost", "lost", "denied")
    ledgers = [ledger_over(LossyStore(store, lambda: dice.choice(fates)), f"w{n}") for n in range(3)]
    wanted = [f"event-{n}" for n in range(30)]
    for name in wanted:
        dice.choice(ledgers).append(lambda _, name=name: ev.StopRequested(by=name))
    reader = ledger_over(store)
    reader.refresh()
    assert [entry.event.by for entry in reader.entries if isinstance(entry.event, ev.StopRequested)] == wanted
    assert {ledger.refresh().next_number for ledger in ledgers} == {31}
    assert all(ledger.state == reader.state for ledger in ledgers)


def test_a_missing_entry_below_a_listed_one_is_damage_and_nobody_appends() -> None:
    history = History()
    history.running()
    store = filled(MemoryStore(), history)
    warm = ledger_over(MemoryStore())
    warm._store = store  # type: ignore[attr-defined]
    store.delete(key_of(2))
    warm_before = dict(store.objects)  # type: ignore[attr-defined]
    for ledger in (ledger_over(store), warm):
        with pytest.raises(LedgerDamaged, match="entry 2 is missing"):
            ledger.append(lambda _: ev.StopRequested(by="me"))
    assert store.objects == warm_before  # type: ignore[attr-defined]


def test_a_reader_that_stands_at_the_gap_does_not_fill_it() -> None:
    history = History()
    store = filled(MemoryStore(), history)
    ledger = ledger_over(store)
    ledger.refresh()
    history.launch()
    history.close(1)
    store.put(key_of(2), ev.encode_entry(history.entries[2]))
    with pytest.raises(LedgerDamaged):
        ledger.append(lambda _: ev.StopRequested(by="me"))
    assert [stored.key for stored in store.list("ledger/")] == [key_of(0), key_of(2)]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"\xff\xfe", b'{"number":1}', b"[" * 100_000, b'{"number":1,"event":{"type":"Nonsense"}}'],
)
def test_a_malformed_entry_holds_its_number_and_means_nothing(body: bytes) -> None:
    store = filled(MemoryStore(), History())
    store.put(key_of(1), body)
    ledger = ledger_over(store)
    state = ledger.refresh()
    assert state.next_number == 2
    assert [void.number for void in state.voids] == [1]
    ledger.append(lambda _: ev.StopRequested(by="me"))
    assert ledger.state.stop_requested


def test_an_entry_of_another_run_or_under_a_wrong_number_is_void() -> None:
    foreign = History(uid="ffffffffff")
    foreign.launch()
    store = filled(MemoryStore(), History())
    store.put(key_of(1), ev.encode_entry(foreign.entries[1]))
    store.put(key_of(2), ev.encode_entry(foreign.entries[1]))
    state = ledger_over(store).refresh()
    assert [void.number for void in state.voids] == [1, 2]
    assert not state.launches


def test_a_fenced_attempt_commits_nothing() -> None:
    history = History()
    history.running()
    old = history.attempt
    store = filled(MemoryStore(), history)
    zombie = ledger_over(store)
    zombie.refresh()
    standby = history.launch()
    history.start(standby)
    filled(store, history)
    commit = ev.EpochCompleted(attempt=old, epoch=0, step=1, ended_at=history.now)
    before = len(store.list("ledger/"))
    with pytest.raises(EntryRefused, match="not the current one"):
        zombie.append(lambda _: commit)
    assert len(store.list("ledger/")) == before


def test_an_entry_that_is_too_large_is_refused() -> None:
    ledger = ledger_over(filled(MemoryStore(), History()))
    with pytest.raises(SpotrunError, match="an entry may have"):
        ledger.append(lambda _: ev.StopRequested(by="x" * 70_000))


def test_ten_thousand_entries_are_read_in_seconds(tmp_path: Path) -> None:
    history = History()
    history.running()
    started = len(history.entries)
    history.commit()
    template = history.entries[-1]
    folder = tmp_path / "ledger"
    filled(open_store(str(tmp_path)), history)
    for number in range(started + 1, 10_000):
        event = template.event
        assert isinstance(event, ev.CheckpointCommitted)
        body = ev.encode_entry(template).replace(b'"number":%d' % started, b'"number":%d' % number)
        unique = body.replace(event.prefix.encode(), f"checkpoints/{number}".encode())
        (folder / f"{number:08d}.json").write_bytes(unique)
    began = time.perf_counter()
    state = ledger_over(open_store(str(tmp_path))).refresh()
    took_s = time.perf_counter() - began
    print(f"10,000 entries folded cold in {took_s:.2f} s")
    assert len(state.commits) == 10_000 - started
    assert not state.voids
