"""What `spotrun sweep` refuses before anything is rented, and what a sweep is in a store."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace

from spotrun.errors import StoreError
from spotrun.folder.sweep_record import SweepRecord, create_sweep, find_sweep, key_of, record_trial, replace_sweep
from spotrun.run.events import SWEEP
from spotrun.runner.creation import prepare_run
from spotrun.runs.known import remember
from spotrun.runs.open_run import open_run
from spotrun.runs.sweeps import NamedSweep
from spotrun.spec.file import load_spec
from spotrun.spec.trials import trial_spec
from spotrun.store.opening import open_store
from spotrun.sweep import starting as sweep_start
from tests.support.called_spotrun import Spotrun
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore

SCRIPT = 'parser.add_argument("--lr")\nparser.add_argument("--width")\n'
JOB = "name: net\ntrain: {script: train.py}\nresources: {accelerators: 'V100:1'}\ncheckpoint: {uri: runs}\n"
RIGHT = ("--grid", "lr=1e-3,3e-4", "--budget", "40")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    path = tmp_path / "net.yaml"
    path.write_text(JOB)
    return path


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--grid", "lr=", "--budget", "40"), "'lr=' has no value"),
        (("--grid", "lr", "--budget", "40"), "'lr' has no value"),
        (("--grid", "lr=1", "--grid", "lr=2", "--budget", "40"), "names lr twice"),
        (("--grid", "lrr=1e-3,3e-4", "--budget", "40"), "train.py has no argument --lrr"),
        (("--grid", "lr=1e-3"), "a sweep needs a budget"),
        (("--grid", "lr=1e-3", "--budget", "4O"), "--budget"),
        (("--grid", "lr=1e-3", "--budget", "0.01"), "--budget is too small: a trial needs at least $0.52 to begin"),
        ((*RIGHT, "--deadline", "2020-01-01T07:00"), "has passed"),
        ((*RIGHT, "--deadline", "10s"), "is too early for a trial to finish"),
        ((*RIGHT, "--deadline", "soon"), "--deadline"),
        ((*RIGHT, "--reduction-factor", "1"), "is neither 0 nor a whole number of at least 2"),
        ((*RIGHT, "--stop-worst", "0.4"), "--reduction-factor 0.4 is neither 0 nor a whole number of at least 2"),
        (("--grid", "LR=1e-3,3e-4", "--budget", "40"), "did you mean lr?"),
        (("--grid", "lr=1e-3,3e-4", "--budget", "0"), "try: --budget 40"),
        (("--grid", "lr=[1,2],[3", "--budget", "40"), "a closing ']' is missing"),
        (("--grid", "lr=1],2", "--budget", "40"), "the ']' has no opening bracket"),
        ((*RIGHT, "--name", ""), "--name"),
        ((*RIGHT, "--metric", "val_acc"), "is a higher val_acc better, or a lower one?"),
        ((*RIGHT, "--mode", "most"), "--mode does not accept 'most'"),
        ((*RIGHT, "--name", "Net Sweep"), "--name"),
    ],
)
def test_mistake_is_reported_with_a_fix_and_nothing_is_made(
    job: Path, spotrun: Spotrun, flags: tuple[str, ...], said: str
) -> None:
    found = spotrun("sweep", str(job), *flags, "-y")
    assert found.code == 2, found
    assert said in found.err
    assert "try: " in found.err
    assert not (job.parent / "runs").exists()


def test_a_budget_below_the_need_that_the_job_tells_is_refused(job: Path, spotrun: Spotrun) -> None:
    job.write_text(JOB + "policy: {expected_work: 10h}\n")
    found = spotrun("sweep", str(job), "--grid", "lr=1e-3", "--budget", "20", "-y")
    assert found.code == 2
    assert "--budget is too small for one trial, which may cost $" in found.err
    found = spotrun("sweep", str(job), "--grid", "lr=1e-3", "--budget", "90", "--deadline", "11h", "-y")
    assert "--deadline leaves 11h, but a trial may take" in found.err


@pytest.mark.parametrize(
    ("budget", "job_more", "is_short"),
    [("1.20", "", True), ("400", "", False), ("1.20", "policy: {expected_work: 5m}\n", False)],
)
def test_dry_run_names_a_trials_budget_that_reserves_only_minutes_and_makes_nothing(
    job: Path, spotrun: Spotrun, budget: str, job_more: str, is_short: bool
) -> None:
    job.write_text(JOB + job_more)
    found = spotrun("sweep", str(job), "--grid", "lr=1e-3,3e-4", "--budget", budget, "--dry-run")
    assert found.code == 0, found
    assert "net-sweep: 2 trials, at most 4 at once" in found.out
    assert ("note: the first trial's budget of $0.60 reserves only 11m" in found.err) == is_short, found.err
    assert not (job.parent / "runs").exists()


# -- in a store ------------------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ManualClock())


UID = "0123456789"
RECORD = SweepRecord(
    name="net-sweep",
    uid="0123456789abcdef",
    began_at=datetime(2026, 11, 1, tzinfo=UTC),
    time_scale=1.0,
    trials=8,
    wanted={"--grid": ["lr=1,2"], "--sample": None},
    recorded=True,
)


def test_a_sweep_is_found_by_its_name_and_begins_once(store: MemoryStore) -> None:
    assert find_sweep(store, "net-sweep") is None
    assert create_sweep(store, RECORD)
    assert not create_sweep(store, replace(RECORD, uid="another"))
    assert find_sweep(store, "net-sweep") == RECORD
    replace_sweep(store, replace(RECORD, stopped_by="somebody"))
    found = find_sweep(store, "net-sweep")
    assert found is not None
    assert found.stopped_by == "somebody"
    store.put(key_of("net-sweep"), b"{}")
    with pytest.raises(StoreError, match="does not describe a sweep"):
        find_sweep(store, "net-sweep")


# -- by its name -----------------------------------------------------------------------------------------------------


@pytest.fixture
def begun(job: Path) -> NamedSweep:
    """A sweep of two trials of which the first has begun, and nobody takes care of it."""
    store = open_store(str(job.parent / "runs"))
    wanted = {"--grid": ["lr=1e-3,3e-4"], "--sample": None, "--seed": 0, "the job": ""}
    record = replace(RECORD, name="net", trials=2, wanted=wanted, budget_usd=Decimal(40), metric="val_loss")
    assert create_sweep(store, record)
    spec = trial_spec(load_spec(job, {"checkpoint.uri": store.uri}), record.run_name(1), Decimal(20))
    prepare_run(spec, "a test", uid=UID, part_of=f"{SWEEP}net").create()
    assert record_trial(store, record, 1, UID)
    return NamedSweep(store, record)


def test_the_report_of_a_sweep_is_found_by_its_name(begun: NamedSweep, spotrun: Spotrun) -> None:
    where = ("--store", begun.store.uri)
    found = spotrun("report", "net", *where, "--json").json
    assert (found["budget_usd"], found["begun"], found["trials"], found["ended"]) == ("40", 1, 2, False)
    assert [row["run"] for row in found["rows"]] == [f"net-1-{UID}"]
    assert {found["rows"][0]["params"]["lr"], found["not_begun"][0]["lr"]} == {"1e-3", "3e-4"}
    assert "1 of 2 trials have begun" in spotrun("report", "net", *where).out
    assert "`spotrun report net" in spotrun("status", "net", *where).out
    refused = spotrun("report", "net", *where, "--csv")
    assert refused.code == 2
    assert "name one of its trials, such as net-1" in refused.err
    begun.keep(replace(begun.record, budget_usd=None))
    assert "to see its report, repeat the command that began the sweep" in spotrun("report", "net", *where).err
    begun.keep(replace(begun.record, budget_usd=Decimal(40), wanted={}))
    assert "does not list the sweep's trials" in spotrun("report", "net", *where).err


def test_a_sweep_that_has_begun_one_run_is_not_taken_for_it(begun: NamedSweep, spotrun: Spotrun) -> None:
    for verb in ("resume", "logs", "why"):
        found = spotrun(verb, "net", "--store", begun.store.uri)
        assert found.code == 3
        assert "net is a sweep, whose runs are net-1 to net-2" in found.err
    assert spotrun("why", "net-1", "--store", begun.store.uri).code == 0


def test_a_sweep_that_another_machine_begins_in_the_same_moment_is_not_overwritten(
    begun: NamedSweep, job: Path, spotrun: Spotrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_start, "_found", lambda asked: None)
    found = spotrun("sweep", job, *RIGHT, "--name", "net", "-y", "-d")
    assert found.code == 1
    assert "another machine has just begun a sweep net" in found.err
    assert find_sweep(begun.store, "net") == begun.record


def test_continued_sweep_says_that_the_work_folder_has_changed(
    begun: NamedSweep, job: Path, spotrun: Spotrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(open_run(f"{begun.store.uri}/net-1-{UID}", None))
    monkeypatch.setattr(sweep_start, "_digest", lambda spec: "")
    monkeypatch.setattr(sweep_start, "_leave_behind", lambda sweep: None)
    words = ("sweep", job, *RIGHT, "--name", "net", "--metric", "val_loss", "--mode", "min", "-y", "-d")
    found = spotrun(*words)
    assert (found.code, "have changed" in found.err) == (0, False)
    (job.parent / "train.py").write_text(SCRIPT + "print()\n")
    found = spotrun(*words)
    assert found.code == 0
    assert f"note: files of the work folder have changed since net-1-{UID} was launched" in found.err


def test_dry_run_of_a_sweep_that_has_begun_is_refused(begun: NamedSweep, job: Path, spotrun: Spotrun) -> None:
    found = spotrun("sweep", job, *RIGHT, "--name", "net", "--dry-run")
    assert found.code == 2
    assert "the sweep net has begun already" in found.err
    assert find_sweep(begun.store, "net") == begun.record
