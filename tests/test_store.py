"""What every store must do. A new store adds a place here, and nothing else."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from spotrun.errors import ObjectMissing, StoreError, StoreUnavailable
from spotrun.store import Store, open_store
from spotrun.stores import local as folders
from spotrun.stores.local import LocalStore
from tests.worlds import LossyStore, MemoryStore

WRITERS = 16
UNSAFE = ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/", ".hidden", "a/.tmp-1", "a b", "a\n", "ü", "a\\b", "a\0b"]


@pytest.fixture(params=["local folder", "memory", "far memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local folder":
        return open_store(str(tmp_path / "run"))
    return MemoryStore() if request.param == "memory" else LossyStore(MemoryStore(), lambda: "ok")


# -- the contract ----------------------------------------------------------------------------------------------------


def test_what_was_put_is_read_back(store: Store) -> None:
    store.put("a/b-1/c.json", b"one")
    assert store.get("a/b-1/c.json") == b"one"
    store.put("a/b-1/c.json", memoryview(b"another"))
    assert store.get("a/b-1/c.json") == b"another"
    store.put_hint("a/hint", b"")
    assert store.get("a/hint") == b""


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
    assert store.get("x", 8, 100) == b"89"
    assert store.get("x", 10) == b""
    assert store.get("x", 100, 5) == b""


def test_an_absent_object_is_missing_and_deleting_it_is_harmless(store: Store) -> None:
    with pytest.raises(ObjectMissing, match="nowhere/x"):
        store.get("nowhere/x")
    store.delete("nowhere/x")
    store.put("x", b"")
    store.delete("x")
    store.delete("x")
    with pytest.raises(ObjectMissing):
        store.get("x")


def test_the_folders_of_a_store_are_told(store: Store) -> None:
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
    store.put_hint("hint", b"1")
    before = store.list("hint")[0].modified_at
    assert before.utcoffset() is not None
    store.put_hint("hint", b"2")
    assert store.list("hint")[0].modified_at >= before


@pytest.mark.parametrize("key", UNSAFE)
def test_an_unsafe_key_is_refused_by_every_verb(store: Store, key: str) -> None:
    verbs = [store.get, store.delete, *(lambda k, put=put: put(k, b"x") for put in (store.put, store.put_hint))]
    for verb in [*verbs, lambda k: store.put_if_absent(k, b"x")]:
        with pytest.raises(StoreError) as caught:
            verb(key)
        assert not isinstance(caught.value, StoreUnavailable | ObjectMissing)
    assert store.list("") == []


# -- the local folder ------------------------------------------------------------------------------------------------


def _create_in_a_process(folder: str, number: int, start: object, won: object) -> None:
    store = LocalStore(Path(folder))
    start.wait()
    for key in range(20):
        if store.put_if_absent(f"ledger/{key}", b"%d" % number * 1000):
            won.put((key, number))


def test_one_of_sixteen_racing_processes_creates_each_object(tmp_path: Path) -> None:
    processes = multiprocessing.get_context("fork")
    start, won = processes.Barrier(WRITERS), processes.Queue()
    writers = [
        processes.Process(target=_create_in_a_process, args=(str(tmp_path), number, start, won))
        for number in range(WRITERS)
    ]
    for writer in writers:
        writer.start()
    winners = dict(won.get(timeout=60) for _ in range(20))
    for writer in writers:
        writer.join()
    assert sorted(winners) == list(range(20)), "somebody won twice"
    assert won.empty()
    for key, number in winners.items():
        assert LocalStore(tmp_path).get(f"ledger/{key}") == b"%d" % number * 1000


@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_a_folder_is_opened_by_path_or_address(tmp_path: Path, address: str) -> None:
    open_store(address.format(tmp_path / "run")).put("a/x", b"1")
    assert (tmp_path / "run" / "a" / "x").read_bytes() == b"1"


def test_other_kinds_of_store_are_refused_with_the_reason() -> None:
    with pytest.raises(StoreError, match="creates only what is absent") as refused:
        open_store("ftp://host/runs")
    assert refused.value.hint


def test_a_write_is_flushed_to_the_disk_before_it_is_published_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for name in ("fsync", "link", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(folders.os, name, lambda *a, real=real, name=name: (done.append(name), real(*a))[1])
    store = LocalStore(tmp_path)
    store.put_if_absent("a", b"1")
    assert done == ["fsync", "link", "fsync"]
    done.clear()
    store.put("a", b"2")
    assert done == ["fsync", "replace", "fsync"]
    done.clear()
    store.put_hint("a", b"3")
    assert done == ["replace"]


@pytest.mark.parametrize("broken", ["fsync", "link", "replace"])
def test_a_write_that_fails_half_way_publishes_nothing_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    store = LocalStore(tmp_path)
    store.put("there", b"old")
    monkeypatch.setattr(folders.os, broken, full)
    with pytest.raises(StoreUnavailable, match="No space left"):
        store.put("there", b"new") if broken == "replace" else store.put_if_absent("new", b"new")
    monkeypatch.undo()
    assert [(found.key, store.get(found.key)) for found in store.list("")] == [("there", b"old")]
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_killed_writers_temporary_file_is_never_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    seen: list[list[str]] = []
    store = LocalStore(tmp_path)

    def link(*_: object) -> None:
        seen.append([path.name for path in (tmp_path / "a").iterdir()])
        assert store.list("") == store.list("a/") == []
        raise Killed

    monkeypatch.setattr(folders.os, "link", link)
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # the killed do not tidy up
    with pytest.raises(Killed):
        store.put_if_absent("a/x", b"1")
    monkeypatch.undo()
    assert len(seen[0]) == 1
    assert [path.name for path in (tmp_path / "a").iterdir()] == seen[0]
    assert store.list("") == store.list("a/") == []
    assert store.put_if_absent("a/x", b"2")
    assert [found.key for found in store.list("a/")] == ["a/x"]


def test_readers_never_see_a_part_of_a_write(tmp_path: Path) -> None:
    store, stop, torn = LocalStore(tmp_path), threading.Event(), []
    store.put_hint("x", b"0" * 100_000)

    def read() -> None:
        while not stop.is_set():
            data = store.get("x")
            if len(data) != 100_000 or len(set(data)) != 1:
                torn.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(200):
        store.put_hint("x", b"%d" % (number % 10) * 100_000)
    stop.set()
    reader.join()
    assert not torn


def test_writing_while_another_deletes_the_last_object_of_the_folder_loses_nothing(tmp_path: Path) -> None:
    """A delete removes the emptied folder, perhaps between another writer's two calls."""
    store, stop, failed = LocalStore(tmp_path), threading.Event(), []

    def come_and_go() -> None:
        while not stop.is_set():
            try:
                store.put_hint("a/b/fleeting", b"1")
                store.delete("a/b/fleeting")
            except StoreError as error:
                failed.append(error)

    other = threading.Thread(target=come_and_go)
    other.start()
    for number in range(400):
        assert store.put_if_absent(f"a/b/{number}", b"1")
        store.delete(f"a/b/{number}")
    stop.set()
    other.join()
    assert not failed


def test_a_file_where_the_folder_should_be_is_an_error_that_helps(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("not a folder")
    store = LocalStore(tmp_path / "run")
    for write in (store.put, store.put_hint, store.put_if_absent):
        for key in ("ledger/0", "top"):
            with pytest.raises(StoreError, match="Not a directory") as caught:
                write(key, b"x")
            assert caught.value.hint
            assert not isinstance(caught.value, StoreUnavailable), "retrying cannot help"
    with pytest.raises(StoreError):
        store.get("ledger/0")
    assert store.list("ledger/") == []


def test_a_folder_where_the_object_should_be_is_an_error(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"1")
    for verb in (store.get, lambda key: store.put(key, b"x"), store.delete):
        with pytest.raises(StoreError):
            verb("a")
    assert store.get("a/b") == b"1"


def test_a_full_disk_is_a_passing_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    store.put("x", b"old")
    monkeypatch.setattr(folders.secrets, "token_hex", lambda _: "full")
    (tmp_path / ".tmp-full").symlink_to("/dev/full")
    with pytest.raises(StoreUnavailable, match="No space left"):
        store.put("x", b"new" * 100_000)
    assert store.get("x") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
