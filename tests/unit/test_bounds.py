"""What is read from a store has figures that can be reckoned with, or it is not read."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from spotrun.errors import BillUnexplained, SpotrunError
from spotrun.folder.ledger import Ledger, key_of
from spotrun.folder.status_objects import AgentStatus, RunnerStatus
from spotrun.run import events as ev
from spotrun.run.bounds import NESTED_MAX, NUMBER_MAX, SECONDS_MAX, OutOfBounds, decode
from spotrun.run.entry_bytes import decode_entry, entry_json, seal
from spotrun.run.events import Cause
from spotrun.store.local import LocalStore
from tests.batteries.mutated_store import KINDS, READS, RUN_UID, WRITES, MutatedStore
from tests.batteries.mutations import verbs_of
from tests.support.histories import History
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

SMALL = 2
"""Changes of each kind of object; `make battery NAME=mutations` makes a thousand."""


def running() -> History:
    history = History()
    history.running()
    history.after(10).commit()
    return history


def changed(history: History, at: int, /, **fields: Any) -> bytes:
    """An entry as it was written, with other figures, sealed anew."""
    entry = json.loads(entry_json(history.entries[at]))
    event = {name: value for name, value in fields.items() if name not in entry}
    outer = {name: value for name, value in fields.items() if name in entry}
    return seal(json.dumps({**entry, **outer, "event": {**entry["event"], **event}}).encode())


COMMIT = -1
ODD = [
    {"size_bytes": 10**400},
    {"size_bytes": NUMBER_MAX + 1},
    {"step": -1},
    {"epoch": 2**63},
    {"stall_s": SECONDS_MAX + 1},
    {"stall_s": -1},
    {"durable_s": float("nan")},
    {"durable_s": float("inf")},
    {"taken_at": "9999-12-31T23:59:59Z"},
    {"taken_at": "2019-12-31T23:59:59Z"},
    {"taken_at": "2026-03-01T12:00:00"},
    {"at": "2201-01-01T00:00:00Z"},
    {"at": "0001-01-01T00:00:00+23:59"},
    {"number": -1},
    {"metrics": {"loss": float("inf")}},
    {"files": {"key": "x", "blake3": "x", "files": 2**60}},
]


@pytest.mark.parametrize("fields", ODD, ids=lambda fields: f"{fields!s:.40}")
def test_entry_with_an_impossible_figure_is_void(fields: dict[str, Any]) -> None:
    history = running()
    assert decode_entry(changed(history, COMMIT)) is not None
    assert decode_entry(changed(history, COMMIT, **fields)) is None


def test_run_whose_time_hardly_passes_is_not_read() -> None:
    """Its end would lie beyond the last year that Python knows, for `prune` too."""
    history = running()
    assert decode_entry(changed(history, 0)) is not None
    assert decode_entry(changed(history, 0, time_scale=1e-300)) is None


def test_the_largest_figures_are_read() -> None:
    fields = {"size_bytes": NUMBER_MAX, "stall_s": SECONDS_MAX, "taken_at": "2200-12-31T23:59:59Z"}
    assert decode_entry(changed(running(), COMMIT, **fields)) is not None


def test_a_void_entry_does_not_keep_the_run_from_going_on() -> None:
    history, store = running(), MemoryStore()
    end = history.state.next_number
    history.put_into(store)
    store.put(key_of(end), seal(b'{"number":%d,"at":"9999-12-31T23:59:59Z"}' % end))
    ledger = Ledger(store, history.uid, "test", ManualClock(history.now + timedelta(seconds=1)))
    assert [void.number for void in ledger.refresh().voids] == [end]
    assert ledger.append(lambda _: ev.StopRequested(by="somebody")) is not None


def test_writer_refuses_an_entry_that_readers_would_refuse() -> None:
    history, store = running(), MemoryStore()
    history.put_into(store)
    ledger = Ledger(store, history.uid, "test", ManualClock(history.now))
    odd = ev.CheckpointFailed(attempt=history.attempt, step=NUMBER_MAX + 1, detail="")
    with pytest.raises(SpotrunError, match="out of bounds"):
        ledger.append(lambda _: odd)
    assert ledger.refresh().next_number == len(history.entries)


STATUS = {"launch": 1, "phase": "train", "at": "2026-03-01T12:00:00Z", "sequence": 1}
RUNNER = {"at": "2026-03-01T12:00:00Z", "pid": 1, "host": "x", "sequence": 1}


@pytest.mark.parametrize(
    ("kind", "whole", "odd"),
    [
        (AgentStatus, STATUS, {"step": 10**400}),
        (AgentStatus, STATUS, {"at": "9999-12-31T23:59:59Z"}),
        (AgentStatus, STATUS, {"at": "2026-03-01T12:00:00"}),
        (AgentStatus, STATUS, {"step_s": 1e300}),
        (AgentStatus, STATUS, {"launch": -1}),
        (RunnerStatus, RUNNER, {"pid": 2**63}),
        (RunnerStatus, RUNNER, {"pid": -1}),
    ],
)
def test_a_status_object_with_an_odd_figure_is_none(
    kind: type[AgentStatus | RunnerStatus], whole: dict[str, Any], odd: dict[str, Any]
) -> None:
    assert decode(json.dumps(whole).encode(), kind)
    with pytest.raises(OutOfBounds):
        decode(json.dumps({**whole, **odd}).encode(), kind)


def test_a_step_without_an_epoch_says_nothing_of_the_whole_training() -> None:
    status = decode(json.dumps({**STATUS, "step": 5, "epochs": 3, "batches": 10}).encode(), AgentStatus)
    assert status.steps_total is None


def test_too_deeply_nested_json_is_refused() -> None:
    for levels, read in ((NESTED_MAX - 1, True), (NESTED_MAX + 1, False), (900, False), (100_000, False)):
        data = b'{"a":' + b"[" * levels + b"]" * levels + b"}"
        if read:
            assert decode(data, dict[str, Any])
        else:
            with pytest.raises(OutOfBounds):
                decode(data, dict[str, Any])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MutatedStore]:
    with pytest.MonkeyPatch.context() as patch:
        yield MutatedStore(tmp_path_factory.mktemp("mutated"), patch)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_every_command_ends_with_a_figure_or_one_error_whatever_an_object_becomes(
    kind: str, store: MutatedStore
) -> None:
    flaws = [flaw for seed in range(SMALL) for flaw in store.trial(kind, seed, verbs_of(seed))]
    assert not flaws, "\n".join(flaws)


@pytest.mark.exhaustive
def test_every_command_works_on_the_whole_store(store: MutatedStore) -> None:
    """Otherwise the test above would show nothing."""
    for verb in (*READS, *WRITES):
        assert not [*store.flaws(verb, "nothing")], verb
        store.restore()
        code, _, err, _ = store.call(*verb.format(run="victim").split())
        assert code in (0, BillUnexplained.exit_code), (verb, err)  # its newest instance is not billed to the end yet
        store.restore()


def test_a_first_entry_that_names_another_run_fails_no_command_for_the_others(store: MutatedStore) -> None:
    first = next(path for path in store.objects if "victim" in str(path) and path.name == "00000000.json")
    body = json.loads(store.objects[first])
    del body["sha256"]
    first.write_bytes(seal(json.dumps({**body, "run": "ffffffffff"}).encode()))
    assert not [*store.flaws("status", "entry 0")]
    store.restore()


def test_a_run_whose_beginning_is_gone_still_ends_what_the_cloud_lists(store: MutatedStore) -> None:
    first = next(path for path in store.objects if "victim" in str(path) and path.name == "00000000.json")
    first.unlink()
    assert not [*store.flaws("down {run} -y", "entry 0")]
    assert not store.cloud.alive
    store.restore()


@pytest.mark.parametrize("name", ["younger", f"younger-{RUN_UID}"])
def test_a_folder_that_claims_the_uid_of_a_living_run_ends_nothing(name: str, store: MutatedStore) -> None:
    """Its run has failed, as it says: what the cloud lists under that uid would be wanted by nobody."""
    planted = LocalStore(store.folder / "runs" / name)
    history = History(name="younger", uid=RUN_UID)
    history.write(ev.RunFailed(cause=Cause.USER_ERROR, detail=""))
    history.put_into(planted)
    code, out, _, failure = store.call("reap", "-y")
    assert (code, failure) == (0, "")
    assert "there is no instance to end" in out
    assert store.cloud.alive
    store.restore()


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_hasty_threads")
def test_threads_may_be_the_first_to_read_a_kind_at_once() -> None:
    """msgspec 0.22 alone ends the process here, with a null pointer."""
    for _ in range(150):
        inner = msgspec.defstruct("Inner", [(f"field{n}", int | None, None) for n in range(20)])
        outer = msgspec.defstruct("Outer", [(f"field{n}", list[inner] | None, None) for n in range(20)])  # type: ignore[valid-type]
        with ThreadPoolExecutor(4) as pool:
            read = list(pool.map(lambda _, kind=outer: decode(b'{"field7": [{"field3": 3}]}', kind), range(4)))
        assert [each.field7[0].field3 for each in read] == [3] * 4


@pytest.fixture
def _hasty_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
