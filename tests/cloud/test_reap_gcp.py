"""`spotrun reap --cloud gcp`: what runs that are over have left in a project goes, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from spotrun.cli.reap import reap
from spotrun.clouds.gcp.calls import Google
from spotrun.clouds.gcp.driver import GcpDriver
from spotrun.clouds.gcp.run_accounts import RunAccounts
from spotrun.run import events as ev
from spotrun.runner.creation import prepare_run
from spotrun.runs.known import create_known
from spotrun.runs.open_run import OpenRun
from spotrun.spec.file import load_spec
from tests.support.gce_calls import wished
from tests.support.gce_launches import CONFIG, offered, reach, request
from tests.support.google_server import GoogleServer
from tests.support.histories import intended
from tests.support.manual_clock import ManualClock
from tests.support.object_stores import BUCKET

HERE = "us-central1"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime.now(UTC).replace(microsecond=0))


@pytest.fixture
def gce(clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleServer]:
    """A project with Compute Engine and IAM; nobody stores anything in its bucket."""
    with GoogleServer(clock, objects="http://127.0.0.1:9") as server:
        reach(server, tmp_path, monkeypatch)
        yield server


def run_in(folder: Path, name: str) -> OpenRun:
    job = folder / f"{name}.yaml"
    job.write_text(f"run: 'true'\ncheckpoint: {{uri: {folder}/runs}}\n")
    return create_known(prepare_run(load_spec(job), "a test"))


def reaped(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    reap(store=f"{folder}/runs", yes=True, cloud="gcp", region=[HERE], lost=None)
    return capsys.readouterr().out


def launched(driver: GcpDriver, run_uid: str) -> str:
    asked = request(offered(driver))
    return driver.launch(replace(asked, run_uid=run_uid, token=f"{run_uid}-7")).instance_id


def test_an_orphan_is_ended_and_the_instance_of_a_run_that_is_not_in_the_store_is_named(
    gce: GoogleServer, clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = GcpDriver(CONFIG, clock)
    orphan = launched(driver, run_in(tmp_path, "job").created.uid)
    strangers = launched(driver, "bbbbbbbbbb")
    clock.advance(30)
    ended, _, unknown = reaped(tmp_path, capsys).partition("of runs that are not in")
    assert orphan in ended
    assert strangers not in ended
    assert strangers in unknown
    clock.advance(60)
    assert {each.instance_id: each.alive for each in driver.instances()} == {orphan: False, strangers: True}


def test_reap_ends_an_instance_whose_labels_a_policy_has_taken_away(
    gce: GoogleServer, clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orphan = launched(GcpDriver(CONFIG, clock), run_in(tmp_path, "job").created.uid)
    clock.advance(30)
    gce.project.vm(orphan).labels = {}
    said = reaped(tmp_path, capsys)
    assert "ended 1\n" in said
    assert f"{orphan} has no label spotrun-run" in said


def test_reap_deletes_a_disk_without_labels_and_no_disk_of_others(
    gce: GoogleServer, clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, driver = run_in(tmp_path, "job"), GcpDriver(CONFIG, clock)
    name = launched(driver, run.created.uid)
    gce.project.insert("us-central1-a", wished("spotrun-web"), "somebody", None)
    clock.advance(30)
    driver.terminate(name)
    for each in (name, "spotrun-web"):
        for disk in gce.project.vm(each).disks:
            disk.auto_delete, disk.labels = False, {}
    gce.project.vm("spotrun-web").labels = {}
    gce.project.delete(gce.project.vm("spotrun-web"), "somebody", None)
    clock.advance(60)
    run.ledger.append(lambda _: ev.RunStopped(reason="a test"))
    assert "deleted 1\n" in reaped(tmp_path, capsys)
    clock.advance(60)
    assert [disk for _, disk in gce.project.disks] == ["spotrun-web"]


def test_g3_what_has_switched_itself_off_is_ended_with_its_disk(
    gce: GoogleServer, clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = GcpDriver(CONFIG, clock)
    stopped = launched(driver, run_in(tmp_path, "job").created.uid)
    clock.advance(30)
    gce.project.power_off(stopped)
    clock.advance(30)
    assert "ended 1\n" in reaped(tmp_path, capsys)
    clock.advance(60)
    gce.project.settle()
    assert gce.project.vms == {}
    assert gce.project.disks == {}


def test_g3_what_has_switched_itself_off_is_wanted_by_no_run_that_goes_on(
    gce: GoogleServer, clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_in(tmp_path, "job")
    driver = GcpDriver(CONFIG, clock)
    asked = offered(driver)
    event = run.ledger.append(lambda _: intended(asked, clock.now()))
    assert event is not None
    (number,) = run.ledger.refresh().launches
    wished = replace(request(asked, number), run_uid=run.created.uid, token=f"{run.created.uid}-{number}")
    drained = driver.launch(wished).instance_id
    clock.advance(30)
    assert "there is no instance to end" in reaped(tmp_path, capsys)
    gce.project.power_off(drained)
    clock.advance(30)
    assert "ended 1\n" in reaped(tmp_path, capsys)


def test_a_disk_that_outlived_the_instance_of_a_run_that_is_over_is_deleted_and_others_are_named(
    gce: GoogleServer, clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {name: run_in(tmp_path, name) for name in ("over", "going-on")}
    uids = {name: run.created.uid for name, run in runs.items()} | {"elsewhere": "cccccccccc"}
    driver = GcpDriver(CONFIG, clock)
    names = {name: launched(driver, uid) for name, uid in uids.items()}
    clock.advance(30)
    for instance in names.values():
        for disk in gce.project.vm(instance).disks:
            disk.auto_delete = False
        driver.terminate(instance)
    clock.advance(60)
    runs["over"].ledger.append(lambda _: ev.RunStopped(reason="a test"))

    said = reaped(tmp_path, capsys)

    assert f"the disk {names['over']} of 100 GB in us-central1-a, of {runs['over'].id}, which has ended" in said
    assert f"the disk {names['elsewhere']} of 100 GB in us-central1-a, of run cccccccccc, which is not in the" in said
    assert "deleted 1\n" in said
    clock.advance(60)
    gce.project.settle()
    assert {disk.name for disk in gce.project.disks.values()} == {names["going-on"], names["elsewhere"]}


def test_the_accounts_of_runs_that_are_over_are_removed_and_no_others(
    gce: GoogleServer, clock: ManualClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {name: run_in(tmp_path, name) for name in ("over", "going-on")}
    accounts = RunAccounts(Google(clock), clock)
    for name, run in runs.items():
        accounts.make(run.created.uid, f"gs://{BUCKET}/runs/{name}-{run.created.uid}")
    runs["over"].ledger.append(lambda _: ev.RunStopped(reason="a test"))

    said = reaped(tmp_path, capsys)

    assert f"the service account of {runs['over'].id}, which has ended" in said
    assert "removed 1\n" in said
    assert accounts.runs() == [runs["going-on"].created.uid]
