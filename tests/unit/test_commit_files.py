"""
The files of a checkpoint, from the trainer's freezing to the work folder that a resume finds: whole, exact, or torn.

The trainer is played: its freezer and its open files are real, and so are the agent's halves that store and put back.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from spotrun.agent.files import commit_files
from spotrun.agent.files.commit_files import CommitFiles, FilesTorn
from spotrun.agent.files.content_store import SECRET, SECRET_NAME, ContentStore
from spotrun.agent.files.outputs import _Storing
from spotrun.agent.files.restore import FilesOfCommit
from spotrun.agent.logs.output_redaction import OutputRedaction
from spotrun.agent.snapshots import frozen as agent_frozen
from spotrun.agent.snapshots.frozen import Descriptors
from spotrun.checkpoint import pruning
from spotrun.checkpoint.chosen_files import all_but
from spotrun.checkpoint.outputs import garbage, kept, read_listing, verify_files
from spotrun.checkpoint.upload import Abandoned, UploadControl
from spotrun.errors import CheckpointDamaged
from spotrun.folder import work_files, workdir
from spotrun.folder.stored_files import Listing, OutputFile
from spotrun.run import events as ev
from spotrun.spec.model import CheckpointFilesSpec, CheckpointSpec, OutputsSpec
from spotrun.spec.patterns import chooser
from spotrun.training.work_folder import freezing
from spotrun.training.work_folder.freezing import Freezer
from spotrun.training.work_folder.open_files import OpenFiles, positions_of
from tests.support.histories import START, History
from tests.support.manual_clock import ManualClock
from tests.support.mortal_store import Killed, MortalStore, files_in


class Instance:
    """A machine whose attempt is the current one, with a trainer that freezes its work folder."""

    def __init__(self, run: Run, folder: Path, spec: CheckpointFilesSpec, secrets: Sequence[str]) -> None:
        self.run, self.history = run, run.history
        self.history.running()
        self.attempt = self.history.attempt
        assignment = SimpleNamespace(folder=folder, work=folder / "work", files_before=folder / "before.json")
        workdir.fetch(run.store, run.sha256, assignment.work)
        self.work: Path = assignment.work
        work_files.remember(self.work, assignment.files_before)
        self.notes: list[str] = []
        self.node: Any = SimpleNamespace(
            assignment=assignment,
            clock=ManualClock(),
            store=run.store,
            note=self.notes.append,
            created=SimpleNamespace(workdir_sha256=run.sha256),
            spec=SimpleNamespace(outputs=OutputsSpec(), checkpoint=CheckpointSpec(files=spec)),
            status=SimpleNamespace(node=SimpleNamespace(step=0)),
            console=SimpleNamespace(redaction=OutputRedaction(secrets)),
            recorder=self.history,
        )
        self.pieces = ContentStore(self.node)
        self.pieces.begin(self.attempt)
        self.files = CommitFiles(self.node, self.pieces)
        self.files.begin(self.attempt, {})
        self.start_trainer()

    def start_trainer(self) -> None:
        before = work_files.remembered(self.node.assignment.files_before)
        self.open = OpenFiles(os.path.realpath(self.work))
        chosen = all_but(self.node.spec.checkpoint.files.exclude)
        self.freezer = Freezer(os.path.realpath(self.work), before, chosen)

    def write(self, path: str, text: str | bytes, *, age_s: float = 10.0) -> None:
        target = self.work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else text.encode())
        os.utime(target, (time.time() - age_s,) * 2)

    def snapshot(self, *, final: bool = False) -> Any:
        frozen = self.freezer.freeze(self.open.flush(), final=final)
        received: list[tuple[Any, list[int]]] = []
        frozen.send(lambda message, fds: received.append((message, [os.dup(fd) for fd in fds])))
        descriptors = Descriptors([fd for _, fds in received for fd in fds])
        got = agent_frozen.received(received[0][0], descriptors)
        return SimpleNamespace(frozen=got, final=final)

    def save(self, snapshot: Any = None, control: UploadControl | None = None) -> int:
        """Make a snapshot durable, as the worker does; the number of its commit."""
        snapshot = snapshot or self.snapshot()
        with self.files.stored(snapshot.frozen, control or UploadControl(), final=snapshot.final) as stored:
            assert stored is not None
            self.pieces.sweep()  # as the thread does that looks at a notice
            self.history.step += 1
            number = self.history.commit(files=stored.name)
            self.files.committed(stored)
        self.freezer.committed(snapshot.frozen.number)
        snapshot.frozen.close()
        self.files.sweep()
        return number

    def resume(self, opened: Sequence[str] = ()) -> None:
        """Put back the newest checkpoint's files, as at the start of a trainer."""
        files = FilesOfCommit(self.node, self.history.state.latest_commit(), self.files.known)
        files.fetch()
        self.put(files, opened)

    def put(self, files: FilesOfCommit, opened: Sequence[str] = ()) -> None:
        self.files.begin(self.attempt, files.put(opened, self.attempt))
        self.start_trainer()
        self.freezer.begin_with(self.open.flush())

    def contents(self) -> dict[str, str]:
        return files_in(self.work)


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.history = History()
        self.store = MortalStore()
        self._instances = 0
        source = folder / "source"
        source.mkdir()
        (source / "train.py").write_text("as uploaded")
        (source / "data.csv").write_text("as uploaded")
        self.sha256 = workdir.upload(self.store, source)

    def instance(self, *, secrets: Sequence[str] = (), **spec: Any) -> Instance:
        if self.history.state.current is not None:
            self.history.ended(ev.Cause.INTERRUPTED)
        self._instances += 1
        return Instance(self, self.folder / str(self._instances), CheckpointFilesSpec(**spec), secrets)

    def listing(self, number: int) -> Listing:
        outputs = self.history.state.outputs_of(number)
        assert outputs is not None
        return read_listing(self.store, outputs)

    def pieces(self) -> set[bytes]:
        return {value for key, value in self.store.objects.items() if key.startswith("outputs/") and "list-" not in key}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freezing, "SMALL_BYTES", 20)
    monkeypatch.setattr(commit_files, "PIECE_MAX_BYTES", 10)


