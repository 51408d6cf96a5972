"""Who may say what in a ledger (protocol 31): an instance speaks for its own attempt, and never for the owner."""

from __future__ import annotations

import hashlib
import re
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from spotrun.errors import LedgerDamaged
from spotrun.folder import keys
from spotrun.folder.keys import KeyMissing
from spotrun.folder.ledger import FORGED, EntryRefused, Ledger, key_of
from spotrun.run import entry_bytes
from spotrun.run import events as ev
from spotrun.run.entry_bytes import encode_entry, entry_json, parted, seal, signed
from spotrun.run.owners import OF_OWNER, is_of_owner
from spotrun.runner.runner import Runner
from spotrun.store.local import LocalStore
from spotrun.store.port import Store
from tests.batteries.attacked_world import AttackedWorld
from tests.batteries.planted_world import PlantedWorld
from tests.support.called_spotrun import Spotrun
from tests.support.decisions import spec
from tests.support.histories import START, History
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.owners_key import OwnersKey
from tests.support.repository import ROOT
from tests.support.world.cloud import SimulatedCloud
from tests.support.world.market import CalmMarket
from tests.support.world.timings import Timings
from tests.support.worlds import MARKET

OWNER = OwnersKey()


class Owned:
    """A run that trains, with a key; `ledger` is the owner's view of it, and `node` an instance's."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or MemoryStore(ManualClock(START))
        self.history = History(public_key=OWNER.public, spec=spec().to_dict())
        self.history.running()
        for entry in self.history.entries:
            self.store.put_if_absent(key_of(entry.number), encode_entry(entry, self._signs(entry)))
        self.ledger, self.node = self._opened(OWNER), self._opened(None)
        self.ledger.refresh()

    def _signs(self, entry: ev.Entry) -> entry_bytes.Sign | None:
        return OWNER if is_of_owner(entry.event) else None

    def _opened(self, sign: entry_bytes.Sign | None) -> Ledger:
        return Ledger(self.store, self.history.uid, "test", ManualClock(self.history.now), 0, sign=sign)

    def put(self, data: bytes) -> str:
        """Put an object at the end of the ledger; why its entry is void, or "" if it counts."""
        number = self.ledger.refresh().next_number
        assert self.store.put_if_absent(key_of(number), data)
        voids = self.ledger.refresh().voids
        return voids[-1].reason if len(voids) and voids[-1].number == number else ""


def test_a_run_reads_alike_with_and_without_the_key() -> None:
    run = Owned()
    assert run.ledger.state == run.node.refresh() == run.history.state
    assert not run.ledger.state.voids


def test_unsigned_stop_stops_nothing() -> None:
    run = Owned()
    assert run.put(encode_entry(run.history.entry(ev.StopRequested(by="the training")))) == FORGED
    assert not run.ledger.state.stop_requested
    assert run.ledger.state.voids[-1].kind == "StopRequested"
    assert run.node.refresh() == run.ledger.state, "the agent believes what its runner does not"


def test_status_and_a_runner_say_how_many_entries_are_forged(tmp_path: Path, spotrun: Spotrun) -> None:
    run = Owned(LocalStore(tmp_path / "demo-0123456789"))
    assert "forged" not in spotrun("status", "--store", tmp_path).out
    for number in (6, 7):
        stop = replace(run.history.entry(ev.StopRequested(by="the training")), number=number)
        assert run.put(encode_entry(stop)) == FORGED
    said = " ".join(spotrun("status", "--store", tmp_path).out.split())
    assert "demo-0123456789: 2 entries are forged and have no effect: see `spotrun events demo-0123456789`" in said
    assert spotrun("status", "--json", "--store", tmp_path).json[0]["forged"] == 2
    assert spotrun("events", "demo", "--store", tmp_path).out.count(FORGED) == 2
    clock = ManualClock(run.history.now)
    runner = Runner(run.ledger, run.store, SimulatedCloud(clock, CalmMarket(MARKET), Timings()), clock, spec(), "uri")
    assert "2 entries are forged" in (runner.tick().remark or "")


def test_a_signature_is_of_one_entry_of_one_run_under_one_number() -> None:
    run = Owned()
    stop = run.history.entry(ev.StopRequested(by="the owner"))
    bodies = {
        "another run's key": signed(entry_json(stop), OwnersKey(1)(entry_json(stop))),
        "another event": signed(entry_json(stop), OWNER(entry_json(replace(stop, nonce="other")))),
        "no hexadecimal": signed(entry_json(stop), "z" * 128),
    }
    for number, (name, body) in enumerate(bodies.items()):
        moved = entry_json(replace(stop, number=stop.number + number))
        data = seal(signed(moved, parted(seal(body))[0]))
        assert run.put(data) == FORGED, name
    other = replace(stop, number=run.ledger.state.next_number, run="ffffffffff")
    assert run.put(encode_entry(other, OWNER)) == "the entry belongs to another run"
    right = replace(stop, number=run.ledger.state.next_number)
    assert run.put(encode_entry(right, OWNER)) == ""
    assert run.ledger.state.stop_requested


class Created:
    """A run that this version creates, whose owner stops and resumes it twice."""

    def __init__(self) -> None:
        self.store = MemoryStore(ManualClock(START))
        (first,) = History(public_key=OWNER.public, spec=spec().to_dict()).entries
        assert isinstance(first.event, ev.RunCreated)
        self.owner, self.node = self.opened(OWNER), self.opened(None)
        self.owner.create(first.event)
        for _ in range(2):
            self.owner.append(lambda _: ev.StopRequested(by="the owner"))
            self.owner.append(lambda _: ev.ResumeRequested(by="the owner"))

    def opened(self, sign: entry_bytes.Sign | None) -> Ledger:
        return Ledger(self.store, "0123456789", "test", ManualClock(START), 0, sign=sign)

    def replace_entry(self, number: int, data: bytes) -> None:
        self.store.delete(key_of(number))
        assert self.store.put_if_absent(key_of(number), data)


def test_owners_entry_signs_all_entries_before_it() -> None:
    run = Created()
    assert run.node.refresh() == run.owner.state
    assert not run.node.state.voids
    histories = [""]
    for number in range(5):
        histories.append(hashlib.sha256(histories[-1].encode() + run.store.get(key_of(number))).hexdigest())
    assert [entry.history for entry in run.node.entries] == histories[:-1]
    assert run.node.history_sha256 == run.owner.history_sha256 == histories[-1]


@pytest.mark.parametrize(("number", "signed_next"), [(1, 3), (3, 6)])
def test_signed_entry_does_not_move_to_another_history(number: int, signed_next: int) -> None:
    """Where objects can be deleted: a stop is taken out, and what an agent and the owner wrote after it stays."""
    run = Created()
    void = ev.NoticesUnseen(attempt=1, detail="of no attempt")
    entry = ev.Entry(number=5, run="0123456789", nonce="n", at=START, writer="agent", event=void)
    assert run.store.put_if_absent(key_of(5), encode_entry(entry))
    run.owner.append(lambda _: ev.StopRequested(by="the owner"))
    assert run.opened(None).refresh().stop_requested
    for replaced in (number, number + 1):
        run.replace_entry(replaced, encode_entry(replace(entry, number=replaced)))
    for sign in (None, OWNER):
        with pytest.raises(LedgerDamaged, match=f"not those after which the owner signed entry {signed_next}"):
            run.opened(sign).refresh()


def test_run_of_an_earlier_version_goes_on_without_the_digest_of_its_history() -> None:
    """The agents of such a run are of its version, and know no entry with this field."""
    run = Owned()
    run.ledger.append(lambda _: ev.StopRequested(by="the owner"))
    assert run.node.refresh().stop_requested
    assert all(entry.history is UNSET for entry in run.node.entries)
    assert b"history" not in run.store.get(key_of(run.node.state.next_number - 1))


def test_a_signature_cut_short_is_no_entry() -> None:
    run = Owned()
    stop = entry_json(run.history.entry(ev.StopRequested(by="the owner")))
    assert run.put(seal(b'{"signature":"00",' + stop[1:])) == "not a well-formed entry"


def test_an_agent_cannot_append_what_is_the_owners() -> None:
    run = Owned()
    with pytest.raises(EntryRefused, match="only the owner"):
        run.node.append(lambda _: ev.StopRequested(by="an agent"))
    attempt = run.node.state.current_attempt
    assert attempt is not None
    assert run.node.append(lambda _: ev.NoticesUnseen(attempt=attempt, detail="none")) is not None
    assert run.ledger.append(lambda _: ev.DrainRequested(attempt=attempt, reason="by the owner")) is not None
    assert run.node.refresh().current is not None
    assert run.node.state == run.ledger.state


def test_a_run_without_a_key_is_read_as_before() -> None:
    store, history = MemoryStore(ManualClock(START)), History(ledger_version=ev.OLD_LEDGER_VERSION)
    store.put_if_absent(key_of(0), encode_entry(history.entries[0]))
    ledger = Ledger(store, history.uid, "test", ManualClock(START), 0)
    assert ledger.append(lambda _: ev.StopRequested(by="anybody")) is not None
    assert ledger.refresh().stop_requested


def test_key_lies_next_to_the_runs_and_is_read_when_it_signs() -> None:
    runs = MemoryStore(ManualClock(START))
    public = keys.make(runs, "0123456789")
    assert list(runs.objects) == [f"keys/0123456789-{public}"]
    sign = keys.OwnersKey(lambda: runs, "0123456789", public)
    assert keys.is_signed(public, sign(b"{}"), b"{}")
    assert not keys.is_signed(public, sign(b"{}"), b"{ }")
    runs.objects.clear()
    assert keys.is_signed(public, sign(b"{}"), b"{}"), "it is read once"


def test_a_run_of_an_earlier_version_signs_with_the_key_under_its_uid() -> None:
    runs = MemoryStore(ManualClock(START))
    public = keys.make(runs, "0123456789")
    runs.objects["keys/0123456789"] = runs.objects.pop(f"keys/0123456789-{public}")
    assert keys.is_signed(public, keys.OwnersKey(lambda: runs, "0123456789", public)(b"{}"), b"{}")


def test_each_creation_has_a_key_of_its_own_and_all_are_removed_with_the_run() -> None:
    runs = MemoryStore(ManualClock(START))
    runs.put("keys/0123456789", b"of an earlier version")
    assert keys.make(runs, "0123456789") != keys.make(runs, "0123456789")
    other = keys.make(runs, "0123456789a")
    keys.remove(runs, "0123456789")
    assert list(runs.objects) == [f"keys/0123456789a-{other}"]


@pytest.mark.parametrize("data", [None, b"", b"00", b"\xff" * 64, b"0" * 64])
@pytest.mark.parametrize("name", ["keys/0123456789-{}", "keys/0123456789"])
def test_a_key_that_is_not_the_runs_signs_nothing(name: str, data: bytes | None) -> None:
    runs = MemoryStore(ManualClock(START))
    public = keys.make(runs, "0123456789")
    runs.objects.clear()
    if data is not None:
        runs.put(name.format(public), data)
    with pytest.raises(KeyMissing, match="keys/0123456789"):
        keys.OwnersKey(lambda: runs, "0123456789", public)(b"{}")


def test_the_owners_events_are_those_of_protocol_md() -> None:
    text = (ROOT / "docs/design/protocol.md").read_text()
    rows = re.findall(r"^\| (command line|any runner) \| (.+?) \|", text, re.MULTILINE)
    named = {name for _, cell in rows for name in re.findall(r"`(\w+)`", cell)}
    assert named - {"RunCreated"} == {event.__name__ for event in OF_OWNER}
    retired = ev.CheckpointRetired(attempt=None, commit=1)
    assert is_of_owner(retired)
    assert not is_of_owner(replace(retired, attempt=1))


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(6, 12))])
def test_a_node_that_was_taken_over_neither_spends_nor_ends_nor_undoes(seed: int) -> None:
    """`make battery NAME=attacks` does this for 10,000 seeds."""
    AttackedWorld(seed).attack()


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, 3, 4, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (0, 2, 5))])
def test_a_member_of_a_gang_that_was_taken_over_neither_spends_nor_ends_nor_undoes(seed: int) -> None:
    AttackedWorld(seed, budget_usd=Decimal(18), size=3).attack()


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", [1, 3, 6, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (0, 4, 32))])
def test_writer_of_the_store_rents_runs_ends_and_silences_nothing(
    seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`make battery NAME=attacks` does this for 10,000 seeds."""
    PlantedWorld(monkeypatch, tmp_path, seed).live()


def test_the_attack_is_real() -> None:
    """In a run without a key the same entries are believed."""
    world = AttackedWorld(2, owned=False)
    with pytest.raises(AssertionError):
        world.attack()


def test_a_budget_outlives_the_attack() -> None:
    world = AttackedWorld(3, budget_usd=Decimal(2))
    world.attack()
    assert world.charged_usd <= Decimal(2)
