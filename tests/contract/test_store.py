"""What every store must do, shown on a real server of each kind. A new store adds a name here, and nothing else."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spotrun.errors import ObjectMissing, StoreError, StoreUnavailable
from spotrun.store.http import BucketStore, crc32c
from spotrun.store.local import LocalStore
from spotrun.store.opening import open_store
from spotrun.store.port import CopiesItself, InPieces, ReportsForeignNames, Store
from spotrun.store.request_counts import RequestCounts, asked
from spotrun.store.retrying import persist
from tests.support.fault_proxy import FaultProxy, Request
from tests.support.memory_store import MemoryStore
from tests.support.object_stores import RunningServer
from tests.support.world.faults import LossyStore

WRITERS, KEYS = 16, 8
UNSAFE = ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/", ".hidden", "a/.tmp-1", "a b", "a\n", "ü", "a\\b", "a\0b"]


Servers = Callable[[str], RunningServer]


@pytest.fixture(params=["memory", "far memory", "local folder", "s3", "gs"])
def store(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "memory":
        return MemoryStore()
    if request.param == "far memory":
        return LossyStore(MemoryStore(), lambda: "ok")
    return open_store(address(request.param, tmp_path, servers, monkeypatch))


def address(kind: str, tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of an empty store."""
    if kind == "local folder":
        return str(tmp_path / "run")
    servers(kind).reach(monkeypatch)
    return servers(kind).new_prefix()


def test_stored_object_is_read_back(store: Store) -> None:
    store.put("a/b-1/c.json", b"one")
    assert store.get("a/b-1/c.json") == b"one"
    store.put("a/b-1/c.json", memoryview(b"another"))
    assert store.get("a/b-1/c.json") == b"another"
    store.put_status("a/hint", b"")
    assert store.get("a/hint") == b""


@pytest.mark.parametrize("name", ["logs/a b", "logs/\x1b[2J", "logs/.a", "logs/ü"])
def test_object_whose_name_is_no_key_is_not_listed(store: Store, name: str) -> None:
    """Training code may put it there, and a command that reads or deletes all that is listed would fail of it."""
    store.put("logs/a", b"1")
    put_under_any_name(store, name)
    if isinstance(store, ReportsForeignNames):
        assert store.strange_names("logs/") == [name]
    assert [each.key for each in store.list("")] == ["logs/a"]


def put_under_any_name(store: Store, name: str) -> None:
    if isinstance(store, BucketStore):
        store._send(store._root + name, b"x", crc32c(b"x"), if_absent=False)
    elif isinstance(store, LocalStore):
        (Path(store.uri) / name).write_bytes(b"x")
    else:
        memory = store if isinstance(store, MemoryStore) else store._store  # type: ignore[attr-defined]
        memory.objects[name] = b"x"


def test_only_the_first_creates_and_what_it_wrote_stays(store: Store) -> None:
    assert store.put_if_absent("ledger/0", b"first")
    assert not store.put_if_absent("ledger/0", b"second")
    assert not store.put_if_absent("ledger/0", b"first")
    assert store.get("ledger/0") == b"first"
    store.delete("ledger/0")
    assert store.put_if_absent("ledger/0", b"third")


def test_one_of_many_racing_threads_creates(store: Store) -> None:
    won = race_of_threads(lambda number: store.put_if_absent("ledger/0", b"%d" % number))
    assert len(won) == 1
    assert store.get("ledger/0") == b"%d" % won[0]


def race_of_threads(create: Callable[[int], bool]) -> list[int]:
    start, won = threading.Barrier(WRITERS), []

    def run(number: int) -> None:
        start.wait()
        if create(number):
            won.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return won


def test_a_part_of_an_object_can_be_read(store: Store) -> None:
    store.put("x", b"0123456789")
    assert store.get("x", 3) == b"3456789"
    assert store.get("x", 3, 4) == b"3456"
    assert store.get("x", 0, 0) == b""
    assert store.get("x", 8, 10**15) == b"89"
    assert store.get("x", 10) == b""
    assert persist(lambda: store.get("x", 100, 5)) == b"", "fake-gcs-server may have closed the line after a 416"


def test_an_object_comes_in_pieces_where_a_store_can_do_that(store: Store) -> None:
    if not isinstance(store, InPieces):
        return
    data = os.urandom(1_000_003)
    store.put("large", data)
    store.put("empty", b"")
    assert b"".join(store.pieces("large", 2_000_000)) == data
    assert b"".join(store.pieces("large", 500_001)) == data[:500_001]
    assert b"".join(store.pieces("empty", 10)) == b""
    assert next(iter(store.pieces("large", 2_000_000)))  # the rest is not wanted
    with pytest.raises(ObjectMissing):
        list(store.pieces("absent", 10))


