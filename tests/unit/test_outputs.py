"""The files of a script: what is stored of them, what survives a kill at any moment, and what a fetch writes where."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from blake3 import blake3
from msgspec.structs import replace

from spotrun.agent.attempt_end import AttemptEnd
from spotrun.agent.files import content_store as agent_pieces
from spotrun.agent.files import outputs as agent_outputs
from spotrun.agent.files.content_store import ContentStore
from spotrun.agent.files.outputs import OutputKeeper, _Storing
from spotrun.agent.inbox import PowerOff
from spotrun.agent.logs.output_redaction import OutputRedaction, forms_of_all
from spotrun.checkpoint import pruning
from spotrun.checkpoint.fetching import fetch
from spotrun.checkpoint.outputs import garbage, kept, read_listing
from spotrun.cli.fetch import _refuse_failures
from spotrun.clock import ScaledClock
from spotrun.errors import CheckpointDamaged, SpotrunError, StoreError, WritesRefused
from spotrun.folder import paths, work_files
from spotrun.folder.ledger import EntryRefused
from spotrun.folder.stored_files import Fetched, LeftOut, Listing, Outcome, OutputFile, Piece, list_key
from spotrun.report import fetching
from spotrun.run import events as ev
from spotrun.run.state import Outputs
from spotrun.runs.fetch_record import FetchRecord
from spotrun.runs.open_run import reference
from spotrun.spec.model import CheckpointSpec, OutputsSpec
from spotrun.spec.patterns import chooser
from tests.support.eventually import eventually
from tests.support.histories import START, History
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.mortal_store import Killed, MortalStore, files_in


class Instance:
    """A machine with a work folder, whose attempt is the current one of `history`."""

    def __init__(
        self, folder: Path, history: History, store: MemoryStore, spec: OutputsSpec, secrets: Sequence[str]
    ) -> None:
        self.history, self.store = history, store
        history.running()
        self.attempt = history.attempt
        assignment = SimpleNamespace(folder=folder, work=folder / "work", files_before=folder / "before.json")
        assignment.work.mkdir(parents=True)
        self.work: Path = assignment.work
        self.write("train.py", "as uploaded")
        work_files.remember(assignment.work, assignment.files_before)
        self.notes: list[str] = []
        self.node: Any = SimpleNamespace(
            assignment=assignment,
            clock=ManualClock(),
            store=store,
            note=self.notes.append,
            spec=SimpleNamespace(outputs=spec),
            status=SimpleNamespace(node=SimpleNamespace(step=0)),
            console=SimpleNamespace(redaction=OutputRedaction(secrets)),
            recorder=self,
        )
        self.start()

    def start(self) -> None:
        """The agent, perhaps once more."""
        chosen = chooser(self.node.spec.outputs.files)
        self.pieces = ContentStore(self.node)
        self.pieces.begin(self.attempt)
        self._storing = _Storing(self.node, self.pieces, self.attempt, chosen, lambda: None)

    @property
    def state(self) -> Any:
        return self.history.state

    def append(self, decide: Callable[[Any], Any]) -> Future[None]:
        event, future = decide(self.state), Future[None]()
        if event is not None:
            self.history.write(event)
        future.set_result(None)
        return future

    def write(self, path: str, text: str | bytes) -> None:
        target = self.work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else text.encode())

    def store_files(self, pause: Callable[[], None] = lambda: None, *, ending: bool = False) -> None:
        self.history.after(1)
        self._storing.store(pause, ending=ending)

    def commit(self) -> int:
        self.history.step += 1
        return self.history.commit()


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.history = History()
        self.store = MortalStore()
        self._instances = 0

    def instance(self, *, secrets: Sequence[str] = (), **spec: Any) -> Instance:
        if self.history.state.current is not None:
            self.history.ended(ev.Cause.INTERRUPTED)
        self._instances += 1
        return Instance(self.folder / str(self._instances), self.history, self.store, OutputsSpec(**spec), secrets)

    def fetched(self, outputs: Outputs | None = None) -> dict[str, str]:
        """What a fetch writes, which has to be whole."""
        newest = outputs or self.history.state.outputs[-1]
        listing = read_listing(self.store, newest)
        to = self.folder / f"fetched-{len(list(self.folder.iterdir()))}"
        found = list(fetch(self.store, listing.files, to, lambda _: None, FetchRecord(to)))
        assert all(each.outcome is Outcome.FETCHED for each in found), found
        return files_in(to)

    def left_out(self) -> dict[str, str]:
        return {each.path: each.reason for each in read_listing(self.store, self.history.state.outputs[-1]).left_out}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_outputs, "PIECE_MAX_BYTES", 10)


# -- what is stored ------------------------------------------------------------------------------------------------


def test_files_of_the_script_are_stored_and_nothing_else(run: Run, tmp_path: Path) -> None:
    one = run.instance()
    one.write("best.ckpt", "0123456789" * 3 + "rest")
    one.write("logs/deep/metrics.csv", "")
    one.write(".venv/lib/x.py", "no")
    one.write("logs/__pycache__/x.pyc", "no")
    (tmp_path / "secret").write_text("not of this folder")
    (one.work / "out").symlink_to(tmp_path / "secret")
    (one.work / "up").symlink_to(tmp_path)
    (one.work / "last.ckpt").symlink_to("best.ckpt")
    (one.work / "here").symlink_to("logs")
    (one.work / "nothing").symlink_to("nowhere")
    (one.work / "gone").symlink_to(tmp_path / "gone")
    (one.work / "loop").symlink_to("loop")
    (one.work / "cached").symlink_to(".venv/lib/x.py")
    os.mkfifo(one.work / "pipe")
    (one.work / "to pipe").symlink_to("pipe")
    (one.work / os.fsdecode(b"\xff")).write_text("x")
    one.store_files()
    best = "0123456789" * 3 + "rest"
    assert run.fetched() == {"best.ckpt": best, "last.ckpt": best, "logs/deep/metrics.csv": ""}
    left_out = {
        **dict.fromkeys(("out", "up", "gone"), work_files.OUTSIDE),
        **dict.fromkeys(("nothing", "loop"), work_files.NOWHERE),
        **dict.fromkeys(("pipe", "to pipe"), work_files.NO_FILE),
        "here": work_files.TO_FOLDER,
        "cached": work_files.TO_NEVER,
        "\\xff": work_files.UNNAMEABLE,
    }
    assert run.left_out() == left_out
    assert len([key for key in run.store.objects if "list-" not in key]) == 2, "equal pieces are one object"
    assert len(one.notes) == len(left_out)
    event = run.history.state.outputs[-1].event
    assert (event.files, event.size_bytes, event.left_out, event.commit) == (3, 68, 10, None)
    one.store_files()
    assert len(run.history.state.outputs) == 1, "nothing has changed"
    one.write("train.py", "changed by itself")
    one.store_files()
    assert run.fetched()["train.py"] == "changed by itself"


def test_only_new_pieces_are_sent_and_unreferenced_ones_are_deleted(run: Run) -> None:
    one = run.instance()
    one.write("a", "aaaaaaaaaa1")
    one.store_files()
    one.write("a", "aaaaaaaaaa2")
    one.write("b", "aaaaaaaaaa")
    one.store_files()
    event = run.history.state.outputs[-1].event
    assert event.objects == 2, "the new end of a, and the list"
    assert event.stored_bytes >= sum(map(len, run.store.objects.values()))
    assert sorted(run.store.objects.values(), key=len)[:2] == [b"2", b"aaaaaaaaaa"]
    assert len(run.store.objects) == 3
    (one.work / "b").unlink()
    one.store_files()
    assert run.fetched() == {"a": "aaaaaaaaaa2"}


def test_the_files_of_a_kept_checkpoint_stay_and_go_with_it(run: Run) -> None:
    one = run.instance()
    commits = []
    for text in ("first", "second", "third"):
        commits.append(one.commit())
        one.write("a", text)
        one.store_files()
    state = run.history.state
    assert [run.fetched(state.outputs_of(commit)) for commit in commits] == [
        {"a": t} for t in ("first", "second", "third")
    ]
    run.history.write(ev.CheckpointRetired(attempt=one.attempt, commit=commits[0]))
    one.store_files()
    assert b"first" not in run.store.objects.values()
    assert b"second" in run.store.objects.values()
    run.history.completed(commits[-1])
    state, keys = run.history.state, list(run.store.objects)
    assert garbage(state, run.store, keys) == []
    gone = garbage(state, run.store, keys, {commits[1]})
    assert {run.store.objects[key] for key in gone if "list-" not in key} == {b"second"}
    planned = {stored.key for stored in pruning.plan(state, run.store, CheckpointSpec(keep_last=1)).objects}
    assert planned == set(gone)
    run.store.objects[kept(state)[0].event.key] = b"damaged"
    assert garbage(state, run.store, keys, {commits[1]}) == [], "nobody knows what that list needs"


def test_files_of_an_earlier_attempt_stay_until_they_are_overwritten(run: Run) -> None:
    one = run.instance()
    one.write("old.csv", "kept")
    one.write("both.csv", "from one")
    one.store_files()
    two = run.instance()
    two.store_files()
    assert len(run.history.state.outputs) == 1
    two.write("both.csv", "from two")
    two.write("gone.csv", "for a while")
    two.store_files()
    assert run.fetched() == {"old.csv": "kept", "both.csv": "from two", "gone.csv": "for a while"}
    assert b"from one" not in run.store.objects.values(), "the next attempt deletes what nobody names"
    (two.work / "gone.csv").unlink()
    two.start()
    two.store_files()
    assert run.fetched() == {"old.csv": "kept", "both.csv": "from two"}


def test_an_agent_that_slept_through_its_replacement_damages_nothing(run: Run) -> None:
    one = run.instance()
    for text in ("first", "second"):
        one.commit()
        one.write("a", text)
        one.store_files()
    asleep = run.history.state
    two = run.instance()
    for text in ("second", "first"):
        two.write("a", text)
        two.write("b", text)
        two.store_files()
    before = run.fetched()

    def refuse(_: object) -> None:
        raise EntryRefused("the run continues on another instance")

    one.node.recorder = SimpleNamespace(state=asleep, append=refuse)
    one.pieces.sweep()
    one.write("a", "third")
    with pytest.raises(EntryRefused):
        one.store_files()
    assert run.fetched() == before == {"a": "first", "b": "first"}
    two.write("a", "fourth")
    two.store_files()
    assert run.fetched() == {"a": "fourth", "b": "first"}


def test_a_file_that_changes_meanwhile_is_taken_later_unless_it_is_small(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = run.instance()
    one.write("large", b"x" * 25)
    one.write("log", "1")

    def more() -> None:
        one.write("large", b"y" * 30)
        one.write("log", "12")

    one.store_files(more)
    assert run.fetched() == {"log": "12"}
    assert run.left_out() == {"large": agent_pieces.RESTLESS}
    one.store_files()
    assert run.fetched()["large"] == "y" * 30
    monkeypatch.setattr(one.node.console.redaction, "finds", lambda _: one.write("log", "xyz, while it is sent"))
    one.write("log", "x")
    one.store_files(lambda: one.write("log", "xy"))
    assert run.fetched()["log"] == "xy"
    monkeypatch.undo()
    monkeypatch.setattr(agent_outputs, "PIECE_MAX_BYTES", 10)
    one.write("log", "123")
    one.write("large", b"z" * 40)
    one.store_files(lambda: one.write("large", b"z" * 50))
    assert run.fetched()["large"] == "y" * 30, "as it was when it was at rest"
    assert run.left_out() == {}
    one.write("large", b"w" * 60)
    one.store_files(lambda: one.write("large", b"never"), ending=True)
    assert run.fetched() == {"large": "w" * 60, "log": "123"}


def test_files_over_the_limit_are_reported_and_small_ones_go_first(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    one = run.instance(files=("*.txt", "!no.txt"), max_gb=25e-9, secrets=["hunter2hunter2"])
    one.write("a.txt", "x" * 10)
    one.write("b.txt", "y" * 14)
    one.write("c.txt", "z" * 30)
    one.write("d.csv", "no")
    one.write("no.txt", "no")
    one.store_files()
    assert sorted(run.fetched()) == ["a.txt", "b.txt"]
    assert run.left_out() == {"c.txt": "outputs.max_gb is 2.5e-08, and smaller files have priority"}
    one.write("c.txt", "hunter2hunter2")
    (one.work / "b.txt").unlink()
    one.store_files()
    assert run.left_out() == {"c.txt": agent_pieces.SECRET}, "in two pieces"
    monkeypatch.setattr(agent_outputs, "FILES_MAX", 1)
    one.store_files()
    assert run.left_out()["c.txt"] == agent_pieces.TOO_MANY


@pytest.mark.parametrize("written", ["hunter2hunter2", "68756e74657232" * 2, "%68unter2hunter%32"])
def test_a_file_with_a_secret_in_its_name_is_left_out_and_named_without(written: str, run: Run) -> None:
    one = run.instance(secrets=sorted(forms_of_all(["hunter2hunter2"])))
    one.write(f"by/{written}/model.txt", "x")
    one.write("model.txt", "y")
    one.store_files()
    assert sorted(run.fetched()) == ["model.txt"]
    assert run.left_out() == {f"by/{'*' * len(written)}/model.txt": agent_pieces.SECRET_NAME}
    assert not any(written.encode() in data for data in run.store.objects.values())


@pytest.mark.parametrize("last_happens", [False, True], ids=["before", "after"])
def test_a_kill_at_any_moment_leaves_what_can_be_fetched_whole(tmp_path: Path, last_happens: bool) -> None:
    """Of three lists the third is written while the machine goes; its agent begins again, or another one does."""
    for changes in range(12):
        run = Run(tmp_path / f"{changes}-{last_happens}")
        run.folder.mkdir()
        one = run.instance()
        for text in ("one", "two"):
            one.write("a", text * 9)
            one.commit()
            one.store_files()
        before = run.fetched()
        one.write("a", "three" * 9)
        run.history.write(ev.CheckpointRetired(attempt=one.attempt, commit=run.history.state.commits[0].number))
        run.store.left, run.store.last_happens = changes, last_happens
        killed = False
        try:
            one.store_files()
        except Killed:
            killed = True
        run.store.left = float("inf")
        assert run.fetched() in (before, {"a": "three" * 9})
        again = one if changes % 2 else run.instance()
        again.start()
        again.write("b", "new")
        again.store_files()
        assert run.fetched()["b"] == "new"
        named = {
            key for each in kept(run.history.state) for key in (each.event.key, *read_listing(run.store, each).keys())
        }
        assert run.store.objects.keys() == named, "and nothing is left over"
    assert not killed, "the last of these was not killed any more"


def test_keeper_sends_on_request_and_gives_up_in_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_outputs, "AGAIN_AFTER_S", 0.01)
    monkeypatch.setattr(agent_outputs, "WAKE_S", 0.01)
    monkeypatch.setattr(agent_outputs, "REST_S", 0.0)
    one = run.instance()
    keeper = OutputKeeper(one.node, one.pieces)
    keeper.start(one.attempt)
    one.write("a", "at a notice")
    keeper.hurry()
    eventually(lambda: run.history.state.outputs)
    keeper.hold()
    one.write("a", "after the hold")
    keeper.hurry()
    refusals = iter([WritesRefused("the disk is full")] * 3)
    monkeypatch.setattr(run.store, "before", lambda: _raise(next(refusals, None)))
    keeper.finish(60)
    assert run.fetched() == {"a": "after the hold"}
    assert next(refusals, None) is None
    assert one.notes == ["the script's files could not be stored: the disk is full"], "said once"

    two = run.instance()
    two.write("b", "never")
    monkeypatch.setattr(run.store, "before", lambda: _raise(WritesRefused("the disk is full")))
    keeper = OutputKeeper(two.node, two.pieces)
    keeper.start(two.attempt)
    keeper.finish(0.1)
    assert two.notes[-1] == "could not store all of the script's files in the 0.1 s after it ended"
    assert run.fetched() == {"a": "after the hold"}
    nobody = {**vars(two.node), "spec": SimpleNamespace(outputs=OutputsSpec(files=()))}
    three = OutputKeeper(SimpleNamespace(**nobody), two.pieces)
    three.start(two.attempt)
    three.finish(60)
    assert three._thread is None, "the job keeps no files"


@pytest.mark.parametrize(
    ("left_s", "scale", "files_s"), [(8.0, 1.0, 7.0), (8.0, 5.0, 1.0), (100.0, 1.0, 30.0), (2.0, 5.0, 0.0)]
)
def test_files_are_stored_between_the_last_checkpoint_and_the_end_of_a_notice(
    left_s: float, scale: float, files_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger hears of the hand-over in time, also from a machine that is busy."""
    clock, called = ManualClock(), []
    clock.scale = scale
    drain = SimpleNamespace(deadline_s=clock.monotonic() + left_s, reason="interruption notice")
    state = SimpleNamespace(commit=lambda number: SimpleNamespace(event=SimpleNamespace(suspect=False)))
    node: Any = SimpleNamespace(clock=clock, recorder=SimpleNamespace(state=state))
    journal: Any = SimpleNamespace(drained=lambda final, *_: called.append(("handed over", final)))
    trainers: Any = SimpleNamespace(close=lambda within_s: called.append(("ended", within_s)))
    outputs: Any = SimpleNamespace(finish=lambda within_s: called.append(("files", within_s)))
    ending = AttemptEnd(node, journal, drain, trainers, outputs)  # type: ignore[arg-type]
    monkeypatch.setattr(ending, "_go", lambda reason: _raise(PowerOff(reason)))
    with pytest.raises(PowerOff):
        ending.drained(7, START)
    ended = [("ended", pytest.approx(files_s / 2))] if files_s else []
    assert called == [*ended, ("files", pytest.approx(files_s)), ("handed over", 7)]


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


