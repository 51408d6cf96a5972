"""`spotrun reap --cloud aws`: what no run wants any more goes, what belongs to a run unknown here is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends
from msgspec.structs import replace

from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.config import OWN_PROFILE
from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.aws.guard import AwsGuards
from spotrun.clouds.aws.request import RUN as RUN_TAG
from spotrun.clouds.aws.request import TOKEN
from spotrun.clouds.aws.run_role import RunRoles
from spotrun.clouds.guards import Guard
from spotrun.clouds.identities import TRIAL_LASTS, trial_uid
from spotrun.errors import CloudError
from spotrun.folder.ledger import key_of
from spotrun.run import events as ev
from spotrun.runner.creation import prepare_run
from spotrun.runs.known import create_known
from spotrun.runs.open_run import OpenRun
from spotrun.spec.file import load_spec
from tests.support.aws_launches import CONFIG, request
from tests.support.called_spotrun import Said, Spotrun
from tests.support.ec2_server import ACCOUNT, REGION, RUN
from tests.support.guarded_account import GuardedAccount
from tests.support.histories import intended
from tests.support.manual_clock import ManualClock
from tests.support.object_stores import RunningServer

WEST = "us-west-2"


Reaped = Callable[..., Said]
Reap = Callable[[str], str]


def words(store: str | None, *regions: str) -> list[str]:
    named = [word for region in regions for word in ("--region", region)]
    return ["reap", "-y", "--cloud", "aws", *(() if store is None else ("--store", store)), *named]


@pytest.fixture
def reaped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Reaped:
    """The command in this process."""
    spotrun = Spotrun(monkeypatch, capsys)
    return lambda store, *regions: spotrun(*words(store, *regions))


@pytest.fixture
def reap(reaped: Reaped) -> Reap:
    def call(store: str) -> str:
        said = reaped(store, REGION)
        assert said.code == 0, said
        return said.out

    return call


def test_an_orphan_is_ended_with_its_guard_and_a_strangers_instance_is_not(
    account: GuardedAccount, cloud: AwsDriver, tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"run: 'true'\ncheckpoint: {{uri: {tmp_path}/runs}}\n")
    run = create_known(prepare_run(load_spec(job), "a test"))
    asked = request(cloud)
    account.identify(run.created.uid)
    orphan = cloud.launch(replace(asked, run_uid=run.created.uid, token=f"{run.created.uid}-7"))
    strangers = cloud.launch(asked)
    for instance in (orphan, strangers):
        guard = Guard(
            token=instance.token, region=REGION, instance_id=instance.instance_id, ends_at=instance.launched_at
        )
        AwsGuards([REGION], ManualClock()).arm(guard)

    command = [sys.executable, "-m", "spotrun", *words(f"{tmp_path}/runs", REGION)]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True, timeout=120)
    ended, _, unknown = done.stdout.partition("of runs that are not in")

    assert orphan.instance_id in ended
    assert strangers.instance_id not in ended
    assert strangers.instance_id in unknown
    assert {each.instance_id: each.alive for each in AwsDriver(CONFIG, ManualClock()).instances()} == {
        orphan.instance_id: False,
        strangers.instance_id: True,
    }
    with account.as_administrator():
        schedules = boto3.client("scheduler").list_schedules(GroupName="spotrun")["Schedules"]
    assert [each["Name"] for each in schedules] == [strangers.token]


def test_run_of_another_writer_with_the_uid_of_a_run_elsewhere_ends_no_instance(
    cloud: AwsDriver, tmp_path: Path, reap: Reap
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"run: 'true'\ncheckpoint: {{uri: {tmp_path}/runs}}\n")
    elsewhere = cloud.launch(request(cloud))
    planted = OpenRun(prepare_run(load_spec(job), "theirs", uid=elsewhere.run_uid).create(), "theirs")
    planted.ledger.append(lambda _: ev.StopRequested(by="theirs"))
    ended, _, doubtful = reap(f"{tmp_path}/runs").partition("instances that no ledger names")
    assert elsewhere.instance_id not in ended
    assert elsewhere.instance_id in doubtful
    assert [each.alive for each in cloud.instances()] == [True]


def test_an_instance_whose_runner_was_killed_is_named_without_naming_the_runs_store(
    account: GuardedAccount, cloud: AwsDriver, tmp_path: Path, reaped: Reaped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SPOTRUN_STORE", raising=False)
    job = tmp_path / "job.yaml"
    job.write_text(f"name: mine\nrun: 'true'\ncheckpoint: {{uri: {tmp_path}/elsewhere}}\n")
    run = create_known(prepare_run(load_spec(job), "a test"))
    entry = run.ledger.append(lambda state: intended(now=state.created.clock_epoch))
    assert entry is not None
    account.identify(run.created.uid)
    token = f"{run.created.uid}-{entry.number}"
    wanted = cloud.launch(replace(request(cloud), run_uid=run.created.uid, launch=entry.number, token=token))
    done = reaped(None, REGION)
    assert "there is no instance to end" in done.out
    assert f"{run.typed} has not ended, and no runner takes care of it. Still running, as far as is known: " in done.out
    assert f"`spotrun resume {run.typed}` continues it, `spotrun down {run.typed}` ends it now" in done.out
    assert wanted.instance_id not in done.out
    assert [each.alive for each in cloud.instances()] == [True]


def run_on_aws(folder: Path, name: str, store: str) -> OpenRun:
    """Its store is not tried out: sixteen writers race in a trial, and all these runs are of one store."""
    job = folder / f"{name}.yaml"
    regions = f"{REGION}, {WEST}" if name == "elsewhere" else REGION
    job.write_text(
        f"run: 'true'\nresources: {{cloud: aws}}\naws: {{regions: [{regions}]}}\ncheckpoint: {{uri: '{store}'}}\n"
    )
    return create_known(prepare_run(load_spec(job), "a test", shared=True))


def launched_in(region: str, run_uid: str) -> Any:
    """moto's own record of an instance in a region that nobody looks at who does not know of it."""
    ec2 = ec2_backends[ACCOUNT][region]
    facts = {"instance_type": "g5.xlarge", "is_instance_type_default": False, "region_name": region}
    tags = {"instance": {RUN_TAG: run_uid, TOKEN: f"{run_uid}-7"}}
    made = ec2.run_instances(next(iter(ec2.amis)), 1, "", [], **facts, tags=tags)
    return made.instances[0]


