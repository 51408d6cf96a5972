"""A node that writes entries faster than anybody reads them keeps nobody from reading, and no instance from ending."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotrun.errors import LedgerFlooded, ObjectMissing
from spotrun.folder import ledger
from spotrun.folder.ledger import Ledger, key_of
from spotrun.run import events as ev
from spotrun.run.entry_bytes import seal
from spotrun.runs import termination
from spotrun.runs.open_run import OpenRun
from spotrun.store.local import LocalStore
from spotrun.store.port import StoredObject
from tests.support.called_spotrun import Spotrun
from tests.support.decisions import spec
from tests.support.histories import History
from tests.support.manual_clock import ManualClock
from tests.support.stored_runs import store_run

AHEAD = 40
"""Entries that the node has written whenever somebody lists."""
JUNK = seal(b"{}")


class Flood:
    """While it `goes_on`, each entry that somebody asks for is there, and each listing has more than the one before."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.goes_on = True
        get, list_it = LocalStore.get, LocalStore.list

        def flooded_get(store: LocalStore, key: str, start: int = 0, size: int | None = None) -> bytes:
            try:
                return get(store, key, start, size)
            except ObjectMissing:
                if not (self.goes_on and key.startswith(ledger.FOLDER)):
                    raise
            put(store, key)
            return get(store, key, start, size)

        def flooded_list(store: LocalStore, prefix: str, after: str = "") -> list[StoredObject]:
            if self.goes_on and prefix == ledger.FOLDER:
                number = len(list_it(store, prefix))
                for more in range(number, number + AHEAD):
                    put(store, key_of(more))
            return list_it(store, prefix, after)

        patch.setattr(LocalStore, "get", flooded_get)
        patch.setattr(LocalStore, "list", flooded_list)


def put(store: LocalStore, key: str) -> None:
    """As a node does that waits for no disk."""
    path = Path(store.uri) / key
    if not path.exists():
        path.write_bytes(JUNK)


class Trains:
    """A run that trains, in the store below `folder`; `ledger` is a newcomer's view of it."""

    def __init__(self, folder: Path, uid: str = "0123456789") -> None:
        self.history = History(uid=uid, spec=spec().to_dict())
        self.history.running()
        self.store = LocalStore(store_run(folder, self.history))

    def ledger(self) -> Ledger:
        return Ledger(self.store, self.history.uid, "test", ManualClock(self.history.now), 0)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trains:
    monkeypatch.setenv("SPOTRUN_STORE", str(tmp_path / "runs"))
    monkeypatch.setenv("SPOTRUN_LOCAL_CLOUD", str(tmp_path / "cloud"))
    monkeypatch.setattr(ledger, "RACE_FOR_S", 0.05)
    return Trains(tmp_path / "runs")


def test_a_reader_comes_to_an_end_with_what_was_there_when_it_began(
    run: Trains, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = run.ledger()
    Flood(monkeypatch)
    for _ in range(3):
        there = len(list((Path(run.store.uri) / ledger.FOLDER).iterdir()))
        assert opened.refresh().next_number >= there
    assert opened.state.launches.keys() == run.history.state.launches.keys()
    assert len(opened.state.voids) >= AHEAD


def test_an_append_is_given_up_if_others_always_come_first(run: Trains, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, flood = run.ledger(), Flood(monkeypatch)
    with pytest.raises(LedgerFlooded, match="other programs always wrote the next entry first") as caught:
        opened.append(lambda _: ev.StopRequested(by="test"))
    assert f"`spotrun down {run.store.uri}`" in str(caught.value.hint)
    assert not opened.state.stop_requested
    flood.goes_on = False
    assert opened.append(lambda _: ev.StopRequested(by="test")) is not None


def test_more_entries_than_any_run_has_are_neither_read_nor_written(
    run: Trains, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, number = run.ledger(), run.history.state.next_number
    monkeypatch.setattr(ledger, "ENTRIES_MAX", number)
    assert opened.refresh() == run.history.state
    with pytest.raises(LedgerFlooded, match=f"no more than {number} entries"):
        opened.append(lambda _: ev.StopRequested(by="test"))
    put(run.store, key_of(number))
    with pytest.raises(LedgerFlooded, match=f"no more than {number} entries"):
        run.ledger().refresh()


# -- at the door -----------------------------------------------------------------------------------------------------


def test_commands_that_look_show_a_flooded_run(run: Trains, monkeypatch: pytest.MonkeyPatch, spotrun: Spotrun) -> None:
    Flood(monkeypatch)
    assert [row["run"] for row in spotrun("status", "--json").json] == ["demo-0123456789"]
    assert spotrun("events", "demo").code == 0


def test_status_names_a_run_of_too_many_entries_and_shows_the_others(
    run: Trains, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spotrun: Spotrun
) -> None:
    Trains(tmp_path / "runs", "1123456789")
    monkeypatch.setattr(ledger, "ENTRIES_MAX", run.history.state.next_number)
    put(run.store, key_of(run.history.state.next_number))
    states = {row["run"]: row["state"] for row in spotrun("status", "--json").json}
    assert states == {"demo-0123456789": "flooded", "demo-1123456789": "training"}


@pytest.mark.parametrize("endless", [False, True])
def test_down_ends_the_instances_before_it_asks_again(
    endless: bool, run: Trains, monkeypatch: pytest.MonkeyPatch, spotrun: Spotrun
) -> None:
    """A node writes as long as it lives, and whoever has stolen its rights a little longer."""
    flood, end_instances, ended = Flood(monkeypatch), termination.end_instances, []

    def end(opened: OpenRun) -> list[str]:
        ended.append(opened.id)
        flood.goes_on = endless
        return end_instances(opened)

    monkeypatch.setattr(termination, "end_instances", end)
    monkeypatch.setattr(termination, "DOWN_WITHIN_S", 0.0)
    said = spotrun("down", run.history.uid, "-y")
    assert ended
    assert said.code == (LedgerFlooded.exit_code if endless else 7)
    assert "other programs always wrote the next entry first" in said.err
    flood.goes_on = False
    assert run.ledger().refresh().stop_requested is not endless
