"""Launches by a launch template: the one of infra/aws, or an account's own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import boto3
import pytest
from msgspec.structs import replace

from spotrun.clouds.aws.catalog import SURROUNDINGS_FOR_S
from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.aws.error_codes import BadLaunchTemplate
from spotrun.errors import AccessDenied
from spotrun.offering import RENTED, CapacityType
from tests.support.aws_launches import CONFIG, launches, request
from tests.support.guarded_account import GuardedAccount
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse AWS")
NAME = "spotrun-node"
BY_TEMPLATE = replace(CONFIG, launch_template=NAME)


@pytest.fixture
def account(account: GuardedAccount) -> GuardedAccount:
    """In which the stack of the region was deployed."""
    account.deploy_region()
    account.calls.clear()
    return account


@pytest.fixture
def cloud() -> AwsDriver:
    return AwsDriver(BY_TEMPLATE, ManualClock())


def publish(account: GuardedAccount, **data: Any) -> int:
    """Another version, from now on the default one."""
    with account.as_administrator():
        ec2 = boto3.client("ec2")
        made = ec2.create_launch_template_version(LaunchTemplateName=NAME, LaunchTemplateData=data)
        version: int = made["LaunchTemplateVersion"]["VersionNumber"]
        ec2.modify_launch_template(LaunchTemplateName=NAME, DefaultVersion=str(version))
    return version


@pytest.mark.parametrize("capacity_type", RENTED)
def test_launch_call_has_the_same_parameters_with_and_without_a_template(
    account: GuardedAccount, capacity_type: CapacityType
) -> None:
    for number, config in enumerate((CONFIG, BY_TEMPLATE)):
        cloud = AwsDriver(config, ManualClock())
        cloud.launch(request(cloud, capacity_type, token=f"0123456789-{number}"))
    plain, by_template = launches(account)
    template_id = by_template.pop("LaunchTemplate.LaunchTemplateId")
    assert template_id.startswith("lt-")
    assert by_template.pop("LaunchTemplate.Version") == "1"
    assert {name: text.replace("0123456789-1", "0123456789-0") for name, text in by_template.items()} == plain


def test_an_intent_names_the_version_and_a_newer_one_changes_no_repeated_call(
    account: GuardedAccount, cloud: AwsDriver
) -> None:
    asked = request(cloud)
    assert asked.offering.launch_template.endswith(":1")
    first = cloud.launch(asked)
    publish(account, Monitoring={"Enabled": True})
    again = AwsDriver(BY_TEMPLATE, ManualClock())
    assert again.launch(asked).instance_id == first.instance_id
    assert request(again).offering.launch_template == asked.offering.launch_template.replace(":1", ":2")
    assert len(again.instances()) == 1


def test_a_newer_version_is_seen_after_a_while_by_who_looks_already(account: GuardedAccount) -> None:
    clock = ManualClock()
    cloud = AwsDriver(BY_TEMPLATE, clock)
    cloud.offerings()
    version = publish(account, Monitoring={"Enabled": True})
    clock.advance(SURROUNDINGS_FOR_S)
    assert {each.launch_template.partition(":")[2] for each in cloud.offerings()} == {str(version)}


def test_deleted_template_version_is_looked_up_again(account: GuardedAccount, cloud: AwsDriver) -> None:
    asked = request(cloud)
    version = publish(account, Monitoring={"Enabled": True})
    account.refuse("RunInstances", "InvalidLaunchTemplateId.VersionNotFound", 400)
    with pytest.raises(BadLaunchTemplate):
        cloud.launch(asked)
    anew = replace(request(cloud), token="0123456789-8")
    assert anew.offering.launch_template.endswith(f":{version}")
    assert cloud.launch(anew).alive


def test_missing_launch_template_is_reported_by_its_name(account: GuardedAccount) -> None:
    cloud = AwsDriver(replace(CONFIG, launch_template="ours"), ManualClock())
    with pytest.raises(BadLaunchTemplate, match="ours"):
        cloud.offerings()
    assert launches(account) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"InstanceMarketOptions": {"MarketType": "spot"}}, "on-demand launches"),
        ({"NetworkInterfaces": [{"DeviceIndex": 0, "AssociatePublicIpAddress": True}]}, "NetworkInterfaces"),
        ({"KeyName": "mine"}, "key pair"),
        ({"DisableApiTermination": True}, "could not be ended"),
        ({"HibernationOptions": {"Configured": True}}, "hibernates"),
        ({"Placement": {"Tenancy": "dedicated"}}, "dedicated"),
        (
            {"BlockDeviceMappings": [{"DeviceName": "/dev/sdb", "Ebs": {"Encrypted": True, "VolumeSize": 8}}]},
            "a volume at /dev/sdb, whose price spotrun does not count",
        ),
    ],
    ids=str,
)
def test_a_template_that_breaks_a_promise_is_refused(
    account: GuardedAccount, cloud: AwsDriver, data: dict[str, Any], words: str
) -> None:
    publish(account, **data)
    with pytest.raises(BadLaunchTemplate, match=words):
        cloud.offerings()


def test_harmless_template_settings_are_accepted(account: GuardedAccount, cloud: AwsDriver) -> None:
    root = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8}}
    publish(
        account,
        Monitoring={"Enabled": True},
        Placement={"Tenancy": "default"},
        BlockDeviceMappings=[root, {"DeviceName": "/dev/sdc", "VirtualName": "ephemeral0"}],
    )
    assert cloud.launch(request(cloud)).alive


def test_the_runners_policy_allows_no_template_without_our_tag(account: GuardedAccount) -> None:
    with account.as_administrator():
        boto3.client("ec2").create_launch_template(LaunchTemplateName="ours", LaunchTemplateData={"EbsOptimized": True})
    cloud = AwsDriver(replace(CONFIG, launch_template="ours"), ManualClock())
    asked = replace(request(cloud), time_to_live=timedelta(hours=1))
    with pytest.raises(AccessDenied, match="launch-template/lt-"):
        cloud.launch(asked)
    assert {each.resource.split(":")[-1].partition("/")[0] for each in account.denied} == {"launch-template"}
    account.denied.clear()
