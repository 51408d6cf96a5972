"""Joins the state files of a gang's members into one checkpoint: two agents' parts, one store, no trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from errno import EACCES
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from spotrun.agent import gang_state
from spotrun.agent.files.commit_files import StateRefused
from spotrun.agent.files.restore import restore_state
from spotrun.agent.gang import state_answers
from spotrun.agent.gang.state_answers import StateAnswers
from spotrun.agent.gang_state import OthersState
from spotrun.agent.logs.output_redaction import OutputRedaction
from spotrun.agent.snapshots.snapshot import Snapshot
from spotrun.agent.trainees.state_watch import CopyRequest
from spotrun.checkpoint.outputs import read_listing
from spotrun.checkpoint.upload import Abandoned, UploadControl
from spotrun.clock import ScaledClock
from spotrun.folder.status_objects import AgentStatus, StateAnswer, agent_key
from spotrun.folder.stored_files import FOLDER, Link, Listing, OutputFile, RankFiles
from spotrun.run.gang import MemberName
from spotrun.run.state import Commit
from tests.support.histories import START
from tests.support.memory_store import MemoryStore
from tests.support.state_bench import StateInstance, StateRun

LEAD, OTHER = MemberName(1, 0), MemberName(1, 1)


class Member(StateInstance):
    """A member of a gang. `said` is called with each answer before the lead can read it."""

    def __init__(self, run: StateRun, name: MemberName) -> None:
        super().__init__(run, run.folder / str(name))
        self.said: Callable[[StateAnswer], object] = lambda answer: None
        self._sequence = 0
        self._name = name
        self.node.clock = ScaledClock(START, 100.0)
        self.node.status = SimpleNamespace(facts={})
        self.node.heartbeat = SimpleNamespace(beat_now=self._beat)

    def _beat(self) -> None:
        self._sequence += 1
        facts: dict[str, Any] = self.node.status.facts
        if (answer := facts.get("state_answer")) is not None:
            self.said(answer)
        status = AgentStatus(launch=1, phase="train", at=START, sequence=self._sequence, **facts)
        self.run.store.put(agent_key(self._name.launch, self._name.member), msgspec.json.encode(status))

    def write(self, path: str, text: str) -> None:
        (self.work / path).parent.mkdir(parents=True, exist_ok=True)
        (self.work / path).write_text(text)

    def has(self) -> dict[str, str]:
        out = self.work / "out"
        return {str(each.relative_to(out)): each.read_text() for each in sorted(out.rglob("*")) if each.is_file()}


class Pair:
    """A lead and one other member."""

    def __init__(self, folder: Path) -> None:
        self.run = StateRun(folder, MemoryStore())
        self.run.history.running()
        self.lead, self.other = Member(self.run, LEAD), Member(self.run, OTHER)
        self.answers = StateAnswers(self.other.node, self.run.history.attempt, LEAD)
        self.answers.begins(0, None)
        self.answers.start()
        self.others = OthersState(self.lead.node, self.lead.files._pieces, (OTHER,), lambda: True)

    def commit(self) -> Listing:
        """Make a checkpoint, and return its list of files."""
        self.lead.watch.want(CopyRequest(0, is_last=True))
        frozen = self.lead.inbox.get().state
        assert frozen is not None
        snapshot = SimpleNamespace(attempt=self.run.history.attempt, incarnation=0, taken=SimpleNamespace(final=False))
        control = UploadControl()
        with self.lead.files.stored(frozen, control) as stored:
            assert stored is not None
            joined = self.others.join(cast(Snapshot, snapshot), stored.name, frozen, control)
            whole = self.lead.files.joined(stored, joined)
            self.run.history.commit(files=whole.name, size_bytes=0, step=0)
            self.lead.files.committed(whole)
        frozen.close()
        self.lead.files.sweep()
        outputs = self.newest.outputs
        assert outputs is not None
        return read_listing(self.run.store, outputs)

    @property
    def newest(self) -> Commit:
        newest = self.run.history.state.latest_commit()
        assert newest is not None
        return newest

    def restore(self) -> None:
        """Both begin again with the newest checkpoint."""
        attempt = self.run.history.attempt
        self.lead.put_back(self.newest)
        self.answers.rest()
        restored = restore_state(self.other.node, self.newest, {}, attempt, rank=1)
        self.answers.begins(0, restored.of_others)

    def pieces(self) -> set[str]:
        return {each.key for each in self.run.store.list(FOLDER)}


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    for module in (gang_state, state_answers):
        monkeypatch.setattr(module, "REST_MIN_S", 0.0)
    monkeypatch.setattr(state_answers, "LOOKS_EVERY_MIN_S", 0.002)
    made = Pair(tmp_path)
    yield made
    made.answers.close()
    made.lead.close()


def test_a_checkpoint_has_what_each_member_wrote_and_each_begins_with_its_own(pair: Pair) -> None:
    pair.lead.write("out/shard", "of 0")
    pair.lead.write("out/same", "equal")
    pair.other.write("out/shard", "of 1")
    pair.other.write("out/same", "equal")
    pair.other.write("out/deep/part-1", "only of 1")
    (pair.other.work / "out" / "last").symlink_to("deep/part-1")
    listing = pair.commit()
    assert [file.path for file in listing.files] == ["out/same", "out/shard"]
    (part,) = listing.others
    assert [file.path for file in part.files] == ["out/deep/part-1", "out/shard"]
    assert (part.rank, part.links) == (1, (Link("out/last", "deep/part-1"),))
    assert pair.newest.event.files is not None
    assert pair.newest.event.files.files == 5
    pair.restore()
    common = {"deep/part-1": "only of 1", "last": "only of 1", "same": "equal"}
    assert pair.lead.has() == {**common, "shard": "of 0"}
    assert pair.other.has() == {**common, "shard": "of 1"}


def test_a_file_stays_with_the_member_that_wrote_it_when_the_others_have_only_got_it_back(pair: Pair) -> None:
    pair.lead.write("out/of-0", "old")
    pair.other.write("out/of-1", "old")
    pair.other.write("out/gone", "old")
    pair.commit()
    pair.restore()
    pair.lead.write("out/of-0", "new")
    (pair.other.work / "out" / "gone").unlink()
    listing = pair.commit()
    assert [file.path for file in listing.files] == ["out/of-0"], "not what it was only given"
    assert [[file.path for file in part.files] for part in listing.others] == [["out/of-1"]]
    pair.restore()
    assert pair.lead.has() == pair.other.has() == {"of-0": "new", "of-1": "old"}


def test_files_that_change_after_they_were_stored_are_stored_once_more(pair: Pair) -> None:
    def change(answer: StateAnswer) -> None:
        if answer.stored is not None:
            pair.other.said = lambda answer: None
            pair.other.write("out/of-1", "changed since")

    pair.lead.write("out/of-0", "0")
    pair.other.write("out/of-1", "as first stored")
    pair.other.said = change
    listing = pair.commit()
    assert {key for key in pair.pieces() if "list" not in key} == set(listing.keys()), "nothing is left over"
    pair.restore()
    assert pair.lead.has() == {"of-0": "0", "of-1": "changed since"}


def test_the_last_checkpoint_has_what_another_member_alone_has_written_at_the_end(pair: Pair) -> None:
    pair.lead.write("out/of-0", "0")
    pair.other.write("out/of-1", "0")
    pair.commit()
    pair.other.write("out/of-1", "the end")
    pair.commit()
    pair.restore()
    assert pair.lead.has() == {"of-0": "0", "of-1": "the end"}


def test_a_copy_is_dropped_if_the_leads_files_change_while_another_member_stores_its_own(pair: Pair) -> None:
    def change(answer: StateAnswer) -> None:
        if answer.stored is not None:
            pair.lead.write("out/of-0", "1")

    pair.lead.write("out/of-0", "0")
    pair.other.write("out/of-1", "0")
    pair.other.said = change
    with pytest.raises(Abandoned):
        pair.commit()
    assert pair.run.history.state.latest_commit() is None
    pair.other.said = lambda answer: None
    listing = pair.commit()
    assert {key for key in pair.pieces() if "list" not in key} == set(listing.keys())


def test_a_secret_in_another_members_file_is_neither_stored_nor_told(pair: Pair) -> None:
    pair.other.node.console = SimpleNamespace(redaction=OutputRedaction(("hunter2hunter2",)))
    pair.lead.write("out/of-0", "0")
    pair.other.write("out/of-1", "hunter2hunter2")
    with pytest.raises(StateRefused, match=r"out/of-1 cannot be stored: the file contains .* secret \(on 1\.1\)"):
        pair.commit()
    assert not any(b"hunter2" in data for data in cast(MemoryStore, pair.run.store).objects.values())


def test_a_file_that_another_member_cannot_read_is_named(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(work: object, file: object) -> None:
        raise PermissionError(EACCES, "Permission denied")

    monkeypatch.setattr(state_answers, "at_place", unreadable)
    pair.lead.write("out/of-0", "0")
    pair.other.write("out/of-1", "0")
    with pytest.raises(StateRefused, match=r"out/of-1 cannot be read: Permission denied \(on 1\.1\)"):
        pair.commit()


def test_a_member_whose_files_never_stop_changing_is_named(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_state, "RESTS_MAX", 4)
    pair.other.said = lambda answer: pair.other.write("out/log", f"{answer} {len(pair.other.has()['log'])}")
    pair.lead.write("out/of-0", "0")
    pair.other.write("out/log", "")
    with pytest.raises(StateRefused, match=r'out/log on 1\.1 never stopped changing; try: .*"!out/log"'):
        pair.commit()


def entry(path: str) -> OutputFile:
    return OutputFile(path=path, size_bytes=0, modified_ns=0, attempt=1)


def test_a_list_names_each_ranks_files_once_and_a_fetch_gets_all_of_them() -> None:
    of = (RankFiles(rank=1, files=(entry("a"), entry("b"))), RankFiles(rank=2, files=(entry("a"), entry("c"))))
    listing = Listing(files=(entry("a"),), others=of)
    assert listing.flaw() is None
    assert listing.of_rank(2).writers == {"a": 2, "c": 2, "b": 1}
    assert [file.path for file in listing.with_copies] == ["a", "a.rank1", "b", "a.rank2", "c"]
    assert Listing(files=(), others=(of[0], of[0])).flaw() == "its list has a rank twice"
    hostile = RankFiles(rank=1, files=(entry("../out"),))
    assert "not a file inside" in str(Listing(files=(), others=(hostile,)).flaw())