def orphan_in(region: str, folder: Path) -> Any:
    """An instance of a run of the store in `folder` that has not asked for any."""
    job = folder / f"{region}.yaml"
    job.write_text(f"run: 'true'\ncheckpoint: {{uri: {folder}/runs}}\n")
    return launched_in(region, create_known(prepare_run(load_spec(job), "a test")).created.uid)


def test_orphans_are_ended_in_each_region_that_is_named(
    account: GuardedAccount, tmp_path: Path, reaped: Reaped
) -> None:
    orphans = [orphan_in(region, tmp_path) for region in (WEST, REGION)]
    done = reaped(f"{tmp_path}/runs", WEST, REGION)
    assert done.code == 0
    assert "ended 2\n" in done.out
    assert [each.state for each in orphans] == ["terminated", "terminated"]


def test_a_region_that_does_not_answer_is_named_and_keeps_no_other_from_being_reaped(
    account: GuardedAccount, tmp_path: Path, reaped: Reaped
) -> None:
    orphans = [orphan_in(region, tmp_path) for region in (WEST, REGION)]
    account.closed = {WEST: ("OptInRequired", 401)}
    done = reaped(f"{tmp_path}/runs", WEST, REGION)
    assert done.code == CloudError.exit_code
    assert "ended 1\n" in done.out
    assert f"{WEST} is left out: " in done.out
    assert "OptInRequired" in done.err
    assert [each.state for each in orphans] == ["running", "terminated"]