# -- a fetch -------------------------------------------------------------------------------------------------------


class Shelf:
    """A store with a list of files."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.files: list[OutputFile] = []

    def put(self, path: str, *pieces: bytes, modified_ns: int = 10**18, executable: bool = False) -> OutputFile:
        made = tuple(Piece(3, blake3(data).hexdigest(), len(data)) for data in pieces)
        self.store.objects |= {piece.key: data for piece, data in zip(made, pieces, strict=True)}
        size = sum(map(len, pieces))
        file = OutputFile(
            path=path, size_bytes=size, modified_ns=modified_ns, attempt=3, pieces=made, executable=executable
        )
        self.files.append(file)
        return file

    def fetch(self, to: Path, **options: Any) -> dict[str, Fetched]:
        found = fetch(self.store, self.files, to, lambda _: None, FetchRecord(to), **options)
        return {each.file.path: each for each in found}


def test_a_fetch_writes_what_is_not_here_and_leaves_what_was_changed_here(tmp_path: Path) -> None:
    shelf, to = Shelf(), tmp_path / "to" / "here"
    shelf.put("best.ckpt", b"12", b"34", b"5")
    shelf.put("bin/tool", b"#!", executable=True)
    shelf.put("empty")
    assert {each.outcome for each in shelf.fetch(to).values()} == {Outcome.FETCHED}
    assert files_in(to) == {"best.ckpt": "12345", "bin/tool": "#!", "empty": ""}
    assert os.access(to / "bin" / "tool", os.X_OK)
    assert not os.access(to / "best.ckpt", os.X_OK)
    assert (to / "empty").stat().st_mtime_ns == 10**18
    inode = (to / "best.ckpt").stat().st_ino
    assert {each.outcome for each in shelf.fetch(to).values()} == {Outcome.SAME}
    assert (to / "best.ckpt").stat().st_ino == inode
    shelf.files = []
    shelf.put("best.ckpt", b"newer", modified_ns=2 * 10**18)
    shelf.put("bin/tool", b"##", executable=True)
    (to / "bin" / "tool").write_text("mine")
    assert [each.outcome for each in shelf.fetch(to).values()] == [Outcome.FETCHED, Outcome.CHANGED_HERE]
    assert files_in(to) == {"best.ckpt": "newer", "bin/tool": "mine", "empty": ""}
    shelf.fetch(to, force=True)
    assert files_in(to)["bin/tool"] == "##"
    for text in (b"new", b"ne", b"ne+"):
        shelf.files = []
        shelf.put("best.ckpt", text, modified_ns=3 * 10**18)
        (found,) = shelf.fetch(to, force=text == b"ne+").values()
        assert found.kept_as == {b"new": "best.ckpt.~1~", b"ne": "best.ckpt.~2~"}.get(text, "")
    assert {path: text for path, text in files_in(to).items() if "best" in path} == {
        "best.ckpt": "ne+",
        "best.ckpt.~1~": "newer",
        "best.ckpt.~2~": "new",
    }


def test_a_run_in_another_folder_is_named_as_a_shell_reads_it() -> None:
    assert reference("tiny-0123", "/a stranger/tiny-0123") == "'/a stranger/tiny-0123'"
    assert reference("tiny-0123", "s3://bucket/runs/tiny-0123") == "s3://bucket/runs/tiny-0123"


def test_a_damaged_piece_leaves_the_file_that_was_there_and_fetches_the_others(tmp_path: Path) -> None:
    shelf = Shelf()
    old = shelf.put("a", b"old", modified_ns=0)
    shelf.fetch(tmp_path)
    shelf.files = []
    shelf.put("a", b"new1", b"new2")
    shelf.put("b", b"fine")
    missing = shelf.put("c", b"lost")
    shelf.store.objects[shelf.files[0].pieces[1].key] = b"bad!"
    del shelf.store.objects[missing.pieces[0].key]
    found = shelf.fetch(tmp_path)
    assert {path: (each.outcome, each.damaged) for path, each in found.items()} == {
        "a": (Outcome.FAILED, True),
        "b": (Outcome.FETCHED, False),
        "c": (Outcome.FAILED, True),
    }
    assert files_in(tmp_path) == {"a": "old", "b": "fine"}, "and no temporary file"
    assert old.path == "a"


def test_no_link_leads_a_fetch_out_of_its_folder(tmp_path: Path) -> None:
    outside, to = tmp_path / "outside", tmp_path / "to"
    outside.mkdir()
    to.mkdir()
    (outside / "file").write_text("safe")
    (to / "folder").symlink_to(outside)
    (to / "link").symlink_to(outside / "file")
    (to / "full").mkdir()
    (to / "file").write_text("here")
    shelf = Shelf()
    for path in ("folder/file", "folder/new/er", "link", "full", "file/below", "fine"):
        shelf.put(path, b"hostile", modified_ns=2 * 10**18)
    found = shelf.fetch(to, force=True)
    assert [path for path, each in found.items() if each.outcome is Outcome.FETCHED] == ["fine"]
    assert files_in(outside) == {"file": "safe"}
    assert (to / "link").is_symlink()
    with pytest.raises(SpotrunError, match="cannot write into"):
        shelf.fetch(to / "file")
    failed = [each for each in found.values() if each.outcome is Outcome.FAILED]
    with pytest.raises(SpotrunError, match=r"^5 files could not be fetched; folder/file: .*; file/below: ") as refused:
        _refuse_failures(failed)
    assert "more" not in refused.value.message
    with pytest.raises(SpotrunError, match=r"^10 files .*; and 5 more\n"):
        _refuse_failures(failed * 2)


GOOD = OutputFile(path="a", size_bytes=1, modified_ns=0, attempt=3, pieces=(Piece(3, "0" * 64, 1),))


@pytest.mark.parametrize(
    "file",
    [
        *(
            replace(GOOD, path=path)
            for path in ("/etc/passwd", "../a", "a/../../b", "a//b", "./a", "", ".", "a/", "a\0b", "x" * 256)
        ),
        replace(GOOD, pieces=(Piece(3, "../" + "0" * 61, 1),)),
        replace(GOOD, size_bytes=2),
    ],
    ids=lambda file: repr(file.path[:20]),
)
def test_a_hostile_list_is_refused_before_anything_is_written(file: OutputFile) -> None:
    assert Listing(files=(GOOD,)).flaw() is None
    listing = Listing(files=(file,))
    assert listing.flaw() is not None
    data = msgspec.json.encode(listing)
    store, key = MemoryStore(), list_key(3, "0")
    store.objects[key] = data
    event = ev.OutputsStored(
        attempt=3,
        key=key,
        blake3=blake3(data).hexdigest(),
        commit=None,
        step=0,
        looked_at=START,
        **dict.fromkeys(("files", "size_bytes", "objects", "sent_bytes", "stored_bytes"), 1),
    )
    outputs = Outputs(number=5, at=START, event=event)
    with pytest.raises(CheckpointDamaged):
        read_listing(store, outputs)
    elsewhere = replace(outputs, event=replace(event, key="outputs/../ledger/00000000.json"))
    with pytest.raises((CheckpointDamaged, StoreError)):
        read_listing(store, elsewhere)


def test_lists_of_a_wrong_shape_are_damage() -> None:
    twice = Listing(files=(GOOD, GOOD))
    assert "the same file twice" in (twice.flaw() or "")
    assert "format" in (Listing(files=(), format=2).flaw() or "")
    assert paths.is_path_inside("ä/b c.txt")
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps({"files": [], "run": "x"}), type=Listing)
    left = LeftOut(path="a", size_bytes=0, reason="")
    assert msgspec.json.decode(msgspec.json.encode(left), type=LeftOut) == left


LEFT_THREE = SimpleNamespace(step=0, left_out=3, looked_at=datetime(2026, 1, 2, tzinfo=UTC))


def test_fetch_with_patterns_names_only_matching_files_that_were_not_stored(tmp_path: Path) -> None:
    named = tuple(LeftOut(path=path, size_bytes=0, reason="it is a link") for path in ("a.csv", "b.txt"))
    listing, outputs = Listing(files=(), left_out=named), cast("Outputs", SimpleNamespace(event=LEFT_THREE))
    clock = ScaledClock(LEFT_THREE.looked_at, 1)

    def said(*patterns: str) -> list[str]:
        lines = fetching.text(outputs, listing, tmp_path, [], clock, patterns).splitlines()
        return [line.removeprefix("not stored: ").partition(":")[0] for line in lines if line.startswith("not stored")]

    assert said() == ["a.csv", "b.txt", "1 more"]
    assert said("*.csv", "c/") == ["a.csv"]
    assert said("c/") == []
