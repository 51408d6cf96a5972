"""What only a store in a local folder has to take care of: durability, crashes, and what else lies in the folder."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from spotrun.errors import StoreError, StoreUnavailable, WritesRefused
from spotrun.store import local as folders
from spotrun.store.local import LocalStore
from spotrun.store.opening import open_store
from spotrun.store.retrying import persist
from tests.support.no_root_rights import no_root_rights


@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_a_folder_is_opened_by_path_or_address(tmp_path: Path, address: str) -> None:
    open_store(address.format(tmp_path / "run")).put("a/x", b"1")
    assert (tmp_path / "run" / "a" / "x").read_bytes() == b"1"


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
    store.put_status("a", b"3")
    assert done == ["replace"]


@pytest.mark.parametrize("place", ["setup", "run/setup", "run"])
def test_file_behind_a_link_in_the_store_is_no_object(tmp_path: Path, place: str) -> None:
    """Training code shares the folder on the local cloud: a link of its own must lead no deletion elsewhere."""
    elsewhere = tmp_path / "home" / "setup"
    elsewhere.mkdir(parents=True)
    (elsewhere / "thesis").write_text("years of work")
    link = tmp_path / "store" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere if place.endswith("setup") else elsewhere.parent)
    store = LocalStore(tmp_path / "store")
    below = f"{place}/" if place.endswith("setup") else f"{place}/setup/"
    assert store.list(below) == []
    store.delete(f"{below}thesis")
    assert (elsewhere / "thesis").exists()
    for write in (store.put, store.put_if_absent, store.put_status):
        with pytest.raises(StoreError, match="is a link, or in one, and nothing is written there"):
            write(f"{below}thesis", b"lost")
    assert (elsewhere / "thesis").read_text() == "years of work"
    store.delete(place)
    assert not link.is_symlink(), "the link itself can be deleted"


def test_a_store_may_itself_be_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "large-disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "large-disk")
    store = LocalStore(tmp_path / "runs")
    store.put("run/a", b"1")
    assert [stored.key for stored in store.list("run/")] == ["run/a"]
    store.delete("run/a")
    assert store.list("") == []


@pytest.mark.parametrize(
    ("broken", "number"), [("fsync", errno.ENOSPC), ("link", errno.EDQUOT), ("replace", errno.EROFS)]
)
def test_a_write_that_fails_half_way_publishes_nothing_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str, number: int
) -> None:
    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    store = LocalStore(tmp_path)
    store.put("there", b"old")
    monkeypatch.setattr(folders.os, broken, full)
    with pytest.raises(WritesRefused, match=os.strerror(number)) as refused:
        store.put("there", b"new") if broken == "replace" else store.put_if_absent("new", b"new")
    monkeypatch.undo()
    assert "continue by themselves" in str(refused.value.hint)
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


@pytest.mark.exhaustive
def test_readers_never_see_a_part_of_a_write(tmp_path: Path) -> None:
    store, stop, torn = LocalStore(tmp_path), threading.Event(), []
    store.put_status("x", b"0" * 100_000)

    def read() -> None:
        while not stop.is_set():
            data = store.get("x")
            if len(data) != 100_000 or len(set(data)) != 1:
                torn.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(200):
        store.put_status("x", b"%d" % (number % 10) * 100_000)
    stop.set()
    reader.join()
    assert not torn


@pytest.mark.exhaustive
def test_writing_while_another_deletes_the_last_object_of_the_folder_loses_nothing(tmp_path: Path) -> None:
    """A delete removes the emptied folder, perhaps between another writer's two calls."""
    store, stop, failed = LocalStore(tmp_path), threading.Event(), []

    def come_and_go() -> None:
        while not stop.is_set():
            try:
                store.put_status("a/b/fleeting", b"1")
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
    for write in (store.put, store.put_status, store.put_if_absent):
        for key in ("ledger/0", "top"):
            with pytest.raises(StoreError, match="Not a directory") as caught:
                write(key, b"x")
            assert caught.value.hint
            assert not isinstance(caught.value, StoreUnavailable), "retrying cannot help"
    with pytest.raises(StoreError):
        store.get("ledger/0")
    assert store.list("ledger/") == []


