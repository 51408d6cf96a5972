"""The work folder at a boundary: what a trainer hands over, what tears, and how files that are open are put back."""

from __future__ import annotations

import gc
import mmap
import os
import socket
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from typing import Any

import msgspec
import pytest
import torch

from spotrun import trainer_link
from spotrun.agent.snapshots.frozen import Descriptors, FileReader, TornFile, received
from spotrun.checkpoint.snapshot import read_image
from spotrun.folder.frozen_files import ContentSource
from spotrun.folder.work_files import OUTSIDE, TO_NEVER, LinkTo, Stamp, remember, remembered
from spotrun.trainer_link import FilesFrozen
from spotrun.training.work_folder import freezing
from spotrun.training.work_folder.freezing import Freezer, Frozen
from spotrun.training.work_folder.open_files import OpenFiles, positions_of
from tests.support.checkpoint_images import image_bytes


class Folder:
    def __init__(self, tmp_path: Path) -> None:
        self.work = tmp_path / "work"
        self.work.mkdir()
        (self.work / "train.py").write_text("as uploaded")
        (self.work / "data.csv").write_text("as uploaded")
        remember(self.work, tmp_path / "before.json")
        self.freezer = Freezer(str(self.work), remembered(tmp_path / "before.json"), lambda path: path != "excluded")
        self.open = OpenFiles(os.path.realpath(self.work))

    def write(self, path: str, data: bytes | str, *, age_s: float = 10.0) -> None:
        """A file that was written some time ago, so that its time is its own."""
        target = self.work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data if isinstance(data, bytes) else data.encode())
        then = time.time() - age_s
        os.utime(target, (then, then))

    def freeze(self, *, final: bool = False) -> Frozen:
        return self.freezer.freeze(self.open.flush(), final=final)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezing, "SMALL_BYTES", 100)


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> Iterator[None]:
    was_frozen = gc.get_freeze_count()
    yield
    if not was_frozen:  # all of it: what make quick has frozen would be gone through by each later collection
        gc.unfreeze()


@pytest.fixture(autouse=True)
def _no_older_objects(_frozen: None) -> None:
    """What is open is looked for among all objects of Python. Torch alone has hundreds of thousands of them."""
    gc.freeze()


def sent(frozen: Frozen) -> Any:
    """What the agent gets of it, by a real socket."""
    ours, other = map(trainer_link.TrainerLink, socket.socketpair())
    frozen.send(lambda message, fds: other.send(message, tuple(fds)))
    first = ours.receive(1)
    assert first is not None
    message, fds = first
    assert isinstance(message, FilesFrozen)
    while len(fds) < message.descriptors + 1:
        more = ours.receive(1)
        assert more is not None
        fds += more[1]
    ours.close()
    other.close()
    return received(message, Descriptors(fds))


def contents(got: Any) -> dict[str, bytes | None]:
    """By path: None for what the agent has, an exception's name for what is torn."""
    found: dict[str, bytes | None] = {}
    for file in got.folder.files:
        if file.source is ContentSource.KNOWN:
            found[file.path] = None
            continue
        try:
            with got.open(file, Path("none is read at its place")) as whole:
                found[file.path] = b"".join(whole.pieces(1000))
        except TornFile:
            found[file.path] = b"TORN"
    got.close()
    return found


LINKS = {
    "last.ckpt": "sub/best.ckpt",
    "sub/up": "../a.csv",
    "newest": "sub",
    "whole": "{}/sub/best.ckpt",
    "later": "not there yet",
    "itself": "itself",
    "by way of": "newest/best.ckpt",
    "back in": "../work/a.csv",
    "data": "/usr/share",
    "above": "../elsewhere",
    "cached": ".venv/lib/x.py",
}


def test_files_of_the_script_are_handed_over_unchanged(folder: Folder) -> None:
    folder.write("a.csv", "small")
    folder.write("sub/best.ckpt", b"x" * 5000)
    folder.write("excluded", "no")
    folder.write(".venv/lib/x.py", "never stored")
    for name, target in LINKS.items():
        (folder.work / name).symlink_to(target if target[:1] != "{" else target.format(folder.work.resolve()))
    (folder.work / "data.csv").unlink()
    frozen = folder.freeze()
    folder.write("a.csv", "later")
    (folder.work / "sub/best.ckpt").unlink()
    folder.write("sub/best.ckpt", b"y" * 5000)
    got = sent(frozen)
    assert got.folder.gone == ("data.csv",)
    assert got.folder.links == {
        "last.ckpt": LinkTo("sub/best.ckpt"),
        "sub/up": LinkTo("../a.csv"),
        "newest": LinkTo("sub"),
        "whole": LinkTo("sub/best.ckpt", absolute=True),
        "later": LinkTo("not there yet"),
        "itself": LinkTo("itself"),
        "by way of": LinkTo("newest/best.ckpt"),
    }
    assert got.folder.refused == {"data": OUTSIDE, "above": OUTSIDE, "cached": TO_NEVER}
    assert contents(got) == {
        "a.csv": b"small",
        "sub/best.ckpt": b"x" * 5000,
        "back in": b"small",
    }, "the target of a link that says where the folder is on this instance is a copy"


