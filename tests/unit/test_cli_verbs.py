"""What verbs take and refuse on the command line, and how runs that have ended are cleared away."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from spotrun.cli.app import HEADINGS, VERBS, app
from spotrun.clouds.local.config import MarketConfig
from spotrun.clouds.local.records import CloudPaths, Record
from spotrun.clouds.registry import cloud_named
from spotrun.errors import CloudError, Unreckonable
from spotrun.instance import Instance, InstanceState
from spotrun.report.tables import dollars
from spotrun.runner.creation import prepare_run
from spotrun.runs.completion import job_files
from spotrun.runs.flags import RENAMED, with_new_names
from spotrun.runs.known import create_known
from spotrun.version import __version__
from tests.support.called_spotrun import Spotrun, call
from tests.support.decisions import spec
from tests.support.histories import START, History, offering
from tests.support.stored_runs import new_run, store_run

LEAST = "should be greater than or equal to 1"


def ended(runs: Path, name: str, uid: str) -> Path:
    """A run that completed, with a few objects beside its ledger."""
    history = History(name=name, uid=uid, spec=spec().to_dict())
    history.running()
    history.completed(history.commit())
    history.gone(1)
    folder = store_run(runs, history)
    for key in ("checkpoints/2-0-1/manifest.json", "logs/1/000000"):
        path = folder / key
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * 100)
    return folder


def left_disk(cloud: Path, run_uid: str, digit: str) -> Path:
    """The disk of a local instance that has ended."""
    instance = Instance(
        instance_id=f"i-{digit * 17}",
        token=digit,
        run_uid=run_uid,
        launch=1,
        offering=offering(),
        state=InstanceState.TERMINATED,
        launched_at=START,
        ended_at=START,
    )
    record = Record(
        instance=instance,
        run_uri="",
        time_to_live_s=60,
        clock_epoch=START,
        time_scale=1,
        market=MarketConfig(),
        init=(),
    )
    places = CloudPaths(cloud)
    places.create()
    folder = places.record_folder(instance.instance_id)
    assert folder is not None
    folder.create()
    folder.write(record)
    disk = places.disk(instance.instance_id)
    disk.mkdir()
    (disk / "console.log").write_text("booted")
    return disk


# -- help --------------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_every_verb_has_its_place_in_the_help(spotrun: Spotrun) -> None:
    listed = [name for names in HEADINGS.values() for name in names]
    assert sorted(listed) == sorted(name for name, verb in VERBS.items() if not verb.same_as)
    for words in (["-h"], ["launch", "-h"], ["checkpoints", "-h"], ["checkpoints", "ls", "-h"]):
        assert spotrun(*words).out == spotrun(*words[:-1], "--help").out
    said = spotrun("--version").out
    assert re.fullmatch(rf"spotrun {__version__}( \(commit [0-9a-f]+(-dirty)?\))?\nextras: .*\n", said)
    assert spotrun("version").out == said


# -- flags that make no sense ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("report x --json --csv", "--json and --csv cannot be combined"),
        ("compare x y --csv --json", "--json and --csv cannot be combined"),
        ("compare x y --md --json", "--json and --md cannot be combined"),
        ("simulate --traces . --csv --json", "--csv and --json cannot be combined"),
        ("status --watch --json", "cannot be combined"),
        ("chaos x --notice 30s --no-notice", "--notice and --no-notice cannot be combined"),
        ("chaos x --notice 30", "needs a unit"),
        ("verify-resume x.py --kills 0", LEAST),
        ("verify-resume x.py --kills 2 --at 5", "--kills and --at cannot be combined"),
        ("verify-resume x.py --at 0", "steps, counted from 1"),
        ("verify-resume x.py --at 5,-1", "steps, counted from 1"),
        ("verify-resume x.py --at ''", "steps, counted from 1"),
        ("verify-resume x.py --within 0s", "longer than 0s"),
        ("simulate --traces . --work 8h --deadline 4h", "every --deadline is too short"),
        ("simulate --traces . --on-demand inf", "is not a finite number"),
        ("simulate --traces . --price-ratio inf", "is not a finite number"),
        ("simulate --traces . --nodes 0", LEAST),
        ("plan x.yaml --lifetimes 0", LEAST),
        ("compare x --last 0", LEAST),
        ("status --last 0", LEAST),
        ("checkpoints prune x --keep 0", LEAST),
        ("prune --older 30", "write 30d, or 30h for hours"),
        ("prune --older 0d", "longer than 0s"),
        ("prune --older -1d", "must not be negative"),
    ],
)
def test_counts_times_and_pairs_that_make_no_sense_are_refused(
    runs: Path, spotrun: Spotrun, words: str, says: str
) -> None:
    said = spotrun(*[word.strip("'") for word in words.split()])
    assert said.code == 2
    assert says in said.err + said.out
    assert "Traceback" not in said.err


# -- old names of flags ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_flag_is_read_by_its_old_name_and_shown_by_its_new_one(old: str, new: str, spotrun: Spotrun) -> None:
    for words in ([old, "3"], [f"{old}=3"], [new, "3"]):
        renamed = with_new_names(["job.yaml", *words, "-y", "--", old], {new})
        assert renamed == ["job.yaml", words[0].replace(old, new), *words[1:], "-y", "--", old]
    assert with_new_names([old, "3"], {old}) == [old, "3"], "another verb has a flag of that name"
    verbs = [verb for verb in ("launch", "sweep", "bench") if f" {new} " in spotrun(verb, "--help").out]
    assert verbs
    for verb in verbs:
        assert f"{old} " not in spotrun(verb, "--help").out
        both = spotrun(verb, "job.yaml", f"{old}=3", f"{new}=3")
        assert (both.code, both.err) == (
            2,
            f"error: both {new} and its old name {old} are given\n  try: leave out {old}\n",
        )


# -- status ------------------------------------------------------------------------------------------------------------


def test_status_of_some_runs(runs: Path, spotrun: Spotrun) -> None:
    ended(runs, "resnet", "1" * 10)
    new_run(runs, "resnet50", "2" * 10)
    new_run(runs, "bert", "3" * 10)

    def shown(*words: str) -> set[str]:
        return {row["run"].partition("-")[0] for row in spotrun("status", *words, "--json").json}

    assert shown() == {"resnet", "resnet50", "bert"}
    assert shown("--open") == {"resnet50", "bert"}
    assert shown("resnet") == {"resnet"}
    assert shown("res") == {"resnet", "resnet50"}
    assert shown("33") == {"bert"}
    assert shown("res", "--open") == {"resnet50"}
    assert len(spotrun("status", "--last", "1", "--json").json) == 1
    assert "no run's name or id begins with 'ghost'" in spotrun("status", "ghost").err
    assert "has ended" in spotrun("status", "resnet", "--open").out


@pytest.mark.exhaustive
def test_tables_fit_a_narrow_terminal_and_keep_money_and_states_whole(
    runs: Path, spotrun: Spotrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for name, uid in (("resnet50-nightly", "1" * 10), ("resnet50-on-demand", "2" * 10)):
        ended(runs, name, uid)
    (runs.parent / "train.py").write_text("")
    (runs.parent / "job.yaml").write_text("name: first\nrun: python train.py\nresources: {cloud: local}\n")
    costs = {dollars(Decimal(row["cost_usd"])) for row in spotrun("status", "--json").json}
    of_runs = ("status", "report 1111111111", "compare 1111111111 2222222222")
    others = (
        "checkpoints ls 1111111111",
        "rm 1111111111 --dry-run",
        "offers --cloud local",
        "plan job.yaml --work 3h --lifetimes 20",
    )
    for words in of_runs + others:
        said = spotrun(*words.split())
        assert (said.code, said.err) == (0, ""), words
        assert max(map(cell_len, said.out.splitlines())) <= 60, words
        if words in of_runs:
            assert "completed" in said.out
            assert any(cost in said.out for cost in costs), words


def test_chaos_says_that_a_run_has_ended(runs: Path, spotrun: Spotrun) -> None:
    ended(runs, "done", "1" * 10)
    said = spotrun("chaos", "done")
    assert (said.code, said.err) == (4, "error: done-1111111111 has ended (completed): there is nothing to interrupt\n")


# -- clearing away -----------------------------------------------------------------------------------------------------


def test_stop_down_and_ssh_say_that_a_run_has_ended(
    runs: Path, spotrun: Spotrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ended(runs, "done", "0123456789")
    monkeypatch.setattr("spotrun.runs.open_run.or_newest_here", lambda run, store: run or str(folder))
    assert "has ended already" in spotrun("stop").out
    said = spotrun("down")
    assert (said.code, said.err) == (0, "note: done-0123456789 has ended already\n")
    assert "spotrun fetch" in spotrun("ssh", "done").err


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("validate --from sky", "try: spotrun validate --from sky SKY.yaml"),
        ("launch sub/pi.sh", "`spotrun init sub/pi.sh` writes a JOB.yaml"),
        ("init nosuch.py", "try: name a Python script or a shell script that exists"),
        ("launch cheap.yaml --budget 0.00001 --dry-run", "try: give a larger budget: the first instance needs $"),
    ],
)
def test_hint_repeats_what_was_typed_as_far_as_it_was_right(
    typed: str, says: str, runs: Path, spotrun: Spotrun
) -> None:
    Path("sub").mkdir()
    Path("sub/pi.sh").touch()
    Path("cheap.yaml").write_text("run: 'true'\n")
    assert says in spotrun(*typed.split()).err


def test_ended_run_is_deleted_whole_after_a_confirmation(runs: Path, spotrun: Spotrun) -> None:
    folder = ended(runs, "old", "1" * 10)
    disk, other = left_disk(runs.parent / "cloud", "1" * 10, "a"), left_disk(runs.parent / "cloud", "2" * 10, "b")
    said = spotrun("rm", "old", "--dry-run")
    assert "old-1111111111  completed 2026-" in said.out
    assert "and the local disks of 1 instance\n" in said.out
    assert "1 run, 0.0 MB would be deleted" in said.out
    assert "there is no terminal" in spotrun("rm", "old").err
    assert folder.exists()
    assert disk.exists()
    assert "1 run, 0.0 MB deleted" in spotrun("rm", "old", "-y").out
    assert not folder.exists()
    assert not disk.exists()
    assert other.exists(), "it is another run's"
    assert spotrun("status", "--json").json == []


def test_rm_of_a_name_says_which_runs_of_this_name_stay(runs: Path, spotrun: Spotrun) -> None:
    folders = [ended(runs, "old", digit * 10) for digit in "123"]
    said = " ".join(spotrun("rm", "old", "-y").out.split())
    left = [folder.name for folder in folders if folder.exists()]
    assert f"other runs called old stay, each removed by its id: {', '.join(left)}" in said
    assert len(left) == 2
    assert "by its id" not in spotrun("rm", *left, "-y").out


def test_down_of_a_name_says_which_runs_of_this_name_go_on(runs: Path, spotrun: Spotrun) -> None:
    for digit in "12":
        new_run(runs, "twin", digit * 10)
    ended(runs, "twin", "3" * 10)
    said = spotrun("down", "twin", "-y")
    assert "note: other runs of this name go on, each ended by its id: twin-" in said.out + said.err
    said = spotrun("down", "twin-1111111111", "-y")
    assert "go on" not in said.out + said.err


def test_unknown_name_is_compared_with_all_runs_that_are_known_here(runs: Path, spotrun: Spotrun) -> None:
    (work := runs.parent / "work").mkdir()
    wanted = spec(name="slow", workdir=str(work), checkpoint={"uri": f"{runs.parent}/bucket"})
    create_known(prepare_run(wanted, "a test")).ledger.refresh()
    said = spotrun("why", "slwo").err
    assert "nor among the runs that this machine knows in other stores\n  try: did you mean slow" in said


def test_rm_names_objects_that_it_cannot_delete(runs: Path, spotrun: Spotrun) -> None:
    """Nobody reads or deletes an object whose name is no key, and who put it there is not known."""
    folder = ended(runs, "old", "1" * 10)
    (folder / "outputs").mkdir(exist_ok=True)
    (folder / "outputs" / "my notes.txt").write_text("keep")
    said = " ".join(spotrun("rm", "old", "--dry-run").out.split())
    assert "stays: 1 object under names that spotrun does not use: outputs/my notes.txt; delete " in said
    assert spotrun("rm", "old", "-y").code == 0
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["my notes.txt"]


def test_living_or_possibly_living_run_is_not_deleted(runs: Path, spotrun: Spotrun) -> None:
    new = new_run(runs, "new", "1" * 10)
    history = History(name="lost", uid="2" * 10, spec=spec().to_dict())
    history.running()
    history.completed(history.commit())
    lost = store_run(runs, history)
    assert "has not ended" in spotrun("rm", "new", "-y").err
    assert "an instance of launch 1 may be left" in spotrun("rm", "lost", "-y").err
    done = ended(runs, "done", "3" * 10)
    assert spotrun("rm", "done", "new", "-y").code == 1
    assert all(folder.exists() for folder in (new, lost, done)), "one that may not go keeps the others"


def test_prune_takes_what_ended_long_ago_and_says_what_it_keeps(runs: Path, spotrun: Spotrun) -> None:
    old, young = ended(runs, "old", "1" * 10), new_run(runs, "new", "2" * 10)
    (runs / "note.txt").write_text("not a run")
    assert "0 runs, 0.0 MB would be deleted" in spotrun("prune", "--older", "3650d", "-y").out
    assert "has no run called ghost" in spotrun("prune", "ghost", "--older", "1h", "-y").err
    said = spotrun("prune", "--older", "1s", "-y")
    assert "kept new-2222222222: new-2222222222 has not ended" in said.out
    assert "1 run, 0.0 MB deleted" in said.out
    assert (old.exists(), young.exists()) == (False, True)


# -- completion --------------------------------------------------------------------------------------------------------


def completed(line: str) -> set[str]:
    words = {"_SPOTRUN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    return set(CliRunner().invoke(app, [], env=words, prog_name="spotrun").output.split())


def test_a_shell_completes_verbs_runs_and_job_files(runs: Path) -> None:
    ended(runs, "resnet50", "1" * 10)
    (runs.parent / "train.yaml").write_text("")
    (runs.parent / "train.txt").write_text("")
    (runs.parent / "jobs").mkdir()
    (runs.parent / "jobs" / "bert.yml").write_text("")
    assert {"report", "resume", "reap", "rm"} == completed("spotrun r")
    assert completed("spotrun report res") == {"resnet50", "resnet50-1111111111"}
    assert completed("spotrun checkpoints verify resnet50-") == {"resnet50-1111111111"}
    assert completed("spotrun launch tr") == {"train.yaml"}
    assert "--metric" in completed("spotrun report resnet50 --me")
    assert job_files("jobs/") == ["jobs/bert.yml"]
    assert job_files("j") == ["jobs/"]
    assert job_files(f"{runs.parent}/tr") == [f"{runs.parent}/train.yaml"]
    assert job_files("nowhere/x") == []
    assert completed("spotrun report res --store /nowhere") == set()
    assert completed("spotrun kill res") == {"resume"}, "no error of an unknown verb"
    assert not (runs.parent / "nowhere").exists()


def test_checkpoint_verification_is_printed_as_json(runs: Path, spotrun: Spotrun) -> None:
    ended(runs, "done", "1" * 10)
    said = spotrun("checkpoints", "verify", "done", "--json")
    (row,) = json.loads(said.out)["checkpoints"]
    assert said.code == 6
    assert set(row) == {"commit", "step", "epoch", "damage"}
    assert row["damage"]


def test_list_of_checkpoints_says_how_far_a_crashed_training_had_come(runs: Path, spotrun: Spotrun) -> None:
    history = History(name="demo", spec=spec().to_dict())
    history.running()
    history.step = 8
    history.after(60).commit()
    history.step = 100
    history.after(30).exited()
    history.ended()
    store_run(runs, history)
    said = spotrun("checkpoints", "ls", "demo").out
    assert said.endswith("newest checkpoint: step 8; the training had reached step 100\n")


def test_validate_takes_the_store_that_launch_would_take(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("run: 'true'\nresources: {cloud: gcp}\n")
    monkeypatch.delenv("SPOTRUN_STORE", raising=False)
    assert "cannot be reached from instances on gcp" in call(monkeypatch, "validate", str(job)).err
    monkeypatch.setenv("SPOTRUN_STORE", "gs://bucket/runs")
    assert call(monkeypatch, "validate", str(job)).code == 0


def test_a_hint_has_the_values_that_are_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gcp = cloud_named("gcp")
    for project, said in ((None, ""), ("my-project", " --project my-project")):
        with pytest.raises(CloudError) as caught:
            gcp.interrupt(spec(gcp={"project": project}), "i-1", "us-central1-a", None)
        assert f"simulate-maintenance-event i-1 --zone us-central1-a{said} interrupts" in str(caught.value.hint)
    job = tmp_path / "job.yaml"
    for line, said in (("", ""), ("gcp: {project: my-project}", " --project=my-project")):
        job.write_text(f"run: x\nsecrets: {{A: 'env:A'}}\nresources: {{cloud: gcp}}\n{line}\n")
        told = call(monkeypatch, "validate", str(job), "--store", "gs://bucket/runs").err
        assert f"gcloud secrets create spotrun-A{said}; IFS=" in told
    assert str(Unreckonable(ZeroDivisionError(), "demo").hint) == "see `spotrun events demo`"