UPLOADED = {"train.py": "as uploaded", "data.csv": "as uploaded"}


def test_another_instance_finds_exactly_the_files_of_the_commit(run: Run) -> None:
    one = run.instance()
    one.write("log.csv", "1\n")
    one.write("kept/best.ckpt", "x" * 50)
    one.write("train.py", "changed by itself")
    (one.work / "data.csv").unlink()
    (one.work / "last.ckpt").symlink_to("kept/best.ckpt")
    one.save()
    one.write("log.csv", "1\n2\n")
    one.write("kept/later.ckpt", "never durable")
    two = run.instance()
    two.write("log.csv", "made anew by the start of the script")
    two.write("started-at.txt", "another moment")
    two.resume()
    best = "x" * 50
    expected = {"log.csv": "1\n", "kept/best.ckpt": best, "last.ckpt": best, "train.py": "changed by itself"}
    assert two.contents() == expected
    number = two.save()
    event = run.history.state.commit(number).event.files
    assert (event.objects, event.files) == (1, 4), "its list alone is new: it says that this attempt has seen them"
    number = two.save()
    assert run.history.state.commit(number).event.files.objects == 0


def links_in(folder: Path) -> dict[str, str]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_symlink())
    return {path.relative_to(folder).as_posix(): os.readlink(path).replace(str(folder), "WORK") for path in found}


def linked(one: Instance, step: int) -> None:
    """As a script does that keeps a name for its newest checkpoint."""
    one.write(f"run-{step}/model.ckpt", f"of step {step}")
    for name in ("latest", "latest.ckpt", "whole"):
        (one.work / name).unlink(missing_ok=True)
    (one.work / "latest").symlink_to(f"run-{step}")
    (one.work / "latest.ckpt").symlink_to("latest/model.ckpt")
    (one.work / "whole").symlink_to(one.work.resolve() / f"run-{step}/model.ckpt")


