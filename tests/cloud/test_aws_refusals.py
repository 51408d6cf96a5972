"""What EC2 refuses for longer than a moment: what is told of it, and when it is asked for again."""

from __future__ import annotations

from datetime import UTC, datetime

import boto3
import pytest

from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.error_kinds import BadSurroundings
from spotrun.errors import InsufficientCapacity, QuotaExceeded
from spotrun.run import events as ev
from tests.support.aws_launches import CONFIG, launches, request
from tests.support.ec2_run import Ec2Run
from tests.support.ec2_server import ZONES
from tests.support.guarded_account import GuardedAccount
from tests.support.manual_clock import ManualClock

SPOT_OF_G = "L-3819A6DF"
TICKS_TO_LAUNCH_MAX = 20
"""A launch that has not come to be by then never will: three ticks are enough in each of the pools."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime.now(UTC))


@pytest.fixture
def cloud(account: GuardedAccount, clock: ManualClock) -> AwsDriver:
    return AwsDriver(CONFIG, clock)


# -- what lasts, and still passes ------------------------------------------------------------------------------------


def test_p2_an_unsupported_pool_is_offered_again_after_ever_longer_rests_of_an_hour_at_most(
    account: GuardedAccount, cloud: AwsDriver, clock: ManualClock
) -> None:
    asked = request(cloud)
    for minutes in (10, 20, 40, 60, 60):
        account.refuse("RunInstances", "Unsupported", 400)
        with pytest.raises(InsufficientCapacity):
            cloud.launch(asked)
        clock.advance(minutes * 60 - 1)
        assert asked.offering.pool not in {each.pool for each in cloud.offerings()}
        clock.advance(1)
        assert asked.offering.pool in {each.pool for each in cloud.offerings()}


def test_p4_a_full_quota_error_names_its_limit_and_its_users(account: GuardedAccount, cloud: AwsDriver) -> None:
    account.quotas[SPOT_OF_G] = 8
    uses = cloud.launch(request(cloud))
    account.refuse("RunInstances", "MaxSpotInstanceCountExceeded", 400)
    with pytest.raises(QuotaExceeded) as raised:
        cloud.launch(request(cloud, token="0123456789-8"))
    cpus, kind = uses.offering.cpus, uses.offering.instance_type
    assert raised.value.message.endswith(
        f"spot vCPUs of G and VT in us-east-1 ({SPOT_OF_G}): {cpus} of 8 in use, "
        f"by {uses.instance_id} ({kind}, {cpus}, run 0123456789)"
    )


def test_p4_a_full_quota_error_has_only_ec2s_words_if_its_limit_cannot_be_read(
    account: GuardedAccount, cloud: AwsDriver
) -> None:
    asked = request(cloud)
    account.refuse("RunInstances", "VcpuLimitExceeded", 400)
    account.refuse("GetServiceQuota", "AccessDeniedException", 400)
    with pytest.raises(QuotaExceeded) as raised:
        cloud.launch(asked)
    assert raised.value.message.endswith("VcpuLimitExceeded: by the test")


# -- one bad zone ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["InvalidSubnetID.NotFound", "InvalidGroup.NotFound", "InvalidParameterValue"])
def test_p3_surroundings_are_looked_up_again_after_a_rejection(
    account: GuardedAccount, cloud: AwsDriver, code: str
) -> None:
    asked = request(cloud)
    newer = _replace_the_subnet(account, asked.offering.zone)
    account.refuse("RunInstances", code, 400)
    with pytest.raises(BadSurroundings):
        cloud.launch(asked)
    found = {each.subnet for each in cloud.offerings() if each.zone == asked.offering.zone}
    assert found == {newer} != {asked.offering.subnet}
    assert cloud.launch(request(cloud, token="0123456789-8")).alive


@pytest.mark.parametrize("code", ["InvalidSubnetID.NotFound", "InvalidGroup.NotFound", "InvalidParameterValue"])
def test_p3_a_run_trains_in_another_zone_than_the_one_that_rejects_it(account: GuardedAccount, code: str) -> None:
    run = Ec2Run(account)
    runner = run.runner()
    account.refuse("RunInstances", code, 400)
    for _ in range(3):
        run.ticks(runner)
    first, second = (launch.intent.offering.zone for launch in run.state.launches.values())
    assert {first, second} == {*ZONES}
    assert run.state.terminal is None
    assert len(run.instances()) == 1


@pytest.mark.parametrize("code", ["InvalidSubnetID.NotFound", "InvalidGroup.NotFound", "InvalidParameterValue"])
def test_p3_a_request_rejected_everywhere_is_sent_at_most_ten_times_during_a_notice(
    account: GuardedAccount, code: str
) -> None:
    run = Ec2Run(account)
    runner = run.runner()
    for _ in range(2):
        run.ticks(runner)
    agent = run.agent()
    agent.trains_on()
    agent.is_told_to_go()
    account.calls.clear()
    account.refuse("RunInstances", code, 400, times=1000)
    for _ in range(24):
        run.ticks(runner)
    assert 1 <= len(launches(account)) <= 10
    assert sum(isinstance(entry.event, ev.LaunchIntended) for entry in run.entries) <= 11


def _replace_the_subnet(account: GuardedAccount, zone: str) -> str:
    """The subnet of a zone is deleted, and there is another."""
    with account.as_administrator():
        ec2 = boto3.client("ec2")
        inside = [{"Name": "availability-zone", "Values": [zone]}]
        old = ec2.describe_subnets(Filters=inside)["Subnets"][0]
        ec2.delete_subnet(SubnetId=old["SubnetId"])
        made = ec2.create_subnet(VpcId=old["VpcId"], CidrBlock=old["CidrBlock"], AvailabilityZone=zone)
    return str(made["Subnet"]["SubnetId"])


# -- what ends before it runs ----------------------------------------------------------------------------------------


def test_p1_an_instance_that_ec2_takes_back_for_want_of_capacity_ends_no_run(account: GuardedAccount) -> None:
    run = Ec2Run(account)
    runner = run.runner()
    for _ in range(4):
        for _ in range(TICKS_TO_LAUNCH_MAX):
            if run.instances():
                break
            runner.tick()
        (launched,) = run.instances()
        account.end(launched, "Server.InsufficientInstanceCapacity")
        runner.tick()
        run.clock.advance(5)
    state = run.state
    assert state.terminal is None
    ended = [launch for launch in state.launches.values() if launch.gone is not None]
    assert len({launch.intent.offering.pool for launch in ended}) == len(ended) == 4, "each pool rests"
    assert state.settled_usd == 0


def test_p4_a_volume_over_the_limit_counts_as_a_quota_and_is_reported(account: GuardedAccount) -> None:
    """EC2 accepts the launch, and tells only of the instance that there is no room for its volume."""
    run = Ec2Run(account)
    runner = run.runner()
    while not runner.tick().waiting_for:
        for launched in run.instances():
            account.end(launched, "Client.VolumeLimitExceeded")
        run.clock.advance(2)
    told = runner.tick().waiting_for
    assert told is not None
    assert "a quota is full" in told
    assert "Client.VolumeLimitExceeded" in told
    state = run.state
    assert state.terminal is None
    assert all(launch.over_quota for launch in state.launches.values())
    assert len(state.launches) == 1, "all pools of the quota rest"
    assert state.settled_usd == 0
    before = len(launches(account))
    run.clock.advance(601)
    run.ticks(runner)
    assert len(launches(account)) == before + 1, "and is asked again after ten minutes"


KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"


def test_p32_the_end_of_a_start_that_failed_names_the_key_and_rests_its_pool(account: GuardedAccount) -> None:
    """EC2 tells only afterwards. Runs that go on demand then are in tests/unit/test_aws_starts.py."""
    account.disk_key = KEY
    run = Ec2Run(account)
    runner = run.runner()
    for _ in range(2):
        while not (living := run.instances()):
            runner.tick()
        account.end(living[0], "Client.InternalError")
        runner.tick()
    first, second = (launch for launch in run.state.launches.values() if launch.gone is not None)
    assert first.intent.offering.pool != second.intent.offering.pool
    assert first.gone is not None
    assert first.gone.evidence == (
        "the cloud's record: ended by fault (Client.InternalError; probably EC2's role for spot, "
        f"AWSServiceRoleForEC2Spot, cannot use {KEY}, EBS's default key in us-east-1: "
        "`spotrun doctor aws` says what to do)"
    )


def test_p32_an_unreadable_key_is_reported_as_the_default_key(account: GuardedAccount) -> None:
    account.refuse("GetEbsDefaultKmsKeyId", "UnauthorizedOperation", 403)
    run = Ec2Run(account)
    runner = run.runner()
    while not run.instances():
        runner.tick()
    account.end(run.instances()[0], "Client.InternalError")
    runner.tick()
    (gone,) = [launch.gone for launch in run.state.launches.values() if launch.gone is not None]
    assert "cannot use the KMS key of the disk, EBS's default key in us-east-1" in gone.evidence
