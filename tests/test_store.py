"""One contract for every store: the local folder, and the one in memory that other tests use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spotrun.errors import ObjectMissing, StoreError
from spotrun.store import LocalStore, Store, open_store
from tests.worlds import MemoryStore

RACE = """
import sys
from spotrun.store import open_store
store = open_store(sys.argv[1])
sys.stdin.readline()
print(sum(store.put_if_absent(f"race/{n}", sys.argv[2].encode()) for n in range(20)))
"""


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return LocalStore(tmp_path / "a run") if request.param == "local" else MemoryStore()


def test_an_object_is_created_only_where_there_is_none(store: Store) -> None:
    assert store.put_if_absent("ledger/0.json", b"first")
    assert not store.put_if_absent("ledger/0.json", b"second")
    assert store.get("ledger/0.json") == b"first"


def test_an_object_is_overwritten_whole_and_read_in_ranges(store: Store) -> None:
    store.put("a/b", b"a long first version")
    store.put("a/b", memoryview(b"0123456789"))
    assert store.get("a/b") == b"0123456789"
    assert store.get("a/b", 3, 4) == b"3456"
    assert store.get("a/b", 8, 100) == b"89"
    store.put_hint("a/b", b"hint")
    assert store.get("a/b") == b"hint"


def test_objects_are_listed_in_the_order_of_their_keys_after_a_key(store: Store) -> None:
    for key in ("ledger/2", "ledger/1", "ledger/10", "logs/3/1", "other"):
        store.put(key, key.encode())
    assert [stored.key for stored in store.list("ledger/")] == ["ledger/1", "ledger/10", "ledger/2"]
    assert [stored.key for stored in store.list("ledger/", after="ledger/10")] == ["ledger/2"]
    assert [(stored.key, stored.size_bytes) for stored in store.list("logs/")] == [("logs/3/1", 8)]
    assert store.list("nothing/") == []


def test_a_missing_object_is_an_answer_and_deleting_it_is_harmless(store: Store) -> None:
    with pytest.raises(ObjectMissing):
        store.get("not/there")
    store.put("once", b"")
    store.delete("once")
    store.delete("once")
    assert store.list("") == []


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../up", "a/../b", "a//b", ".hidden", "a/.b", "a b", "ü", "a\n"])
def test_a_key_cannot_leave_the_folder(tmp_path: Path, key: str) -> None:
    with pytest.raises(StoreError):
        LocalStore(tmp_path / "store").put(key, b"")


def test_of_sixteen_racing_processes_one_wins_each_name(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACE, str(tmp_path)]
    pipe = subprocess.PIPE
    racers = [subprocess.Popen([*command, str(n)], stdin=pipe, stdout=pipe, text=True) for n in range(16)]
    wins = [int(racer.communicate("go\n", timeout=60)[0]) for racer in racers]
    assert sum(wins) == 20
    assert len(open_store(str(tmp_path)).list("race/")) == 20


def test_what_is_half_written_is_never_seen(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / ".tmp-0123").write_bytes(b"half")
    assert open_store(str(tmp_path)).list("") == []


def test_a_file_in_place_of_the_folder_is_a_letter_and_not_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as failure:
        open_store(str(tmp_path / "file")).put("a", b"")
    assert failure.value.hint


@pytest.mark.parametrize("uri", ["s3://bucket/runs", "gs://bucket", "memory://x", "https://example.org"])
def test_a_store_that_is_not_built_yet_is_refused_with_what_to_do(uri: str) -> None:
    with pytest.raises(StoreError, match="cannot hold a run yet") as refusal:
        open_store(uri)
    assert "checkpoint.uri" in (refusal.value.hint or "")


def test_a_file_address_is_a_folder(tmp_path: Path) -> None:
    assert open_store(f"file://{tmp_path}").uri == str(tmp_path)
