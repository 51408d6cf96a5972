"""Other instances of an account: whatever somebody has written on them, they are nothing to a run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from time import thread_time

import boto3
import pytest
from moto.ec2.models import ec2_backends
from msgspec.structs import replace

from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.aws.request import LAUNCH, PRICE, TIME_TO_LIVE
from spotrun.clouds.aws.request import RUN as RUN_TAG
from spotrun.offering import CapacityType
from tests.support.aws_launches import CONFIG, request
from tests.support.ec2_run import Ec2Run
from tests.support.ec2_server import ACCOUNT, REGION, RUN
from tests.support.guarded_account import GuardedAccount
from tests.support.manual_clock import ManualClock
from tests.support.near_aws import answer_near_no_longer

OTHER = "aaaaaaaaaa"
ODD = [(PRICE, "NaN"), (PRICE, "-1"), (PRICE, "1e999999"), (TIME_TO_LIVE, "9" * 30), (TIME_TO_LIVE, "²"), (LAUNCH, "x")]


def driver() -> AwsDriver:
    return AwsDriver(CONFIG, ManualClock(datetime.now(UTC)))


def write(account: GuardedAccount, instance_id: str, key: str, value: str) -> None:
    with account.as_administrator():
        boto3.client("ec2").create_tags(Resources=[instance_id], Tags=[{"Key": key, "Value": value}])


@pytest.mark.parametrize(("key", "value"), ODD, ids=str)
def test_p31_odd_tags_cause_remarks_and_end_no_instance(
    account: GuardedAccount, cloud: AwsDriver, key: str, value: str
) -> None:
    account.identify(OTHER)
    mine = cloud.launch(request(cloud))
    theirs = cloud.launch(replace(request(cloud), token=f"{OTHER}-7", run_uid=OTHER))
    write(account, theirs.instance_id, key, value)
    mine_alone, all_of_them = driver(), driver()
    assert [each.instance_id for each in mine_alone.instances(RUN)] == [mine.instance_id]
    assert mine_alone.remarks == ()
    assert {each.instance_id for each in all_of_them.instances()} == {mine.instance_id, theirs.instance_id}
    (remark,) = all_of_them.remarks
    assert theirs.instance_id in remark
    assert key in remark


def test_p31_the_listing_requests_only_the_instances_of_the_run(account: GuardedAccount, cloud: AwsDriver) -> None:
    cloud.launch(request(cloud))
    account.calls.clear()
    cloud.instances(RUN)
    (asked,) = [facts for action, facts in account.calls if action == "DescribeInstances"]
    assert (asked["Filter.1.Name"], asked["Filter.1.Value.1"]) == (f"tag:{RUN_TAG}", RUN)


def test_p31_a_pass_among_1200_other_instances_takes_some_milliseconds(account: GuardedAccount) -> None:
    """Of this thread's processor time: moto takes a second to leave them out. To read all of them took 767 ms."""
    run = Ec2Run(account)
    runner = run.runner()
    run.ticks(runner)
    (mine,) = run.instances()
    ec2 = ec2_backends[ACCOUNT][REGION]
    facts = {"instance_type": "g5.xlarge", "is_instance_type_default": False, "region_name": REGION}
    ec2.run_instances(next(iter(ec2.amis)), 1200, "", [], **facts, tags={"instance": {RUN_TAG: OTHER}})
    answer_near_no_longer(account.url)  # moto is in a thread of its own then
    began_s = thread_time()
    tick = runner.tick()
    assert thread_time() - began_s < 0.1
    assert [each.instance_id for each in tick.instances] == [mine]


def test_p31_a_launch_whose_tag_was_changed_is_known_by_its_token(account: GuardedAccount, cloud: AwsDriver) -> None:
    instance = cloud.launch(request(cloud))
    write(account, instance.instance_id, LAUNCH, "mine")
    (seen,) = driver().instances(RUN)
    assert seen.launch == 7


def test_p31_an_unreadable_price_counts_as_missing(account: GuardedAccount, cloud: AwsDriver) -> None:
    """It is not nothing: a bill names the prices that are missing in it."""
    instance = cloud.launch(request(cloud, CapacityType.ON_DEMAND))
    before = driver().describe(instance.instance_id)
    assert before is not None
    assert before.prices[0].usd_per_hour > Decimal(0)
    write(account, instance.instance_id, PRICE, "NaN")
    seen = driver().describe(instance.instance_id)
    assert seen is not None
    assert seen.prices == ()


def test_p31_a_long_time_to_live_that_is_odd_is_not_who_ended_it(account: GuardedAccount, cloud: AwsDriver) -> None:
    instance = cloud.launch(request(cloud))
    write(account, instance.instance_id, TIME_TO_LIVE, "9" * 30)
    account.end(instance.instance_id, "Client.InstanceInitiatedShutdown")
    seen = driver().describe(instance.instance_id)
    assert seen is not None
    assert seen.ended_at is not None
    assert seen.ended_at - seen.launched_at < timedelta(hours=1)
