"""
The guard beside an instance's own time-to-live (protocol 11), on EC2: who arms it, who takes it away, and who is told
that there is none.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import boto3
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from spotrun.cli.app import app
from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.aws.guard import LATER, AwsGuards
from spotrun.clouds.guards import AGAIN_AFTER, Guard
from spotrun.errors import CloudUnavailable
from spotrun.report.describe import describe
from spotrun.run import events as ev
from spotrun.runner.creation import prepare_run
from spotrun.runs.open_run import open_run
from spotrun.spec.file import load_spec
from tests.support.aws_launches import launches, request
from tests.support.ec2_run import Ec2Run
from tests.support.ec2_server import REGION
from tests.support.guarded_account import GuardedAccount
from tests.support.histories import History
from tests.support.iam import Document
from tests.support.manual_clock import ManualClock
from tests.support.world.faults import Killed


@pytest.fixture
def run(account: GuardedAccount) -> Ec2Run:
    return Ec2Run(account)


def test_p8_a_runner_that_dies_between_the_launch_and_its_guard_is_made_good_by_the_next(
    account: GuardedAccount, run: Ec2Run
) -> None:
    """The write-ahead intent has the token, and the entry that says "recorded" is not written before the guard is."""

    def dies_before_the_guard(call: str) -> None:
        if call == "arm":
            raise Killed

    with pytest.raises(Killed):
        run.ticks(run.runner(dies_before_the_guard))
    assert (len(launches(account)), run.schedules()) == (1, [])
    run.clock.advance(700)  # too late to repeat the launch: it may only be looked up
    run.ticks(run.runner())
    (launch,) = run.state.launches.values()
    assert launch.recorded is not None
    assert launch.recorded.unguarded is None
    assert (len(launches(account)), len(run.schedules())) == (1, 1)


def test_a_guard_is_armed_with_the_launch_and_goes_with_its_instance(account: GuardedAccount, run: Ec2Run) -> None:
    runner = run.runner()
    run.ticks(runner)
    assert len(run.schedules()) == 1
    run.ticks(runner)
    (launch,) = run.state.launches.values()
    assert launch.recorded is not None
    account.end(launch.recorded.instance_id, "Server.SpotInstanceTermination")
    run.ticks(runner)
    first, *others = run.state.launches.values()
    assert first.gone is not None
    assert [name.rpartition("-")[2] for name in run.schedules()] == [str(each.number) for each in others]


def test_an_account_without_guards_launches_all_the_same_and_its_ledger_says_so(
    account: GuardedAccount, run: Ec2Run
) -> None:
    account.policies = [without(policy, "ArmTheGuard") for policy in account.policies or ()]
    runner = run.runner()
    for _ in range(2):
        run.ticks(runner)
    (unguarded,) = run.state.unguarded
    assert "AccessDeniedException" in (unguarded.unguarded or "")
    said = [describe(entry) for entry in run.entries if isinstance(entry.event, ev.LaunchRecorded)]
    assert "only its own timer would end it" in said[0]
    assert {each.action for each in account.denied} == {"scheduler:CreateSchedule"}
    account.denied.clear()


def test_a_guard_that_could_not_be_made_is_made_once_what_was_in_the_way_has_passed(
    account: GuardedAccount, run: Ec2Run
) -> None:
    policies = account.policies or ()
    account.policies = [without(policy, "ArmTheGuard") for policy in policies]
    runner = run.runner()
    for _ in range(2):
        run.ticks(runner)
    asked = len(account.denied)
    run.ticks(runner)
    assert len(account.denied) == asked, "not at each look"
    run.clock.advance(AGAIN_AFTER.total_seconds())
    run.ticks(runner)
    assert len(account.denied) == asked + 1
    account.policies = policies
    run.clock.advance(AGAIN_AFTER.total_seconds())
    run.ticks(runner)
    assert [run.state.unguarded, len(run.schedules())] == [[], 1]
    assert describe(run.entries[-1]).endswith("now has its guard")
    account.denied.clear()


def test_another_runner_makes_the_guard_that_the_first_one_could_not(run: Ec2Run) -> None:
    def schedules_are_out_of_order(call: str) -> None:
        if call == "arm":
            raise CloudUnavailable("503 from the scheduler")

    runner = run.runner(schedules_are_out_of_order)
    for _ in range(2):
        run.ticks(runner)
    assert [found.unguarded for found in run.state.unguarded] == ["503 from the scheduler"]
    run.ticks(run.runner())
    assert [run.state.unguarded, len(run.schedules())] == [[], 1]


def test_status_says_that_only_its_own_timer_would_end_an_instance(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(f"run: 'true'\ncheckpoint: {{uri: {tmp_path}/runs}}\n")
    ledger = open_run(prepare_run(load_spec(job), "a test").create(), None).ledger
    history = History()
    history.record(history.launch())
    intended, recorded = (entry.event for entry in history.entries[1:])
    assert isinstance(recorded, ev.LaunchRecorded)
    for event in (intended, replace(recorded, unguarded="AccessDeniedException")):
        ledger.append(lambda _, event=event: event)
    said = CliRunner().invoke(app, ["status", "--store", f"{tmp_path}/runs"]).output
    assert f"only its own timer would end {recorded.instance_id}: AccessDeniedException" in " ".join(said.split())


def test_guard_terminates_its_instance_at_its_end(account: GuardedAccount, cloud: AwsDriver) -> None:
    asked = request(cloud)
    instance = cloud.launch(asked)
    ends_at = instance.launched_at + asked.time_to_live
    guard = Guard(token=asked.token, region=REGION, instance_id=instance.instance_id, ends_at=ends_at)
    for _ in range(2):  # as two runners would
        AwsGuards([REGION], ManualClock()).arm(guard)
    with account.as_administrator():
        schedule = boto3.client("scheduler").get_schedule(GroupName="spotrun", Name=asked.token)
    at = datetime.fromisoformat(schedule["ScheduleExpression"][3:-1] + "+00:00")
    assert timedelta() <= at - ends_at <= LATER
    assert instance.instance_id in schedule["Target"]["Input"]
    assert schedule["Target"]["RoleArn"].endswith(":role/spotrun-guard")
    assert schedule["ActionAfterCompletion"] == "DELETE"
    for _ in range(2):
        AwsGuards([REGION], ManualClock()).disarm(asked.token, REGION)


def without(policy: Document, sid: str) -> Document:
    return {**policy, "Statement": [each for each in policy["Statement"] if each["Sid"] != sid]}


def test_a_guard_is_made_only_for_what_the_cloud_shows_as_this_runs(run: Ec2Run) -> None:
    """It ends what it names, so a name in the ledger is not enough."""
    runner = run.runner()
    run.ticks(runner)
    (launch,) = run.state.launches.values()
    foreign = ev.LaunchRecorded(
        launch=launch.number, instance_id="i-0fedcba9876543210", billed_from=run.clock.now(), prices=(), unguarded="?"
    )
    assert run.ledger().append(lambda _: foreign) is not None
    run.clock.advance(AGAIN_AFTER.total_seconds())
    run.ticks(runner)
    assert [found.instance_id for found in run.state.unguarded] == [foreign.instance_id]