def test_the_roles_of_runs_that_are_over_are_removed_and_no_others(
    account: GuardedAccount,
    tmp_path: Path,
    servers: Callable[[str], RunningServer],
    monkeypatch: pytest.MonkeyPatch,
    reap: Reap,
) -> None:
    s3 = servers("s3")
    store = s3.new_prefix()
    for variable, text in {
        **s3.environment,
        "AWS_ENDPOINT_URL": account.url,
        "AWS_ENDPOINT_URL_S3": s3.endpoint,
    }.items():
        monkeypatch.setenv(variable, text)
    names = ("over", "elsewhere", "going-on", "resumed", "damaged")
    runs = {name: run_on_aws(tmp_path, name, store) for name in names}
    for run in runs.values():
        account.identify(run.created.uid)
    for name in ("over", "elsewhere", "resumed", "damaged"):
        runs[name].ledger.append(lambda _: ev.RunStopped(reason="a test"))
    runs["resumed"].ledger.append(lambda _: ev.ResumeRequested(by="a test"))
    runs["damaged"].store.put(key_of(1), b"{}")
    living = launched_in(WEST, runs["elsewhere"].created.uid)

    said = reap(store)

    assert f"the role of {runs['over'].id}, which has ended" in said
    clock = ManualClock()
    left = RunRoles(Region(REGION, clock), clock).runs()
    assert {*left} == {RUN, *(runs[name].created.uid for name in names if name != "over")}, "one is in no store"
    living.terminate()
    assert "removed 1\n" in reap(store)


def test_a_role_that_cannot_be_removed_is_named_and_keeps_no_other(
    account: GuardedAccount, tmp_path: Path, reap: Reap
) -> None:
    store, job = f"{tmp_path}/runs", tmp_path / "job.yaml"
    job.write_text(f"run: 'true'\ncheckpoint: {{uri: {store}}}\n")
    runs = {name: create_known(prepare_run(load_spec(job), "a test")) for name in ("changed", "over")}
    for run in runs.values():
        account.identify(run.created.uid)
        run.ledger.append(lambda _: ev.RunStopped(reason="a test"))
    iam = iam_backends[ACCOUNT]["aws"]
    iam.untag_role(f"{OWN_PROFILE}{runs['changed'].created.uid}", [RUN_TAG])
    said = reap(store)
    assert f"the role of {runs['changed'].id} stays: " in said
    assert "removed 1\n" in said
    clock = ManualClock()
    assert {*RunRoles(Region(REGION, clock), clock).runs()} == {RUN, runs["changed"].created.uid}


def test_reap_without_the_right_to_list_roles_still_ends_instances(
    account: GuardedAccount, tmp_path: Path, reap: Reap
) -> None:
    account.refuse("ListRoles", "AccessDenied", 403)
    said = reap(str(tmp_path))
    assert "there is no instance to end" in said
    assert "cannot look for the role of each run" in said


def test_an_instance_that_cannot_be_ended_is_named_and_keeps_no_other(
    account: GuardedAccount, cloud: AwsDriver, tmp_path: Path, reaped: Reaped
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"run: 'true'\ncheckpoint: {{uri: {tmp_path}/runs}}\n")
    run = create_known(prepare_run(load_spec(job), "a test"))
    account.identify(run.created.uid)
    asked = request(cloud)
    tokens = [f"{run.created.uid}-{number}" for number in (7, 8)]
    orphans = [cloud.launch(replace(asked, run_uid=run.created.uid, token=token)) for token in tokens]
    account.refuse("TerminateInstances", "OperationNotPermitted", 400)
    done = reaped(f"{tmp_path}/runs", REGION)
    (left,) = [each for each in AwsDriver(CONFIG, ManualClock()).instances() if each.alive]
    assert left.instance_id in [each.instance_id for each in orphans]
    assert f"{left.instance_id} could not be ended: " in done.out
    assert "--no-disable-api-termination" in done.out
    assert "ended 1\n" in done.out
    assert done.code == CloudError.exit_code
    assert f"asked to end 2 instances; 1 is still there: {left.instance_id}" in done.err


def test_the_roles_that_a_doctor_has_left_behind_are_removed_but_not_from_one_at_work(
    account: GuardedAccount, tmp_path: Path, reap: Reap
) -> None:
    now = datetime.now(UTC)
    left, at_work = trial_uid(now - TRIAL_LASTS), trial_uid(now - TRIAL_LASTS / 2)
    for uid in (left, at_work):
        account.identify(uid)
    said = reap(str(tmp_path))
    assert left in said
    clock = ManualClock()
    assert {*RunRoles(Region(REGION, clock), clock).runs()} == {RUN, at_work}


def test_unlistable_roles_are_reported_and_stop_nothing(account: GuardedAccount, tmp_path: Path, reap: Reap) -> None:
    account.refuse("ListRoles", "InternalFailure", 500, times=10)
    assert "cannot look for the role of each run" in reap(str(tmp_path))
