"""`spotrun fetch` of a run whose training code chose each time and size: what the user wrote stays."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3

from spotrun.folder.ledger import key_of
from spotrun.folder.stored_files import Listing, OutputFile, Piece, list_key
from spotrun.run import events as ev
from spotrun.run.events import encode_entry
from spotrun.store.local import LocalStore
from tests.support.called_spotrun import Said, Spotrun
from tests.support.decisions import spec
from tests.support.histories import History
from tests.support.mortal_store import files_in

NEVER_NS, FAR_NS = 0, 1 << 62
"""Times that only a hostile list has: before all others, and in the year 2116."""


class Run:
    """A run on an instance whose training code writes the lists of its files by itself."""

    def __init__(self, runs: Path, uid: str = "0123456789") -> None:
        self._runs = runs
        self._history = History(uid=uid, spec=spec().to_dict())
        self._history.running()
        self.folder = Path(f"demo-{uid}-files")

    def lists(self, files: dict[str, str], modified_ns: int = 10**18) -> None:
        history = self._history
        store = LocalStore(self._runs / f"demo-{history.uid}")
        pieces = {text: Piece(history.attempt, blake3(text.encode()).hexdigest(), len(text)) for text in files.values()}
        for text, piece in pieces.items():
            store.put(piece.key, text.encode())
        listed = []
        for path, text in files.items():
            piece = pieces[text]
            sizes = {"size_bytes": piece.size_bytes, "modified_ns": modified_ns, "attempt": history.attempt}
            listed.append(OutputFile(path=path, pieces=(piece,), **sizes))
        data = msgspec.json.encode(Listing(files=tuple(listed)))
        key = list_key(history.attempt, digest := blake3(data).hexdigest())
        store.put(key, data)
        history.after(60).write(
            ev.OutputsStored(
                attempt=history.attempt,
                key=key,
                blake3=digest,
                commit=None,
                step=0,
                looked_at=history.now,
                **dict.fromkeys(("files", "size_bytes", "objects", "sent_bytes", "stored_bytes"), len(listed)),
            )
        )
        for entry in history.entries:
            store.put_if_absent(key_of(entry.number), encode_entry(entry))


@pytest.fixture
def run(runs: Path) -> Run:
    return Run(runs)


def read(folder: Path) -> dict[str, str]:
    return {path: text for path, text in files_in(folder).items() if not path.endswith(".sample")}


def outcomes(said: Said) -> dict[str, str]:
    return {file["path"]: file["outcome"] for file in said.json["files"]}


# -- what was changed here -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("modified_ns", [NEVER_NS, 10**18, FAR_NS])
def test_what_the_user_wrote_stays_and_what_fetch_wrote_is_replaced_whatever_the_times(
    modified_ns: int, run: Run, spotrun: Spotrun
) -> None:
    folder = run.folder
    run.lists(dict.fromkeys(("edited", "kept", "mine", "equal"), "v1") | {"long": "long"})
    folder.mkdir()
    for path, text in (("mine", "by hand"), ("equal", "v1")):
        (folder / path).write_text(text)
        os.utime(folder / path, ns=(1, 1))
    first = outcomes(spotrun("fetch", "demo", "--json"))
    assert first == {"edited": "fetched", "kept": "fetched", "mine": "changed_here", "equal": "same", "long": "fetched"}
    (folder / "edited").write_text("by hand")
    os.utime(folder / "edited", ns=(1, 1))
    run.lists(dict.fromkeys(("edited", "kept", "mine", "equal", "long"), "v2"), modified_ns)
    said = spotrun("fetch", "demo")
    mine = {"edited": "by hand", "mine": "by hand", "equal": "v1"}
    assert read(folder) == {**mine, "kept": "v2", "long": "v2", "long.~1~": "long"}
    stays = "here is not as fetch has written it, and stays; --force replaces it"
    assert all(f"{path} {stays}\n" in said.out for path in mine)
    spotrun("fetch", "demo", "--force")
    assert read(folder) == dict.fromkeys(("edited", "kept", "mine", "equal", "long"), "v2") | {"long.~1~": "long"}
    run.lists({"mine": "v3"}, modified_ns)
    assert outcomes(spotrun("fetch", "demo", "--json")) == {"mine": "fetched"}, "it is fetch's own since --force"


def test_two_runs_in_one_folder_replace_what_fetch_wrote_and_nothing_else(runs: Path, spotrun: Spotrun) -> None:
    one, other = Run(runs), Run(runs, uid="1123456789")
    one.lists({"a": "one", "b": "one"})
    other.lists({"a": "two", "b": "two"}, FAR_NS)
    spotrun("fetch", "demo-0123456789", "--to", "results")
    Path("results/b").write_text("by hand")
    spotrun("fetch", "demo-1123456789", "--to", "results")
    assert read(Path("results")) == {"a": "two", "b": "by hand"}


@pytest.mark.parametrize("damage", ["cut off", "gone", "no text", "unreadable"])
def test_without_a_readable_record_each_file_is_the_users(
    damage: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spotrun: Spotrun
) -> None:
    monkeypatch.setenv("SPOTRUN_KNOWN", str(tmp_path / "known"))
    run.lists({"a": "v1"})
    spotrun("fetch", "demo")
    (record,) = (path for path in (tmp_path / "known").rglob("*") if path.is_file())
    assert record.stat().st_mode & 0o077 == 0
    whole = record.read_bytes()
    record.unlink()
    if damage == "unreadable":
        record.mkdir()
    elif damage != "gone":
        record.write_bytes(whole[:-5] if damage == "cut off" else b"\xff\n[")
    run.lists({"a": "v2"})
    said = spotrun("fetch", "demo")
    assert (said.code, read(run.folder)) == (0, {"a": "v1"})
    assert (f"note: {record}: Is a directory; the next fetch takes files" in said.err) == (damage == "unreadable")
    spotrun("fetch", "demo", "--force")
    run.lists({"a": "v3"})
    spotrun("fetch", "demo")
    assert read(run.folder)["a"] == ("v2" if damage == "unreadable" else "v3")
