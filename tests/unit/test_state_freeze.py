"""The state of a command: what a survey sees of it, when it is at rest, and a copy that is of one moment or none."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spotrun.agent.files.quiescence import (
    NAME_FEWER,
    REST_MIN_S,
    REST_S,
    TimedSurvey,
    Writer,
    in_words,
    pause_s,
    rest_s,
    why_not_at_rest,
)
from spotrun.agent.snapshots.freeze import Freezing, NotAtRest
from spotrun.agent.snapshots.frozen import Frozen
from spotrun.folder import frozen_files, state_files
from spotrun.folder.frozen_files import ContentSource
from spotrun.folder.paths import leads_inside
from spotrun.folder.state_files import NO_STATE, TOO_MANY, StateAt, has_too_many, survey
from spotrun.folder.stored_files import Link, Listing
from spotrun.folder.work_files import NO_FILE, NOWHERE, OUTSIDE, FileVersion, LinkTo, Survey
from spotrun.spec.patterns import chooser


class Work:
    """A work folder whose state is in out/ and model.ckpt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.beside = folder
        self.folder.mkdir()
        self.write("out/a.txt", "one")
        self.write("out/deep/b.bin", "two" * 5000)
        self.write("model.ckpt", "weights")
        self.write("log.txt", "no state")

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def survey(self) -> Survey:
        return survey(self.folder, StateAt(("out", "model.ckpt", "none")))

    def freeze(self, known: dict[str, FileVersion] | None = None, at_rest: Survey | None = None) -> Frozen:
        return Freezing(self.folder, self.beside, self.survey, known or {}).freeze(at_rest or self.survey())


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


def content(frozen: Frozen) -> dict[str, str]:
    found = {}
    for file in frozen.folder.files:
        if file.source is not ContentSource.KNOWN:
            with frozen.open(file, Path("none is read at its place")) as whole:
                found[file.path] = b"".join(whole.pieces(1000)).decode()
    return found


# -- surveys ------------------------------------------------------------------------------------------------------


def test_state_is_all_that_lies_at_its_paths(work: Work) -> None:
    (work.folder / "out/empty").mkdir(mode=0o700)
    (work.folder / "out/.cache").mkdir()
    work.write("out/.cache/seen", "a cache of the command is its own affair, and kept")
    found = work.survey()
    assert set(found.files) == {"out/a.txt", "out/deep/b.bin", "out/.cache/seen", "model.ckpt"}
    assert set(found.folders) == {"out", "out/deep", "out/empty", "out/.cache"}
    assert found.folders["out/empty"] == 0o700
    assert not found.refused


def test_files_that_the_job_excludes_are_no_state(work: Work) -> None:
    work.write("out/run.log", "always growing")
    work.write("out/tmp/half", "of a file")
    found = survey(work.folder, StateAt(("out",), chooser(["out/*.log", "out/tmp/"])))
    assert set(found.files) == {"out/a.txt", "out/deep/b.bin"}


