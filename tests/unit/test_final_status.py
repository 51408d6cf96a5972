"""What a runner leaves of a run that has ended: `spotrun status` reads it instead of the ledger, if it fits."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spotrun.account.summary import summarise
from spotrun.checkpoint.pruning import prune
from spotrun.cli.app import app
from spotrun.errors import ObjectMissing
from spotrun.folder.final_status import KEY, final_status, read_final_status, run_status, write_final_status
from spotrun.folder.ledger import Ledger, key_of
from spotrun.instance import EndedBy
from spotrun.run import events as ev
from spotrun.run.entry_bytes import seal, unsealed
from spotrun.runs import open_run as runs
from spotrun.runs import status_rows
from spotrun.store.local import LocalStore
from spotrun.store.port import Store, StoredObject
from tests.support.decisions import spec
from tests.support.histories import ON_DEMAND, History
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.played_run import PlayedRun


def ended(uid: str = "0123456789", **created: Any) -> History:
    """A run that was interrupted, went on on demand, and is complete; nothing of it is left."""
    history = History(uid=uid, spec=spec().to_dict(), **created)
    first = history.running()
    history.step = 30
    history.after(600).commit()
    history.after(60).gone(first)
    last = history.after(30).running(ON_DEMAND, "3.60")
    history.step = 60
    history.after(600).completed(history.commit())
    history.after(20).gone(last, EndedBy.ITSELF)
    return history


def put(store: Store, history: History) -> Ledger:
    """A ledger of these entries, read to its end."""
    history.put_into(store)
    ledger = Ledger(store, history.uid, "test", ManualClock(history.now + timedelta(hours=1)))
    ledger.refresh()
    return ledger


class Counted:
    """A store, or the part of one below a folder, that counts what is read through it."""

    def __init__(self, store: Store, folder: str, reads: Counter[str]) -> None:
        self._store, self._folder, self._reads = store, folder, reads
        self.uri = f"counted/{folder}".rstrip("/")

    def get(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        self._reads[self._folder] += 1
        return self._store.get(self._folder + key, start, size)

    def list(self, prefix: str, after: str = "") -> list[StoredObject]:
        found = self._store.list(self._folder + prefix, self._folder + after if after else "")
        strip = len(self._folder)
        return [StoredObject(key=o.key[strip:], size_bytes=o.size_bytes, modified_at=o.modified_at) for o in found]

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._store.put_if_absent(self._folder + key, data)

    def put_status(self, key: str, data: bytes) -> None:
        self._store.put_status(self._folder + key, data)

    def folders(self) -> tuple[str, ...]:
        return self._store.folders()

    def put(self, key: str, data: bytes | memoryview) -> bool:
        return self._store.put(self._folder + key, data)

    def delete(self, key: str) -> None:
        self._store.delete(self._folder + key)


@pytest.fixture(params=["memory", "local folder"])
def shelf(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Callable[[str], Store], Counter[str]]:
    """How to open a store of runs or a run in it, and the objects that were read of each run since."""
    whole: Store = MemoryStore() if request.param == "memory" else LocalStore(tmp_path)
    reads: Counter[str] = Counter()

    def opened(uri: str) -> Counted:
        name = uri.removeprefix("counted").strip("/")
        return Counted(whole, f"{name}/" if name else "", reads)

    monkeypatch.setattr(runs, "open_store", opened)
    return opened, reads


def rows() -> list[dict[str, Any]]:
    found = json.loads(CliRunner().invoke(app, ["status", "--json"], env={"SPOTRUN_STORE": "counted"}).stdout)
    return sorted(found, key=lambda row: row["run"])


Shelf = tuple[Callable[[str], Store], Counter[str]]


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [20, pytest.param(150, marks=pytest.mark.nightly)])
def test_status_of_many_ended_runs_reads_three_objects_of_each(shelf: Shelf, count: int) -> None:
    opened, reads = shelf
    for number in range(count):
        history = ended(f"{number:010d}")
        store = opened(f"counted/demo-{history.uid}")
        put(store, history)
        ledger = Ledger(store, history.uid, "test", ManualClock(history.now))
        ledger.refresh()
        write_final_status(store, ledger)
    reads.clear()
    shown = rows()
    assert len(shown) == count
    assert set(reads.values()) == {3}
    assert {row["state"] for row in shown} == {"completed"}


def test_row_of_an_ended_run_is_read_again_only_after_a_minute(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, reads = shelf
    history = ended()
    store = opened(f"counted/demo-{history.uid}")
    write_final_status(store, put(store, history))
    run, made = runs.OpenRun(store.uri, "test"), status_rows.StatusRows()
    first = made.of([run])
    reads.clear()
    assert (made.of([run]), reads.total()) == (first, 0)
    monkeypatch.setattr(status_rows, "FINAL_FOR_S", 0.0)
    assert (made.of([run]), reads.total()) == (first, 2)


@pytest.mark.parametrize("budget", [None, "400"])
def test_status_says_the_same_with_it_and_without(shelf: Shelf, budget: str | None) -> None:
    opened, _ = shelf
    history = ended(budget_usd=None if budget is None else Decimal(budget))
    store = opened(f"counted/demo-{history.uid}")
    ledger = put(store, history)
    without = rows()
    write_final_status(store, ledger)
    later = history.now + timedelta(days=9)
    by_the_ledger = run_status(history.state, summarise(history.state, later), later)
    assert read_final_status(store, history.state.created) == final_status(history.state) == by_the_ledger
    assert rows() == without
    assert float(without[0]["cost_usd"]) > 0
    assert without[0]["interruptions"] == 1


def changed(**fields: object) -> Callable[[bytes], bytes]:
    return lambda data: seal(json.dumps({**json.loads(unsealed(data) or b""), **fields}).encode())


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"\xff" * 100,
        lambda data: data[:-10],
        lambda data: data.replace(b'"interruptions":1', b'"interruptions":7'),
        lambda data: seal(b'{"version":1}'),
        changed(run="ffffffffff"),
        changed(version=0),
        changed(listed_sha256="0" * 64),
        changed(sha256="0" * 64),
        lambda data: seal((unsealed(data) or b"").replace(b'"cost_usd":"', b'"cost_usd":"NaN')),
        lambda data: seal(re.sub(rb'"cost_usd":"[^"]*"', b'"cost_usd":"NaN"', unsealed(data) or b"")),
    ],
)
def test_one_that_does_not_fit_the_ledger_is_ignored(damage: Callable[[bytes], bytes], shelf: Shelf) -> None:
    opened, _ = shelf
    history = ended()
    store = opened(f"counted/demo-{history.uid}")
    ledger = put(store, history)
    truth = rows()
    write_final_status(store, ledger)
    store.put_status(KEY, damage(store.get(KEY)))
    assert read_final_status(store, history.state.created) is None
    assert rows() == truth


@pytest.mark.parametrize("key", [KEY, key_of(1)])
def test_an_object_that_cannot_be_read_hides_no_other_run(key: str, tmp_path: Path) -> None:
    for uid in ("0123456789", "1123456789"):
        history = ended(uid)
        store = LocalStore(tmp_path / f"demo-{uid}")
        write_final_status(store, put(store, history))
    (tmp_path / f"demo-{uid}" / KEY).unlink()
    (tmp_path / f"demo-{uid}" / key).unlink(missing_ok=True)
    (tmp_path / f"demo-{uid}" / key).mkdir()
    found = json.loads(CliRunner().invoke(app, ["status", "--json", "--store", str(tmp_path)]).stdout)
    states = {row["run"]: row["state"] for row in found}
    assert states == {"demo-0123456789": "completed", "demo-1123456789": "completed" if key == KEY else "unreadable"}


def test_a_run_that_was_resumed_is_shown_as_it_is_now(shelf: Shelf) -> None:
    opened, _ = shelf
    history = History(spec=spec().to_dict())
    history.write(ev.RunFailed(cause=ev.Cause.QUOTA, detail="none left"))
    store = opened(f"counted/demo-{history.uid}")
    ledger = put(store, history)
    write_final_status(store, ledger)
    assert rows()[0]["state"] == "failed"
    ledger.append(lambda _: ev.ResumeRequested(by="test"))
    assert rows()[0]["state"] == "created"


@pytest.mark.parametrize("left", [None, lambda data: data[:-9], lambda data: data.replace(b"0.36", b"0.63")])
def test_an_entry_that_is_missing_cut_or_changed_is_seen_all_the_same(
    left: Callable[[bytes], bytes] | None, shelf: Shelf
) -> None:
    opened, _ = shelf
    history = ended()
    store = opened(f"counted/demo-{history.uid}")
    write_final_status(store, put(store, history))
    assert read_final_status(store, history.state.created) is not None
    whole = store.get(key_of(2))
    store.delete(key_of(2))
    if left is not None:
        assert left(whole) != whole
        store.put(key_of(2), left(whole))
    assert rows()[0]["state"] == "damaged"


def test_none_is_written_while_a_figure_may_still_change() -> None:
    history = ended()
    for entries in (history.entries[:-1], history.entries[:-2]):
        store, begun = MemoryStore(), History()
        begun.entries = entries
        write_final_status(store, put(store, begun))
        with pytest.raises(ObjectMissing):
            store.get(KEY)


def test_a_command_stores_nothing_only_when_it_has_begun() -> None:
    """A script may still be importing its modules, and train later."""
    history = History(spec=spec(train={"run": "python train.py"}).to_dict())
    launch = history.launch()
    history.after(10).record(launch)
    history.after(25).start(launch, history.now)
    history.resume()
    states = [history.state]
    history.write(ev.TrainingStarted(attempt=history.attempt, incarnation=0, step=0, began_at=history.now))
    states.append(history.state)
    told = [run_status(state, summarise(state, history.now), history.now).keeps_nothing for state in states]
    assert told == [False, True]


def test_a_runner_leaves_one_when_nothing_of_the_run_is_left_running() -> None:
    played = PlayedRun()
    runner = played.runner()
    while not (tick := runner.tick()).done:
        assert KEY not in played.store.objects
        played.turn()
    assert read_final_status(played.store, tick.state.created) == final_status(tick.state)


def test_pruning_an_ended_run_renews_it() -> None:
    history, store = ended(), MemoryStore()
    ledger = put(store, history)
    write_final_status(store, ledger)
    prune(ledger, store, spec(checkpoint={"keep_last": 1}).checkpoint)
    assert ledger.state.next_number > history.state.next_number
    assert read_final_status(store, history.state.created) == final_status(ledger.state)