LINKED = {"latest": "run-1", "latest.ckpt": "latest/model.ckpt", "whole": "WORK/run-1/model.ckpt"}


@pytest.mark.parametrize("elsewhere", [True, False])
def test_links_are_links_again_and_lead_to_where_they_did(run: Run, elsewhere: bool) -> None:
    one = run.instance()
    linked(one, 1)
    number = one.save()
    assert run.history.state.commit(number).event.files.files == 4
    linked(one, 2)
    (one.work / "another").symlink_to("run-2")
    two = run.instance() if elsewhere else one
    two.resume()
    assert links_in(two.work) == LINKED
    assert (two.work / "latest.ckpt").read_text() == "of step 1"
    linked(two, 3)
    two.save()
    assert links_in(two.work) == {**LINKED, "latest": "run-3", "whole": "WORK/run-3/model.ckpt"}


def test_links_take_the_place_of_what_is_there_and_give_theirs(run: Run) -> None:
    one = run.instance()
    linked(one, 1)
    one.write("plain/file", "no link")
    one.save()
    for name in LINKED:
        (one.work / name).unlink()
    one.write("latest.ckpt", "a file")
    one.write("latest/inner", "a folder")
    (one.work / "plain/file").unlink()
    (one.work / "plain").rmdir()
    (one.work / "plain").symlink_to("run-1")
    one.resume()
    assert links_in(one.work) == LINKED
    assert (one.work / "plain/file").read_text() == "no link"


@pytest.mark.parametrize("elsewhere", [True, False])
def test_folders_are_there_as_they_were(run: Run, elsewhere: bool) -> None:
    one = run.instance(exclude=("data/",))
    one.write("runs/1/model.ckpt", "1")
    one.write("data/raw/1.bin", "excluded")
    (one.work / "empty/inner").mkdir(parents=True)
    one.save()
    one.write("runs/2/model.ckpt", "2")
    (one.work / "runs/3/plots").mkdir(parents=True)
    shutil.rmtree(one.work / "empty")
    two = run.instance(exclude=("data/",)) if elsewhere else one
    files = FilesOfCommit(two.node, run.history.state.latest_commit(), two.files.known)
    files.fetch()
    (two.work / "of-this-start").mkdir()
    two.put(files)
    folders = {path.relative_to(two.work).as_posix() for path in two.work.rglob("*") if path.is_dir()}
    assert folders - {"data", "data/raw"} == {"runs", "runs/1", "empty", "empty/inner", "of-this-start"}
    assert elsewhere or (two.work / "data/raw/1.bin").exists()


def test_a_list_of_before_there_were_links_has_copies_in_their_place(run: Run) -> None:
    one = run.instance()
    linked(one, 1)
    seen = work_files.survey(one.work, {}, lambda path: True)
    assert {"latest.ckpt", "whole"} < seen.files.keys(), "as such a list was made"
    (one.work / "latest.ckpt").unlink()
    one.write("latest.ckpt", "a copy")
    one.save()
    linked(one, 2)
    one.resume()
    assert (one.work / "latest.ckpt").read_text() == "a copy"
    assert not (one.work / "latest.ckpt").is_symlink()


def test_a_link_that_says_a_secret_is_left_out(run: Run) -> None:
    one = run.instance(secrets=["hunter2hunter2"])
    one.write("a", "1")
    (one.work / "latest").symlink_to("run-hunter2hunter2")
    one.save()
    commit = run.history.state.latest_commit()
    assert commit is not None
    assert commit.outputs is not None
    listing = read_listing(run.store, commit.outputs)
    assert (listing.links, [left.reason for left in listing.left_out]) == ((), [SECRET_NAME])