def test_only_what_changed_since_the_last_durable_boundary_is_handed_over(folder: Folder) -> None:
    folder.write("a", "1")
    folder.write("b", "1")
    first = folder.freeze()
    folder.write("b", "2")
    assert contents(sent(folder.freeze())) == {"a": b"1", "b": b"2"}, "nothing is durable yet"
    folder.freezer.committed(first.number)
    assert contents(sent(folder.freeze())) == {"a": None, "b": b"2"}
    folder.freezer.torn(["a"])
    assert contents(sent(folder.freeze())) == {"a": b"1", "b": b"2"}
    assert contents(sent(first.duplicate())) == contents(sent(first))


@pytest.mark.parametrize("change", ["written", "another", "gone", "link", "folder", "torn", "mapped"])
def test_a_folder_that_rests_is_looked_at_each_time(folder: Folder, change: str) -> None:
    for name in ("a", "b"):
        folder.write(name, name)
    known: dict[str, bytes | None] = {"a": None, "b": None}
    for wanted in ({"a": b"a", "b": b"b"}, known, known, known):
        frozen = folder.freeze()
        folder.freezer.committed(frozen.number)
        assert contents(sent(frozen)) == wanted
    expected: dict[str, bytes | None] = known
    mapped = None
    match change:
        case "written":
            folder.write("b", "c")
            expected = {"a": None, "b": b"c"}
        case "another":
            folder.write("c", "c")
            expected = {"a": None, "b": None, "c": b"c"}
        case "gone":
            (folder.work / "b").unlink()
            expected = {"a": None}
        case "link":
            (folder.work / "c").symlink_to("a")
        case "folder":
            (folder.work / "c").mkdir()
        case "torn":
            folder.freezer.torn(["b"])
            expected = {"a": None, "b": b"b"}
        case "mapped":
            mapped = (folder.work / "b").open("r+b")
    frozen = folder.freeze()
    folder.freezer.committed(frozen.number)
    got = sent(frozen)
    assert (set(got.folder.links), set(got.folder.folders)) == (
        {"c"} if change == "link" else set(),
        {"c"} if change == "folder" else set(),
    )
    assert contents(got) == expected
    if mapped is not None:
        frozen = folder.freeze()
        assert contents(sent(frozen)) == {"a": None, "b": b"b"}, "a write by a mapping leaves no time"
        mapped.close()


def test_a_file_that_was_written_to_just_now_is_not_taken_for_known(folder: Folder) -> None:
    folder.write("a", "1", age_s=0)
    frozen = folder.freeze()
    stamp = os.stat(folder.work / "a")
    (folder.work / "a").write_text("2")
    os.utime(folder.work / "a", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    folder.freezer.committed(frozen.number)
    assert contents(sent(folder.freeze())) == {"a": b"2"}


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"zz")


def rewrite_and_grow(path: Path) -> None:
    rewrite(path)
    append(path)


def rename_over(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"new")
    other.replace(path)


CHANGES: list[tuple[Callable[[Path], object], bytes]] = [
    (append, b"x" * 9000),
    (rename_over, b"x" * 9000),
    (Path.unlink, b"x" * 9000),
    (rewrite, b"TORN"),
    (rewrite_and_grow, b"TORN"),
    (lambda path: os.truncate(path, 10), b"TORN"),
]


@pytest.mark.parametrize(("change", "seen"), CHANGES)
def test_a_large_file_is_read_later_and_is_whole_or_torn(
    folder: Folder, change: Callable[[Path], object], seen: bytes
) -> None:
    folder.write("large", b"x" * 9000)
    frozen = folder.freeze()
    change(folder.work / "large")
    assert contents(sent(frozen))["large"] == seen
    if seen == b"TORN":
        folder.freezer.torn(["large"])
        now = (folder.work / "large").read_bytes()
        frozen = folder.freeze()
        rewrite(folder.work / "large")
        assert contents(sent(frozen))["large"] == now, "a copy of that boundary"


@pytest.mark.exhaustive
def test_a_database_and_a_mapped_file_are_copied_at_the_boundary(folder: Folder) -> None:
    database = sqlite3.connect(folder.work / "runs.db")
    database.execute("create table t (x)")
    database.commit()
    with (folder.work / "mapped").open("w+b") as file:
        file.write(b"x" * 9000)
        file.flush()
        mapped = mmap.mmap(file.fileno(), 9000)
        frozen = folder.freeze()
        mapped[10:12] = b"zz"
        database.execute("insert into t values (1)")
        database.commit()
        found = contents(sent(frozen))
        assert found["mapped"] == b"x" * 9000
        (folder.work.parent / "copy.db").write_bytes(found["runs.db"] or b"")
        copy = sqlite3.connect(folder.work.parent / "copy.db")
        assert copy.execute("select count(*) from t").fetchone() == (0,)
        folder.freezer.committed(frozen.number)
        assert contents(sent(folder.freeze()))["mapped"] != b"x" * 9000, "its time may be the same"
        mapped.close()
    copy.close()
    database.close()


