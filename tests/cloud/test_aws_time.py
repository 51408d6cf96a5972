"""The runner's machine has a clock that is minutes off: bills and decisions are by AWS's own time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from spotrun.clock import ScaledClock
from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.registry import cloud_of
from spotrun.runner.creation import run_created
from tests.support.aws_launches import CONFIG, launches, request
from tests.support.decisions import spec
from tests.support.ec2_run import Ec2Run
from tests.support.ec2_server import INTERRUPTED, REGION
from tests.support.guarded_account import GuardedAccount
from tests.support.manual_clock import AheadClock, ManualClock

OFF = [timedelta(minutes=4), timedelta(minutes=-4)]
A_SECOND = timedelta(seconds=1)
"""A Date header has no fractions."""


@pytest.fixture
def run(account: GuardedAccount) -> Ec2Run:
    """Its clock is AWS's."""
    run = Ec2Run(account)
    account.clock, account.tells_time = run.clock, True
    return run


@pytest.mark.parametrize("ahead", OFF, ids=str)
def test_p30_a_life_of_ten_minutes_is_billed_for_ten_minutes(
    account: GuardedAccount, run: Ec2Run, ahead: timedelta
) -> None:
    runner = run.runner(ahead=ahead)
    run.ticks(runner)
    (instance_id,) = run.instances()
    row = account.row(instance_id)
    row._state.name = "pending"
    run.ticks(runner)
    pending_at = run.clock.now() - timedelta(seconds=5)
    row._state.name = "running"
    run.ticks(runner)
    run.agent()
    run.clock.advance(600)
    account.end(instance_id, INTERRUPTED)
    row._reason = INTERRUPTED  # EC2 does not tell when
    ended_at = run.clock.now()
    run.ticks(runner)
    gone = next(iter(run.state.launches.values())).gone
    assert gone is not None
    assert gone.billed_from is not None
    assert abs(gone.billed_from - pending_at) <= A_SECOND
    assert abs(gone.ended_at - ended_at) <= A_SECOND


@pytest.mark.parametrize("ahead", OFF, ids=str)
def test_p30_on_demand_is_requested_neither_early_nor_late(
    account: GuardedAccount, run: Ec2Run, ahead: timedelta
) -> None:
    runner = run.runner(ahead=ahead)
    for _ in range(2):
        run.ticks(runner)
    agent = run.agent()
    account.spot_is_gone = True
    told_at = run.clock.now()
    agent.is_told(told_at + timedelta(minutes=2))
    for _ in range(200):
        run.ticks(runner)
        if "InstanceMarketOptions.MarketType" not in launches(account)[-1]:
            break
    waited = run.clock.now() - told_at
    assert timedelta(minutes=10) - A_SECOND <= waited <= timedelta(minutes=10, seconds=10)


@pytest.mark.parametrize("ahead", OFF, ids=str)
def test_p30_a_wrong_clock_is_reported(account: GuardedAccount, ahead: timedelta) -> None:
    right = ManualClock(datetime.now(UTC))
    account.clock, account.tells_time = right, True
    cloud = AwsDriver(CONFIG, AheadClock(right, ahead))
    cloud.launch(request(cloud))
    (remark,) = cloud.remarks
    assert re.search(r"(239|240) s (ahead of|behind) AWS", remark)
    assert ("ahead" in remark) == (ahead > timedelta())
    assert AwsDriver(CONFIG, right).instances()
    assert right.ahead == timedelta()


def test_p30_no_instance_ends_before_its_meter_begins(account: GuardedAccount) -> None:
    clock = ManualClock(datetime.now(UTC))
    cloud = AwsDriver(CONFIG, clock)
    instance_id = cloud.launch(request(cloud)).instance_id
    account.row(instance_id)._state.name = "pending"
    clock.advance(240)
    cloud.instances()
    account.end(instance_id, INTERRUPTED)
    clock.advance(5)
    seen = cloud.describe(instance_id)
    assert seen is not None
    assert seen.billed_from == seen.ended_at


def test_p30_a_run_begins_at_the_clouds_time(account: GuardedAccount) -> None:
    now = datetime.now(UTC)
    account.clock, account.tells_time = ManualClock(now - timedelta(minutes=4)), True
    wanted = spec(resources={"cloud": "aws"}, checkpoint={"uri": "s3://bucket/runs"}, policy={"deadline": "2h"})
    clock = ScaledClock(now, 1.0)
    cloud = cloud_of(wanted)
    cloud.put_right(clock, wanted)
    created = run_created(wanted, cloud, "0123456789", "", clock)
    assert created.deadline_at == created.clock_epoch + timedelta(hours=2)
    ahead = now - created.clock_epoch
    assert abs(ahead - timedelta(minutes=4)) <= timedelta(seconds=2), "EC2 tells whole seconds, and answers take time"


def test_p30_a_cloud_that_does_not_answer_leaves_the_clock_as_it_is(account: GuardedAccount) -> None:
    wanted, clock = spec(resources={"cloud": "aws"}, checkpoint={"uri": "s3://bucket/runs"}), ManualClock()
    account.tells_time = True
    account.closed = {REGION: ("InternalError", 500)}
    cloud_of(wanted).put_right(clock, wanted)
    assert clock.ahead == timedelta()