def test_folder_that_cannot_be_made_is_an_error_that_no_further_try_would_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(self))  # as /proc does

    monkeypatch.setattr(Path, "mkdir", refuse)
    store = LocalStore(tmp_path / "runs")
    for write in (store.put, store.put_if_absent):
        with pytest.raises(StoreError, match=f"cannot make a folder in {tmp_path}") as caught:
            write("trial", b"")
        assert not isinstance(caught.value, StoreUnavailable)


def test_a_folder_where_the_object_should_be_is_an_error(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"1")
    for verb in (store.get, lambda key: store.put(key, b"x"), store.delete):
        with pytest.raises(StoreError):
            verb("a")
    assert store.get("a/b") == b"1"


def test_link_to_itself_is_an_error_that_no_further_try_would_change(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("x")
    store = LocalStore(tmp_path)
    for verb in (store.get, store.list):
        with pytest.raises(StoreError) as raised:
            verb("x")
        assert not isinstance(raised.value, StoreUnavailable)


@pytest.mark.parametrize("kind", ["a pipe", "a device"])
def test_pipe_or_device_in_the_store_is_an_error_without_a_wait(kind: str, tmp_path: Path) -> None:
    """Whoever shares the folder can put it there, and `spotrun status` reads objects of each run."""
    if kind == "a pipe":
        os.mkfifo(tmp_path / "x")
        os.write(os.open(tmp_path / "x", os.O_RDWR), b"so that a reader need not wait")
    else:
        (tmp_path / "x").symlink_to("/dev/zero")
    store = LocalStore(tmp_path)
    with pytest.raises(StoreError, match="neither a file nor a folder"):
        store.get("x", 0, 10)
    assert [each.key for each in store.list("")] == ["x"], "an entry that is no file is no gap"


def test_full_disk_fails_at_once_and_passes_when_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    store.put("x", b"old")
    monkeypatch.setattr(folders.secrets, "token_hex", lambda _: "full")
    (tmp_path / ".tmp-full").symlink_to("/dev/full")
    tries: list[None] = []
    with pytest.raises(WritesRefused, match="No space left"):
        persist(lambda: tries.append(None) or store.put("x", b"new" * 100_000))
    assert len(tries) == 1, "nobody waits for what does not pass by itself"
    assert store.get("x") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    store.put("x", b"new")


def test_stored_objects_are_private_to_their_owner(tmp_path: Path) -> None:
    """Under any umask. The folder that the user has made stays as it is."""
    tmp_path.chmod(0o755)
    before = os.umask(0o022)
    try:
        LocalStore(tmp_path / "runs" / "demo-0123456789").put_if_absent("ledger/00000000.json", b"1")
        LocalStore(tmp_path / "runs" / "demo-0123456789").put("keys/x", b"1")
        LocalStore(tmp_path / "runs" / "demo-0123456789").put_status("status", b"1")
    finally:
        os.umask(before)
    modes = {path: path.stat().st_mode & 0o7777 for path in (tmp_path / "runs", *(tmp_path / "runs").rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert tmp_path.stat().st_mode & 0o7777 == 0o755


def test_a_group_that_may_write_in_the_stores_folder_shares_what_is_stored(tmp_path: Path) -> None:
    shared, open_to_all = tmp_path / "shared", tmp_path / "tmp"
    for folder, mode in ((shared, 0o2775), (open_to_all, 0o1777)):
        folder.mkdir()
        folder.chmod(mode)
        LocalStore(folder / "demo").put("a/x", b"1")
    assert [(shared / name).stat().st_mode & 0o7777 for name in ("demo", "demo/a", "demo/a/x")] == [
        0o2770,
        0o2770,
        0o660,
    ]
    assert [(open_to_all / name).stat().st_mode & 0o7777 for name in ("demo", "demo/a", "demo/a/x")] == [
        0o700,
        0o700,
        0o600,
    ]


def test_folder_that_this_user_may_not_read_is_an_error_of_each_call(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "closed" / "runs")
    store.put("ledger/0", b"")
    (tmp_path / "closed").chmod(0)
    with no_root_rights():
        for call in (lambda: store.get("ledger/0"), lambda: store.list(""), lambda: store.delete("ledger/0")):
            with pytest.raises(StoreError, match="Permission denied"):
                call()
        with pytest.raises(StoreError, match="Permission denied"):
            store.put("ledger/1", b"")
    (tmp_path / "closed").chmod(0o700)
