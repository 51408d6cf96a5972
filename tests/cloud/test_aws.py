"""EC2: what one RunInstances says, what each error code means, and why an instance ended."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from itertools import product

import boto3
import pytest
from botocore.exceptions import ClientError
from msgspec.structs import replace

from spotrun.clouds.aws.bootstrap import USER_DATA_MAX_BYTES, user_data
from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.aws.error_codes import ERRORS_BY_CODE, error_of
from spotrun.errors import CloudError, CloudUnavailable, InsufficientCapacity, QuotaExceeded
from spotrun.instance import EndedBy, InstanceState
from spotrun.offering import CapacityType
from tests.support.aws_launches import CONFIG, launches, request
from tests.support.ec2_server import IMAGE_PARAMETER, REGION, RUN, TYPES, ZONES, Ec2Account
from tests.support.guarded_account import GuardedAccount
from tests.support.manual_clock import ManualClock


def test_one_call_holds_every_fact(account: Ec2Account, cloud: AwsDriver) -> None:
    cloud.launch(request(cloud))
    (asked,) = launches(account)
    assert asked["ClientToken"] == "0123456789-7"
    assert asked["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert asked["MetadataOptions.HttpTokens"] == "required"
    assert asked["MetadataOptions.HttpPutResponseHopLimit"] == "1"
    assert asked["InstanceMarketOptions.SpotOptions.SpotInstanceType"] == "one-time"
    assert asked["InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior"] == "terminate"
    assert (
        asked["BlockDeviceMapping.1.Ebs.Encrypted"] == asked["BlockDeviceMapping.1.Ebs.DeleteOnTermination"] == "true"
    )
    assert not [name for name in asked if "KeyName" in name or "MaxPrice" in name]
    tagged = [text for name, text in asked.items() if name.endswith("ResourceType")]
    assert set(tagged) == {"instance", "volume", "spot-instances-request"}
    assert not [action for action, _ in account.calls if action == "CreateTags"]


@pytest.mark.parametrize(("capacity_type", "asked"), [(CapacityType.SPOT, "0.25"), (CapacityType.ON_DEMAND, None)])
def test_a_price_cap_that_the_user_asked_for_is_ec2s_too(
    account: Ec2Account, cloud: AwsDriver, capacity_type: CapacityType, asked: str | None
) -> None:
    cloud.launch(replace(request(cloud, capacity_type), price_cap_usd_per_hour=Decimal("0.25")))
    assert launches(account)[0].get("InstanceMarketOptions.SpotOptions.MaxPrice") == asked


def test_on_demand_asks_for_no_spot(account: Ec2Account, cloud: AwsDriver) -> None:
    cloud.launch(request(cloud, CapacityType.ON_DEMAND))
    assert not [name for name in launches(account)[0] if "InstanceMarketOptions" in name]


def test_types_zones_and_regions_are_candidates_at_once_each_with_its_own_image(account: GuardedAccount) -> None:
    west = "us-west-2"
    with account.as_administrator():
        ec2, ssm = (boto3.client(name, region_name=west) for name in ("ec2", "ssm"))
        network, image = ec2.describe_vpcs()["Vpcs"][0]["VpcId"], ec2.describe_images()["Images"][0]["ImageId"]
        ec2.create_security_group(GroupName="spotrun-node", Description="no ingress", VpcId=network)
        ssm.put_parameter(Name=IMAGE_PARAMETER, Value=image, Type="String")
    account.prices.rows += [row._replace(zone=f"{west}a") for row in account.prices.rows]
    both = AwsDriver(replace(CONFIG, regions=(REGION, west)), ManualClock(datetime.now(UTC)))
    spot = [each for each in both.offerings() if each.capacity_type is CapacityType.SPOT]
    assert {(each.instance_type, each.zone) for each in spot} == {*product(TYPES, (*ZONES, f"{west}a"))}
    assert {each.image for each in spot if each.region == west} == {image}
    assert {each.zone[:-1] == each.region for each in spot} == {True}


@pytest.mark.parametrize("uri", ["s3://b/r", 's3://b/$(touch x)";`id`', "s3://b/\n'quote'"])
def test_user_data_is_small_and_holds_no_string_of_the_users(cloud: AwsDriver, uri: str) -> None:
    text = user_data(request(cloud, uri=uri))
    assert len(text.encode()) < USER_DATA_MAX_BYTES
    assert uri not in text
    assert text.split("\n")[5:] == user_data(request(cloud)).split("\n")[5:]


@pytest.mark.parametrize("code", ERRORS_BY_CODE)
def test_each_code_is_one_error_of_the_port_and_says_its_code(code: str) -> None:
    answer = {"Error": {"Code": code, "Message": "words"}, "ResponseMetadata": {"HTTPStatusCode": 500}}
    error = error_of("launch", ClientError(answer, "RunInstances"))
    assert type(error) is ERRORS_BY_CODE[code][0]
    assert code in error.message


@pytest.mark.parametrize(("status", "kind"), [(400, CloudError), (500, CloudUnavailable), (503, CloudUnavailable)])
def test_an_unlisted_code_passes_only_with_a_status_of_the_servers(status: int, kind: type) -> None:
    answer = {"Error": {"Code": "NeverHeardOf"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert type(error_of("launch", ClientError(answer, "RunInstances"))) is kind


def test_p1_lack_of_capacity_is_reported_at_once_without_a_retry(account: Ec2Account, cloud: AwsDriver) -> None:
    asked = request(cloud)
    account.refuse("RunInstances", "InsufficientInstanceCapacity", 500)
    with pytest.raises(InsufficientCapacity):
        cloud.launch(asked)
    assert len(launches(account)) == 1


def test_p2_an_unsupported_pool_is_not_offered_again(account: Ec2Account, cloud: AwsDriver) -> None:
    asked = request(cloud)
    account.refuse("RunInstances", "Unsupported", 400)
    with pytest.raises(InsufficientCapacity):
        cloud.launch(asked)
    assert asked.offering.pool not in {each.pool for each in cloud.offerings()}


def test_p4_a_full_quota_is_reported_at_once(account: Ec2Account, cloud: AwsDriver) -> None:
    asked = request(cloud)
    account.refuse("RunInstances", "VcpuLimitExceeded", 400)
    with pytest.raises(QuotaExceeded):
        cloud.launch(asked)


def test_p5_a_quota_that_our_own_ended_instance_holds_is_waited_for(account: Ec2Account, cloud: AwsDriver) -> None:
    asked = request(cloud)
    cloud.terminate(cloud.launch(asked).instance_id)
    account.refuse("RunInstances", "VcpuLimitExceeded", 400)
    with pytest.raises(CloudUnavailable):
        cloud.launch(asked)


def test_p10_a_lost_answer_leaves_one_instance(account: Ec2Account, cloud: AwsDriver) -> None:
    account.lose_answer("RunInstances")
    instance = cloud.launch(request(cloud))
    assert len(launches(account)) == 2
    assert [each.instance_id for each in cloud.instances()] == [instance.instance_id]


def test_p15_throttling_is_tried_again_a_bounded_number_of_times(account: Ec2Account, cloud: AwsDriver) -> None:
    asked = request(cloud)
    account.refuse("RunInstances", "RequestLimitExceeded", 503, times=10)
    with pytest.raises(CloudUnavailable):
        cloud.launch(asked)
    assert len(launches(account)) == 4


def test_p15_one_describe_serves_all_that_ask_about_a_run_together(account: Ec2Account, cloud: AwsDriver) -> None:
    cloud.launch(request(cloud))
    account.calls.clear()
    for _ in range(20):
        cloud.instances(RUN)
    assert [action for action, _ in account.calls].count("DescribeInstances") == 1


def test_p15_all_instances_are_read_page_by_page(account: Ec2Account, cloud: AwsDriver) -> None:
    launched = {cloud.launch(request(cloud, token=f"0123456789-{number}")).instance_id for number in range(3)}
    account.page_size = 2
    account.calls.clear()
    assert {each.instance_id for each in cloud.instances()} == launched
    assert [action for action, _ in account.calls].count("DescribeInstances") == 2


def test_p15_looking_again_does_not_read_the_price_history_again(account: Ec2Account) -> None:
    clock = ManualClock(datetime.now(UTC))
    cloud = AwsDriver(CONFIG, clock)
    cloud.launch(request(cloud))
    account.calls.clear()
    for _ in range(5):
        clock.advance(2)
        cloud.instances()
    actions = [action for action, _ in account.calls]
    assert (actions.count("DescribeInstances"), actions.count("DescribeSpotPriceHistory")) == (5, 1)


@pytest.mark.parametrize(
    ("reason", "ended_by"),
    [
        ("Server.SpotInstanceTermination", EndedBy.CLOUD),
        ("Client.UserInitiatedShutdown", EndedBy.USER),
        ("Client.InstanceInitiatedShutdown", EndedBy.ITSELF),
        ("Server.ScheduledStop", EndedBy.FAULT),
    ],
)
def test_state_reason_says_which_side_ended_an_instance(
    account: Ec2Account, cloud: AwsDriver, reason: str, ended_by: EndedBy
) -> None:
    instance = cloud.launch(request(cloud))
    account.end(instance.instance_id, reason)
    seen = cloud.describe(instance.instance_id)
    assert seen is not None
    assert (seen.state, seen.ended_by) == (InstanceState.TERMINATED, ended_by)