def test_devices_sockets_and_pipes_are_named(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(work.folder / "out/pipe")
    here = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(work.folder)
    here.bind("out/socket")
    here.close()
    assert work.survey().refused == {"out/pipe": NO_FILE, "out/socket": NO_FILE}


def test_a_link_within_state_stays_one_and_any_other_is_named(work: Work) -> None:
    for name, target in (
        ("newest", "deep"),
        ("deep/up", "../a.txt"),
        ("whole", str(work.folder / "model.ckpt")),
        ("beyond", "../log.txt"),
        ("outside", "/etc/hostname"),
        ("nothing", "gone"),
        ("round", "round"),
    ):
        (work.folder / "out" / name).symlink_to(target)
    found = work.survey()
    links = {"out/newest": "deep", "out/deep/up": "../a.txt", "out/whole": "../model.ckpt"}
    assert found.links == {path: LinkTo(target) for path, target in links.items()}
    assert found.refused == {
        "out/beyond": NO_STATE,
        "out/outside": OUTSIDE,
        "out/nothing": NOWHERE,
        "out/round": NOWHERE,
    }


def test_a_state_folder_that_is_a_link_means_what_it_leads_to(work: Work) -> None:
    (work.folder / "state").symlink_to("out")
    found = survey(work.folder, StateAt(("state",)))
    assert found.links == {"state": LinkTo("out")}
    assert set(found.files) == {"out/a.txt", "out/deep/b.bin"}


def test_too_many_files_end_the_survey(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_files, "STATE_FILES_MAX", 10)
    for number in range(50):
        work.write(f"out/{number}", "x")
    found = work.survey()
    assert has_too_many(found)
    assert len(found.files) < 15
    assert why_not_at_rest(TimedSurvey(found, 0), TimedSurvey(found, 0), None) == TOO_MANY
    assert in_words(TOO_MANY) == (TOO_MANY, NAME_FEWER), "however long it rests"
    assert (
        in_words("out/log is still being written")[0] == "its files never stop changing: out/log is still being written"
    )


def test_a_list_names_no_link_that_leads_out() -> None:
    inside = [("a", "b"), ("a/b", "../c"), ("a/b/c", "../../d"), ("a", "b/../c"), ("a/b", "..")]
    outside = [("a", "../b"), ("a/b", "../../c"), ("a", "/etc"), ("a", ""), ("a", "b/../../c"), ("a", "x\0")]
    assert all(leads_inside(*each) for each in inside)
    assert not any(leads_inside(*each) for each in outside)
    for path, target in outside:
        assert "leads out" in str(Listing(files=(), links=(Link(path, target),)).flaw())
    assert Listing(files=(), links=(Link("a/b", "../c"),)).flaw() is None
    assert Listing(files=(), links=(Link("../b", "c"),)).flaw() is not None


# -- rest ---------------------------------------------------------------------------------------------------------


def test_state_is_quiescent_when_two_surveys_agree_and_no_process_may_write(work: Work) -> None:
    before = TimedSurvey(work.survey(), 0)
    assert why_not_at_rest(before, TimedSurvey(work.survey(), 0), None) is None
    writer = Writer(7, "sim", "out/a.txt")
    assert (
        why_not_at_rest(before, TimedSurvey(work.survey(), 0), writer)
        == "out/a.txt is open for writing in sim (process 7)"
    )
    assert "mapped for writing" in str(why_not_at_rest(before, before, writer._replace(mapped=True)))


@pytest.mark.parametrize("change", ["append", "rename over", "new", "gone", "chmod", "folder", "link", "same size"])
def test_any_change_between_two_looks_is_none(work: Work, change: str) -> None:
    target, before = work.folder / "out/a.txt", TimedSurvey(work.survey(), 0)
    match change:
        case "append":
            target.write_text("one more")
        case "rename over":
            work.write("out/b.tmp", "one")
            os.rename(work.folder / "out/b.tmp", target)
        case "new":
            work.write("out/c.txt", "")
        case "gone":
            target.unlink()
        case "chmod":
            target.chmod(0o600)
        case "folder":
            (work.folder / "out/more").mkdir()
        case "link":
            (work.folder / "out/link").symlink_to("a.txt")
        case "same size":
            target.write_text("eno")
            os.utime(target, ns=(before.survey.files["out/a.txt"].stamp.modified_ns,) * 2)
    assert "is still being written" in str(why_not_at_rest(before, TimedSurvey(work.survey(), 0), None))


def test_a_pause_is_long_enough_for_programs_and_for_the_machine(work: Work) -> None:
    look = TimedSurvey(work.survey(), 0.01)
    assert rest_s(look, 1.0) == REST_S
    assert rest_s(look, 60.0) == REST_MIN_S
    assert rest_s(look._replace(took_s=4.0), 1.0) == 8.0
    assert pause_s(look, 1.0) == REST_S / 5, "a rest is seen soon after it is long enough"
    assert pause_s(look._replace(took_s=1.0), 1.0) == 20.0, "looking takes little of the machine"


# -- freezes ------------------------------------------------------------------------------------------------------


def test_a_freeze_copies_what_has_changed(work: Work) -> None:
    found = work.survey()
    known = {"model.ckpt": found.files["model.ckpt"]}
    frozen = work.freeze(known)
    work.write("out/a.txt", "later")
    assert content(frozen) == {"out/a.txt": "one", "out/deep/b.bin": "two" * 5000}
    assert frozen.changed_bytes == 15_003
    frozen.close()


def test_a_file_system_that_shares_no_blocks_is_copied_from(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", none)
    assert content(work.freeze())["out/deep/b.bin"] == "two" * 5000


class Interrupting:
    """Acts before the call number `at` of those that a freeze makes; `calls` counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, act: Any) -> None:
        self.calls, self._at, self._act = 0, at, act
        for name in ("open", "fstat", "copy_file_range", "dup", "close", "scandir", "stat"):
            monkeypatch.setattr(os, name, self._watched(getattr(os, name)))

    def _watched(self, call: Any) -> Any:
        def watched(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls == self._at:
                self._act()
            return call(*arguments, **named)

        return watched


def calls_of_a_freeze(work: Work) -> Iterator[int]:
    at_rest = work.survey()
    with pytest.MonkeyPatch.context() as patch:
        counted = Interrupting(patch, -1, None)
        work.freeze(at_rest=at_rest).close()
    yield from range(1, counted.calls + 1)


def test_a_write_before_any_call_of_a_freeze_drops_it_or_comes_after_it(work: Work) -> None:
    """Two files that belong together: no freeze has the one before and the other after."""
    dropped = kept = 0
    for at in calls_of_a_freeze(work):
        work.write("out/a.txt", "one")
        work.write("model.ckpt", "of one")
        at_rest = work.survey()

        def both() -> None:
            work.write("out/a.txt", "two")
            work.write("model.ckpt", "of two")

        with pytest.MonkeyPatch.context() as patch:
            Interrupting(patch, at, both)
            try:
                frozen = work.freeze(at_rest=at_rest)
            except NotAtRest:
                dropped += 1
                continue
        found = content(frozen)
        frozen.close()
        assert (found["out/a.txt"], found["model.ckpt"]) == ("one", "of one")
        kept += 1
    assert dropped > 20
    assert kept


def test_a_kill_at_any_call_of_a_freeze_leaves_nothing_behind(work: Work) -> None:
    class Killed(BaseException):
        pass

    def die() -> None:
        raise Killed

    before, survived = sorted(os.listdir(work.beside)), 0
    for at in calls_of_a_freeze(work):
        at_rest = work.survey()
        with pytest.MonkeyPatch.context() as patch:
            Interrupting(patch, at, die)
            with contextlib.suppress(Killed):
                work.freeze(at_rest=at_rest).close()
                survived += 1
        assert sorted(os.listdir(work.beside)) == before
    assert survived < 5, "an object of the one before may close its files in this one"


def test_a_file_that_is_gone_or_shorter_drops_the_freeze(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    at_rest = work.survey()
    (work.folder / "out/a.txt").unlink()
    with pytest.raises(NotAtRest, match="is gone"):
        work.freeze(at_rest=at_rest)
    work.write("out/a.txt", "one")
    monkeypatch.setattr(frozen_files, "_copy_some", lambda *_: 0)
    with pytest.raises(NotAtRest, match="became shorter during the copy"):
        work.freeze()