def test_fetched_checkpoint_has_copies_of_linked_files(run: Run) -> None:
    one = run.instance()
    linked(one, 1)
    (one.work / "itself").symlink_to("itself")
    one.save()
    commit = run.history.state.latest_commit()
    assert commit is not None
    assert commit.outputs is not None
    listing = read_listing(run.store, commit.outputs)
    sizes = {file.path: file.size_bytes for file in listing.with_copies}
    assert sizes == dict.fromkeys(["run-1/model.ckpt", "latest.ckpt", "whole"], 9)


def test_the_same_instance_finds_them_too_and_fetches_what_it_lacks(run: Run) -> None:
    one = run.instance(exclude=("data/",))
    one.write("data/1.bin", "excluded")
    one.write("a", "1")
    one.write("large", "x" * 50)
    one.write("gone", "it was there")
    one.save()
    one.write("data/2.bin", "excluded too")
    one.write("a", "12")
    one.write("new", "to be removed")
    one.write("train.py", "changed after the checkpoint")
    (one.work / "data.csv").unlink()
    (one.work / "gone").unlink()
    gets: list[str] = []
    get = run.store.get
    run.store.get = lambda key, *more: (gets.append(key), get(key, *more))[1]  # type: ignore[method-assign]
    one.resume()
    data = {"data/1.bin": "excluded", "data/2.bin": "excluded too"}
    assert one.contents() == {**UPLOADED, **data, "a": "1", "large": "x" * 50, "gone": "it was there"}
    assert len([key for key in gets if "/list-" not in key]) == 4, "a, two of what is gone, the uploaded folder"
    assert not (one.node.assignment.folder / "files-coming").exists()


def test_training_that_begins_again_finds_the_uploaded_folder(run: Run) -> None:
    one = run.instance()
    one.write("log", "of a trainer that died before its first checkpoint")
    one.write("train.py", "changed")
    one.put(FilesOfCommit(one.node, None, {}))
    assert one.contents() == UPLOADED


def test_files_that_are_open_are_rewritten_where_they_are(run: Run) -> None:
    one = run.instance()
    with (one.work / "log").open("w") as log:
        log.write("a\nb\n")
        positions = positions_of(one.open.flush())
        one.save()
    two = run.instance()
    with (two.work / "log").open("w") as log, (two.work / "of-this-process").open("w") as own:
        log.write("head\n")
        two.open.flush()
        inode = os.fstat(log.fileno()).st_ino
        two.resume(["log", "of-this-process"])
        two.open.move(positions)
        log.write("c\n")
        own.write("stays")
    assert os.stat(two.work / "log").st_ino == inode
    assert two.contents() == {**UPLOADED, "log": "a\nb\nc\n", "of-this-process": "stays"}


def test_unchanged_files_are_not_sent_again_and_unreferenced_pieces_are_deleted(run: Run) -> None:
    one = run.instance()
    one.write("large", "0123456789" * 5 + "end")
    one.write("small", "1")
    first = one.save()
    assert {b"0123456789", b"end", b"1"} == run.pieces()
    one.write("small", "2")
    second = one.save()
    files = run.history.state.commit(second).event.files
    assert files.objects == 2, "the small file and the list"
    stored = [len(value) for key, value in run.store.objects.items() if key.startswith("outputs/")]
    assert files.stored_bytes >= sum(stored) - stored[-1]
    assert run.listing(first).files[0] == run.listing(second).files[0]
    assert b"1" in run.pieces()
    run.history.write(ev.CheckpointRetired(attempt=one.attempt, commit=first))
    one.save()
    assert b"1" not in run.pieces()
    assert b"0123456789" in run.pieces()
    run.history.completed(run.history.state.commits[-1].number)
    keys = [key for key in run.store.objects if key.startswith("outputs/")]
    assert garbage(run.history.state, run.store, keys) == []
    pruned = pruning.plan(run.history.state, run.store, CheckpointSpec(keep_last=1))
    assert b"2" not in {run.store.objects[each.key] for each in pruned.objects}


