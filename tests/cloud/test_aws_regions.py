"""EC2 in two regions, one of which fails or may not be used."""

from __future__ import annotations

from datetime import UTC, datetime

import boto3
import pytest
from msgspec.structs import replace

from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.aws.quotes import read_quotes
from spotrun.clouds.aws.run_role import RunRoles
from spotrun.errors import AccessDenied, CloudUnavailable
from tests.support.aws_launches import CONFIG, request
from tests.support.ec2_server import IMAGE_PARAMETER, REGION
from tests.support.guarded_account import GuardedAccount
from tests.support.manual_clock import ManualClock

WEST = "us-west-2"
BOTH = replace(CONFIG, regions=(WEST, REGION))


@pytest.fixture
def both(account: GuardedAccount) -> AwsDriver:
    """A driver for two regions that have all that a launch needs."""
    with account.as_administrator():
        ec2, ssm = (boto3.client(name, region_name=WEST) for name in ("ec2", "ssm"))
        network, image = ec2.describe_vpcs()["Vpcs"][0]["VpcId"], ec2.describe_images()["Images"][0]["ImageId"]
        ec2.create_security_group(GroupName="spotrun-node", Description="no ingress", VpcId=network)
        ssm.put_parameter(Name=IMAGE_PARAMETER, Value=image, Type="String")
    account.prices.rows += [row._replace(zone=f"{WEST}a") for row in account.prices.rows]
    return AwsDriver(BOTH, ManualClock(datetime.now(UTC)))


@pytest.mark.parametrize(("code", "status"), [("OptInRequired", 401), ("AuthFailure", 401), ("InternalError", 500)])
def test_p29_a_region_that_fails_takes_nothing_from_the_other(
    account: GuardedAccount, both: AwsDriver, code: str, status: int
) -> None:
    account.closed = {WEST: (code, status)}
    instance = both.launch(request(both, must_see=()))
    assert {each.region for each in both.offerings(must_see=(REGION,))} == {REGION}
    assert [each.instance_id for each in both.instances(must_see=(REGION,))] == [instance.instance_id]
    assert both.describe(instance.instance_id) is not None
    assert all(WEST in each and code in each for each in both.remarks)
    assert len(both.remarks) == 1
    both.terminate(instance.instance_id)
    assert not [each for each in both.instances(must_see=(REGION,)) if each.alive]


def test_p29_a_caller_that_needs_all_regions_gets_the_error_of_the_failing_one(
    account: GuardedAccount, both: AwsDriver
) -> None:
    account.closed = {WEST: ("OptInRequired", 401)}
    with pytest.raises(AccessDenied):
        both.instances()
    account.closed = {WEST: ("InternalError", 500)}
    with pytest.raises(CloudUnavailable):
        both.describe("i-00000000000000000")


def test_p29_quotes_of_the_other_region_come_with_a_note(account: GuardedAccount, both: AwsDriver) -> None:
    account.closed = {WEST: ("OptInRequired", 401)}
    found = read_quotes(BOTH, ManualClock(datetime.now(UTC)), ())
    assert {each.offering.region for each in found.quotes} == {REGION}
    assert any(WEST in note and "OptInRequired" in note for note in found.notes)


def test_p29_a_run_has_its_role_although_the_first_of_its_regions_fails(account: GuardedAccount) -> None:
    account.closed = {WEST: ("OptInRequired", 401)}
    clock = ManualClock(datetime.now(UTC))
    west, east = (Region(name, clock) for name in BOTH.regions)
    RunRoles(west, clock, [east]).make("abcdef0123", "s3://bucket/runs/r-abcdef0123")
    with account.as_administrator():
        assert boto3.client("iam").get_role(RoleName="spotrun-run-abcdef0123")["Role"]