def test_a_final_boundary_copies_what_is_open(folder: Folder) -> None:
    with (folder.work / "log").open("wb", buffering=0) as log:
        log.write(b"x" * 9000)
        frozen = folder.freeze(final=True)
        log.seek(0)
        log.write(b"zzz")
    assert contents(sent(frozen))["log"] == b"x" * 9000


@pytest.mark.exhaustive
def test_buffered_writes_of_python_belong_to_the_boundary(folder: Folder) -> None:
    text = (folder.work / "text").open("w")
    binary = (folder.work / "binary").open("wb")
    text.write("abc")
    binary.write(b"abc")
    assert contents(sent(folder.freeze())) == {"text": b"abc", "binary": b"abc"}
    text.close()
    text = (folder.work / "text").open("a")
    text.write("def")
    assert contents(sent(folder.freeze()))["text"] == b"abcdef", "another object, with the same descriptor"
    text.close()
    binary.close()


@pytest.fixture
def opened(folder: Folder) -> Iterator[Callable[[str, str], Any]]:
    files = []

    def open_(path: str, mode: str) -> Any:
        files.append((folder.work / path).open(mode))
        return files[-1]

    yield open_
    for file in files:
        file.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["w", "a", "wb", "w+", "r+b"])
def test_a_file_that_is_open_goes_on_where_it_was(folder: Folder, opened: Callable[[str, str], Any], mode: str) -> None:
    folder.write("log", "head\n" if mode == "r+b" else "")
    lines = [b"%d\n" % n if "b" in mode else f"{n}\n" for n in range(5)]
    log = opened("log", mode)
    log.write(lines[0])
    log.write(lines[1])
    positions = positions_of(folder.open.flush())
    saved = (folder.work / "log").read_bytes()
    log.write(lines[2])
    log.close()
    folder.write("log", "head\n" if mode == "r+b" else "")
    again = opened("log", mode)
    again.write(lines[0])  # by the start-up of the script, in its buffer
    assert [each.path for each in folder.open.flush()] == ["log"]
    with (folder.work / "log").open("r+b") as file:  # as the agent does it
        file.write(saved)
        file.truncate()
    folder.open.move(positions)
    again.write(lines[3])
    again.flush()
    place = positions["log"]
    assert (folder.work / "log").read_bytes() == saved[:place] + b"3\n" + saved[place + 2 :]


@pytest.mark.exhaustive
def test_two_thousand_files_take_a_moment(folder: Folder) -> None:
    for number in range(2000):
        folder.write(f"runs/{number % 20}/{number}.json", "{}")
    first = folder.freeze()
    folder.freezer.committed(first.number)
    first.close()
    took_s = min(_timed(lambda: folder.freeze().close()) for _ in range(5))
    assert took_s < 0.2, "0.02 on a machine with nothing else to do"


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def test_more_large_files_than_descriptors_are_read_at_their_place(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezing, "DESCRIPTORS_MAX", 20)
    for number in range(25):
        folder.write(f"{number:02}", bytes([number]) * 500)
    got = sent(folder.freeze())
    held = [file.source for file in got.folder.files]
    assert held.count(ContentSource.OPEN) == 20
    assert held.count(ContentSource.PLACE) == 5
    for file in got.folder.files:
        with got.open(file, folder.work) as whole:
            assert isinstance(whole, FileReader)
            assert b"".join(whole.pieces(100)) == bytes([int(file.path)]) * 500
    got.close()


def test_paths_of_another_work_folder_become_those_of_this_one() -> None:
    best = OrderedDict({"/a/work/x.ckpt": torch.tensor(1.0)})
    state = {"dirpath": "/a/work", "best": best, "k": ["/a/workers", ("/a/work/y", 3, Path("/a/work/z"))]}
    image = bytearray(image_bytes(state, {"work": "/a/work"}))
    here, _ = read_image(image, work="/b/w")
    assert (here["dirpath"], list(here["best"])) == ("/b/w", ["/b/w/x.ckpt"])
    assert here["k"] == ["/a/workers", ("/b/w/y", 3, PurePath("/b/w/z"))]
    assert read_image(image)[0]["dirpath"] == "/a/work"


def test_a_stamp_survives_the_way() -> None:
    stamp = Stamp(1, 2, 3, 4, 5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(stamp), type=Stamp) == stamp