def test_a_torn_file_makes_no_commit_and_the_next_snapshot_copies_it(run: Run) -> None:
    one = run.instance()
    one.write("large", "x" * 50)
    snapshot = one.snapshot()
    one.write("large", "y" * 50)
    with pytest.raises(FilesTorn) as torn:
        one.save(snapshot)
    assert torn.value.paths == ("large",)
    one.freezer.torn(torn.value.paths)
    snapshot = one.snapshot()
    one.write("large", "z" * 50)
    number = one.save(snapshot)
    two = run.instance()
    two.resume()
    assert two.contents()["large"] == "y" * 50
    assert run.history.state.commits[-1].number == number


def test_agent_requests_files_whose_content_it_does_not_know(run: Run) -> None:
    one = run.instance()
    one.write("a", "1")
    one.save()
    one.files.begin(one.attempt, {})
    with pytest.raises(FilesTorn) as torn:
        one.save()
    one.freezer.torn(torn.value.paths)
    one.save()


def test_the_last_snapshot_is_read_where_it_lies_once_it_rests(run: Run) -> None:
    one = run.instance()
    one.write("large", "x" * 50)
    one.write("rest", "x" * 60)
    snapshot = one.snapshot(final=True)
    one.write("large", "written after the boundary by another process, and complete by now")
    (one.work / "rest").unlink()
    one.save(snapshot)
    two = run.instance()
    two.resume()
    assert two.contents()["large"].startswith("written after")
    assert two.contents()["rest"] == "x" * 60


def test_a_name_with_a_secret_is_in_no_list_and_a_resume_does_not_remove_its_file(run: Run) -> None:
    one = run.instance(secrets=["hunter2hunter2"])
    one.write("a", "x")
    one.write("of hunter2hunter2", "y")
    number = one.save()
    assert [file.path for file in run.listing(number).files] == ["a"]
    assert [(left.path, left.reason) for left in run.listing(number).left_out] == [("of " + "*" * 14, SECRET_NAME)]
    one.resume()
    assert one.contents()["of hunter2hunter2"] == "y"


def test_limits_and_secrets_leave_files_out_and_a_resume_does_not_remove_them(run: Run) -> None:
    one = run.instance(max_gb=25e-9, secrets=["hunter2hunter2"])
    one.write("a", "x" * 5)
    one.write("b", "hunter2hunter2")
    one.write("c", "z" * 30)
    number = one.save()
    assert [file.path for file in run.listing(number).files] == ["a"]
    left_out = {left.path: left.reason for left in run.listing(number).left_out}
    assert left_out == {"b": SECRET, "c": "checkpoint.files.max_gb is 2.5e-08, and smaller files have priority"}
    assert len(one.notes) == 2
    one.save()
    assert len(one.notes) == 2, "told once"
    one.resume()
    assert one.contents() == {**UPLOADED, "a": "x" * 5, "b": "hunter2hunter2", "c": "z" * 30}


@pytest.mark.parametrize("last_happens", [False, True], ids=["before", "after"])
def test_a_kill_at_any_moment_leaves_each_commit_whole(tmp_path: Path, last_happens: bool) -> None:
    killed = True
    for changes in range(14):
        folder = tmp_path / str(changes)
        folder.mkdir()
        run = Run(folder)
        one = run.instance()
        for text in ("one", "two"):
            one.write("a", text * 9)
            one.save()
        one.write("a", "three" * 9)
        run.history.write(ev.CheckpointRetired(attempt=one.attempt, commit=run.history.state.commits[0].number))
        run.store.left, run.store.last_happens = changes, last_happens
        killed = False
        try:
            one.save()
        except Killed:
            killed = True
        run.store.left = float("inf")
        two = run.instance()
        two.resume()
        assert two.contents()["a"] in ("two" * 9, "three" * 9)
        two.save()
        state = run.history.state
        named = {key for each in kept(state) for key in (each.event.key, *read_listing(run.store, each).keys())}
        assert {key for key in run.store.objects if key.startswith("outputs/")} == named, "and nothing is left over"
    assert not killed, "the last of these was not killed any more"


