"""What `verify-resume` says of a command: it is compared by its files, and a second run in peace tells what varies."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from spotrun.exactness.folders import Folder
from spotrun.exactness.trace import Trace
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.spec.model import RunSpec
from spotrun.verify.command import CommandVerification, compare, is_command, waits
from spotrun.verify.command_report import text
from spotrun.verify.job import interrupted_command, straight
from spotrun.verify.kills import KillPlan, PlannedKill
from spotrun.verify.rehearsal import RehearsalResult
from spotrun.verify.report import as_json
from tests.support.decisions import spec
from tests.support.histories import FREE_STORAGE, History

PLAN = KillPlan(kills=2, at=(), seed=0, within=timedelta(minutes=1))


def command(state: list[str] | None = None) -> RunSpec:
    return spec(train={"run": "./simulate", **({} if state is None else {"state": state})})


FILES = ev.CommittedFiles(
    key="outputs/1/list-x.json", blake3="x", files=1, size_bytes=9, objects=1, sent_bytes=9, stored_bytes=9
)


def killed(resumes: bool) -> History:
    """One kill, ten seconds after its only checkpoint."""
    history = History(FREE_STORAGE, spec={"train": {"run": "./simulate", "state": ["out/"]}})
    history.start(history.launch())
    history.resume()
    if resumes:
        history.commit(files=FILES, size_bytes=0, step=0)
    history.after(10).ended(Cause.INTERRUPTED)
    history.start(history.launch())
    history.resume()
    history.completed(history.commit(files=FILES, size_bytes=0, step=0))
    return history


def left(folder: Path, kills: int = 0, resumes: bool = True, **files: str) -> RehearsalResult:
    for name, content in files.items():
        path = folder / name.replace("_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    paths = frozenset(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return RehearsalResult(
        ranks={0: Trace([])},
        work=Folder(folder, paths),
        refused={},
        not_carried=(),
        kills=(PlannedKill(step=0, victim="instance"),) * kills,
        duration_s=60.0,
        state=killed(resumes).state,
    )


def compared(
    tmp_path: Path, calm: dict[str, str], killed: dict[str, str], again: dict[str, str] | None = None, **options: bool
) -> CommandVerification:
    one, other = left(tmp_path / "calm", **calm), left(tmp_path / "killed", kills=1, **options, **killed)
    second = None if again is None else left(tmp_path / "again", **again)
    return compare(command(["out/"]), PLAN, one, other, second, lambda text: text)


def test_command_with_the_same_files_is_identical_and_its_kills_are_counted(
    tmp_path: Path,
) -> None:
    seen = compared(tmp_path, {"out_n": "5"}, {"out_n": "5"})
    assert seen.identical
    assert (seen.deterministic, seen.resumes_from_checkpoint) == (True, 1)
    said = text(seen)
    assert said.startswith("identical by content: 1 file is the same as without interruptions, killed 1 time\n")
    assert "1 time without a warning (not 2: a kill comes after a checkpoint, and the command ended earlier)" in said
    assert "the command resumed, and repeated 10s of its work (rework)" in said
    assert as_json(seen)["first_difference"] is None


def test_command_is_called_nondeterministic_where_two_undisturbed_runs_differ(tmp_path: Path) -> None:
    calm, other, again = ({"out_n": "5", "out_log": str(drawn)} for drawn in (1, 2, 3))
    seen = compared(tmp_path, calm, other, again)
    assert seen.identical, "of the rest"
    assert not seen.deterministic
    said = text(seen)
    assert "not compared: file out/log, as two uninterrupted runs differ there too" in said
    assert "the command is not deterministic" in said
    assert "the time of the repeated work" in said


def test_where_nothing_is_the_same_nothing_is_called_identical(tmp_path: Path) -> None:
    seen = compared(tmp_path, {"out_n": "1"}, {"out_n": "2"}, {"out_n": "3"})
    assert not seen.identical
    assert text(seen).startswith("not compared: no file is the same in two uninterrupted runs")


def test_command_that_never_resumed_is_not_called_identical(tmp_path: Path) -> None:
    seen = compared(tmp_path, {"out_n": "5"}, {"out_n": "5"}, resumes=False)
    assert not seen.identical
    assert text(seen).startswith("not compared: the interrupted training has resumed from no checkpoint\n")


def test_a_difference_is_named_with_its_likely_cause(tmp_path: Path) -> None:
    calm = {"out_n": "5", "beside": "5"}
    seen = compared(tmp_path / "a", calm, {"out_n": "5", "beside": "2"}, calm)
    assert not seen.identical
    assert "the file beside (line 1)" in text(seen)
    assert "the file is not part of the state, so no checkpoint has it: name it in train: {state: […]}" in text(seen)
    seen = compared(tmp_path / "b", calm, {"out_n": "6", "beside": "5"}, calm)
    assert "likely cause: the command resumed from the files of its state, but not exactly" in text(seen)
    seen = compared(tmp_path / "c", calm, {"out_n": "6", "beside": "5"}, calm, resumes=False)
    assert "1 of them from the start" in text(seen)
    assert "likely cause: the command began from the start after each kill" in text(seen)
    assert as_json(seen)["first_difference"]["likely_cause"].startswith("the command began from the start")


def test_a_command_is_what_keeps_files_and_has_no_trace(tmp_path: Path) -> None:
    assert is_command(command(["out/"]), left(tmp_path / "a", out_n="1"))
    assert not is_command(command(), left(tmp_path / "b", out_n="1"))
    (tmp_path / "c" / "spotrun-state").mkdir(parents=True)
    (tmp_path / "c" / "spotrun-state" / "n").write_text("1")
    assert is_command(command(), left(tmp_path / "c"))


def test_kills_come_within_an_interval_of_a_checkpoint_and_are_drawn_from_the_seed() -> None:
    drawn = waits(PLAN, 3.0)
    assert drawn == waits(PLAN, 3.0)
    assert len(drawn) == 2
    assert all(0 <= wait <= 3 for wait in drawn)


def test_a_command_has_its_intervals_in_time_and_a_stored_job_says_so(tmp_path: Path) -> None:
    for job in (straight(command(["out/"]), tmp_path), interrupted_command(command(["out/"]), tmp_path, 2.0)):
        assert isinstance(job.checkpoint.every, timedelta)
        RunSpec.model_validate(job.model_dump())