def test_a_bucket_copies_from_another_folder_of_it_by_itself(store: Store, tmp_path: Path) -> None:
    if not isinstance(store, CopiesItself):
        return
    other, data = open_store(f"{store.uri}/other"), os.urandom(1_000_003)
    other.put("made/large", data)
    store.put("made/large", b"before")
    assert store.copy_from(other, "made/large")
    assert store.get("made/large") == data
    with pytest.raises(ObjectMissing):
        store.copy_from(other, "absent")
    assert not store.copy_from(open_store(str(tmp_path)), "made/large")


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_each_request_to_a_bucket_is_counted_as_its_owner_bills_it(
    kind: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultProxy(servers(kind).endpoint) as line:
        servers(kind).reach(monkeypatch, line.url)
        store = open_store(servers(kind).new_prefix())
        other = open_store(f"{store.uri}/other")
        line.seen.clear()
        before = asked()
        assert [store.put_if_absent("a/b", b"12") for _ in range(2)] == [True, False]
        other.put("c", memoryview(bytes(300_000)))
        store.put_status("d", b"")
        assert isinstance(store, CopiesItself)
        assert store.copy_from(other, "c")
        assert store.get("a/b", 1, 1) == b"2"
        with pytest.raises(ObjectMissing):
            store.get("absent")
        assert len(store.list("")) == 4
        assert store.folders() == ("a", "other")
        store.delete("d")
        counted = asked().since(before)
    sent = Counter(_billed_as(request) for request, _ in line.seen)
    assert counted == RequestCounts(sent["read"], sent["write"])
    assert counted == RequestCounts(reads=2, writes=7)


def _billed_as(request: Request) -> str:
    """https://aws.amazon.com/s3/pricing, https://cloud.google.com/storage/pricing#operations-by-class"""
    if request.method == "DELETE":
        return "free"
    is_list = "list-type" in request.query or "prefix" in request.query
    return "read" if request.method == "GET" and not is_list else "write"


def test_an_absent_object_is_missing_and_deleting_it_is_harmless(store: Store) -> None:
    with pytest.raises(ObjectMissing, match="nowhere/x"):
        store.get("nowhere/x")
    store.delete("nowhere/x")
    store.put("x", b"")
    store.delete("x")
    store.delete("x")
    with pytest.raises(ObjectMissing):
        store.get("x")


def test_store_lists_its_folders(store: Store) -> None:
    assert store.folders() == ()
    for key in ("run-b/ledger/0", "run-a/x", "run-b/y", "plain"):
        store.put(key, b"")
    assert store.folders() == ("run-a", "run-b")


def test_objects_are_listed_in_the_order_of_their_keys_from_a_key_on(store: Store) -> None:
    for key in ("b/10", "b/9", "b-1", "a", "b/1", "b/c/d", "bb"):
        store.put(key, key.encode())
    assert [found.key for found in store.list("")] == ["a", "b-1", "b/1", "b/10", "b/9", "b/c/d", "bb"]
    assert [found.key for found in store.list("b/")] == ["b/1", "b/10", "b/9", "b/c/d"]
    assert [found.key for found in store.list("b/1")] == ["b/1", "b/10"]
    assert [found.key for found in store.list("b/", after="b/10")] == ["b/9", "b/c/d"]
    assert [found.key for found in store.list("b/", after="b/2")] == ["b/9", "b/c/d"]
    assert store.list("b/", after="b/z") == store.list("c") == store.list("nowhere/at/all") == []
    assert [found.size_bytes for found in store.list("b/1")] == [3, 4]


def test_an_object_that_is_written_again_gets_a_later_time(store: Store) -> None:
    store.put_status("hint", b"1")
    before = store.list("hint")[0].modified_at
    assert before.utcoffset() is not None
    store.put_status("hint", b"2")
    assert store.list("hint")[0].modified_at >= before


@pytest.mark.parametrize("key", UNSAFE)
def test_an_unsafe_key_is_refused_by_every_verb(store: Store, key: str) -> None:
    verbs = [store.get, store.delete, *(lambda k, put=put: put(k, b"x") for put in (store.put, store.put_status))]
    for verb in [*verbs, lambda k: store.put_if_absent(k, b"x")]:
        with pytest.raises(StoreError) as caught:
            verb(key)
        assert not isinstance(caught.value, StoreUnavailable | ObjectMissing)
    assert store.list("") == []


def _create_in_a_process(uri: str, number: int, start: Any, told: Any) -> None:
    store = open_store(uri)
    start.wait()
    won = [key for key in range(KEYS) if store.put_if_absent(f"ledger/{key}", b"%d" % number * 1000)]
    told.put((number, won))


@pytest.mark.parametrize("kind", ["local folder", "s3", "gs"])
def test_one_of_sixteen_racing_processes_creates_each_object(
    kind: str, tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = address(kind, tmp_path, servers, monkeypatch)
    open_store(uri)  # imports the client once, not in each process
    processes = multiprocessing.get_context("fork")
    start, told = processes.Barrier(WRITERS), processes.Queue()
    writers = [
        processes.Process(target=_create_in_a_process, args=(uri, number, start, told)) for number in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    won = dict(told.get(timeout=120) for _ in writers)
    for writer in writers:
        writer.join()
    winners = {key: number for number, keys in won.items() for key in keys}
    assert sorted(key for keys in won.values() for key in keys) == list(range(KEYS)), "not one winner of each"
    store = open_store(uri)
    for key, number in winners.items():
        assert store.get(f"ledger/{key}") == b"%d" % number * 1000


def test_other_kinds_of_store_are_refused_with_the_reason() -> None:
    with pytest.raises(StoreError, match="never overwrites an existing entry") as refused:
        open_store("ftp://host/runs")
    assert refused.value.hint