def test_a_sending_that_is_called_off_leaves_the_checkpoints_as_they_are(run: Run) -> None:
    one = run.instance()
    one.write("a", "1")
    one.save()
    one.write("a", "2")
    control = UploadControl()
    control.cancel()
    with pytest.raises(Abandoned):
        one.save(control=control)
    one.resume()
    assert one.contents()["a"] == "1"


def test_nothing_is_swept_while_another_sends(run: Run) -> None:
    one = run.instance()
    with one.pieces.sending(lambda: None) as sending:
        sending.pieces([b"about to be named"])
        one.write("a", "1")
        one.save()
        assert b"about to be named" in run.pieces()
    one.files.sweep()
    assert b"about to be named" not in run.pieces()


def test_the_last_look_adds_to_the_files_of_the_last_commit(run: Run) -> None:
    one = run.instance()
    one.write("old", "1")
    one.save()
    two = run.instance()
    two.resume()
    (two.work / "old").unlink()
    two.write("new", "2")
    number = two.save()
    keeper = _Storing(two.node, two.pieces, two.attempt, chooser(("**",)), lambda: None)
    two.node.recorder = SimpleNamespace(state=run.history.state, append=lambda decide: pytest.fail(str(decide)))
    keeper.store(lambda: None, ending=True)
    newest = run.history.state.newest_outputs()
    assert newest is not None
    assert newest.event.commit == number
    assert [file.path for file in run.listing(number).files] == ["new"]


@pytest.mark.parametrize(
    "listing",
    [
        Listing(files=(OutputFile(path="../outside", size_bytes=0, modified_ns=0, attempt=0),)),
        Listing(files=(), removed=("../outside",)),
    ],
)
def test_a_list_that_leads_outside_is_damage(run: Run, listing: Listing) -> None:
    one = run.instance()
    number = one.save()
    outside = one.work.parent / "outside"
    outside.write_text("not of the run")
    with one.pieces.sending(lambda: None) as sending:
        stored = one.pieces.put_list(sending, listing)
    commit = run.history.state.commit(number)
    files = replace(commit.event.files, key=stored.key, blake3=stored.blake3)
    hostile = replace(commit, event=replace(commit.event, files=files))
    with pytest.raises(CheckpointDamaged):
        FilesOfCommit(one.node, hostile, {}).fetch()
    assert outside.read_text() == "not of the run"


def test_a_piece_that_is_gone_is_damage_and_changes_nothing(run: Run) -> None:
    one = run.instance()
    one.write("a", "1")
    one.save()
    for key in [key for key, value in run.store.objects.items() if value == b"1"]:
        del run.store.objects[key]
    two = run.instance()
    files = FilesOfCommit(two.node, run.history.state.latest_commit(), {})
    with pytest.raises(CheckpointDamaged, match="the checkpoint's files: cannot fetch a: "):
        files.fetch()
    with pytest.raises(CheckpointDamaged, match="is missing"):
        verify_files(run.store, run.history.state.commits[-1])
    assert two.contents() == UPLOADED


def test_survey_from_before_a_checkpoint_is_never_the_newest_again(run: Run) -> None:
    one = run.instance()
    one.write("a", "1")
    run.history.write(
        ev.OutputsStored(
            attempt=one.attempt, key="outputs/1/list-x.json", blake3="x", commit=None, step=0, looked_at=START,
            files=1, size_bytes=1, objects=1, sent_bytes=1, stored_bytes=1,
        )
    )  # fmt: skip
    looked = run.history.state.newest_outputs()
    assert looked is not None
    assert looked.event.key == "outputs/1/list-x.json"
    number = one.save()
    newest = run.history.state.newest_outputs()
    assert newest is not None
    assert newest.event.commit == number
    run.history.write(ev.CheckpointRetired(attempt=one.attempt, commit=number))
    assert run.history.state.newest_outputs() is None
