"""`spotrun doctor aws`: each thing that keeps an account from carrying a run is found before anything is rented."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import backends
from moto.ec2.models import ec2_backends
from msgspec.structs import replace

from spotrun.clock import Clock, system_clock
from spotrun.clouds.aws import clock_skew
from spotrun.clouds.aws.account_checks import NO_INSTANCE
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.cloud import CLOUD
from spotrun.clouds.aws.config import OWN_PROFILE
from spotrun.clouds.aws.disk_key import OF_AWS
from spotrun.clouds.aws.doctor import AwsDoctor
from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.aws.quotas import quota_of
from spotrun.clouds.aws.run_role import CheckedRunRoles, RunRoles
from spotrun.clouds.identity_trial import DENIED_WITHIN, LOOK_AGAIN_S
from spotrun.doctor.finding import Finding, Verdict
from spotrun.errors import (
    AccessDenied,
    CloudError,
    CloudUnavailable,
    IdentityUnknown,
    LoginMissing,
    SpecInvalid,
    StoreError,
)
from spotrun.offering import CapacityType
from spotrun.secrets.reference import PARAMETER, Reference
from spotrun.spec.model import ResourcesSpec, RunSpec
from spotrun.spec.values import read_accelerators
from tests.support.aws_launches import CONFIG, count, launches, request
from tests.support.called_spotrun import Spotrun
from tests.support.ec2_server import ACCOUNT, IMAGE_PARAMETER, REGION, RUN, TYPES, ZONES
from tests.support.guarded_account import RUNNER, TEMPLATE, GuardedAccount, calls
from tests.support.iam import Document, listed
from tests.support.manual_clock import ManualClock
from tests.support.repository import JOBS
from tests.support.sandbox import Sandbox

WEST = "us-west-2"
SPOT_G, ON_DEMAND_G = "L-3819A6DF", "L-DB2E81BA"
BUCKET = TEMPLATE.properties("Bucket")["BucketName"]


@pytest.fixture
def account(account_of_module: GuardedAccount, monkeypatch: pytest.MonkeyPatch) -> GuardedAccount:
    """One in which the caller is the runner, with quotas that are enough for one GPU."""
    account = account_of_module
    account.reach(monkeypatch)
    backends.get_backend("s3").reset()  # type: ignore[arg-type]
    account.furnish()
    account.profiles_are_known = account.tells_time = True
    account.denied, account.arn, account.quotas = [], None, {SPOT_G: 64.0, ON_DEMAND_G: 64.0}
    account.disk_key = OF_AWS
    return account


@pytest.fixture
def called(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Spotrun:
    """The commands in this process, with the surroundings of the sandbox."""
    return Spotrun(monkeypatch, capsys)


def wanted(**facts: Any) -> ResourcesSpec:
    return ResourcesSpec().model_copy(update={"cloud": "aws", **facts})


def examined(
    resources: ResourcesSpec | None = None,
    clock: Clock | None = None,
    region: Region | None = None,
    secrets: Mapping[str, Reference] | None = None,
    store: str = "",
    **config: Any,
) -> dict[str, Finding]:
    around = replace(CONFIG, **config)
    clock = clock or system_clock()
    doctor = AwsDoctor(region or calls(), around, resources or wanted(), clock, secrets, store_uri=store)
    return {finding.name: finding for finding in doctor.findings()}


def patient() -> ManualClock:
    """Of somebody for whom waiting takes no time."""
    return ManualClock(datetime.now(UTC))


def told_to_wait(clock: ManualClock) -> list[tuple[float, Finding]]:
    """Who waits is told what for; and when that was."""
    doctor = AwsDoctor(calls(), CONFIG, wanted(), clock)
    return [(clock.monotonic(), found) for found in doctor.findings() if found.verdict is Verdict.WAITS]


def failures(found: dict[str, Finding]) -> dict[str, Finding]:
    return {name: each for name, each in found.items() if each.verdict is Verdict.FAILED}


def without(*actions: str) -> Sequence[Document]:
    """The runner's policy less the statements that allow any of these."""
    kept = [each for each in RUNNER[0]["Statement"] if not {*actions} & {*listed(each["Action"])}]
    return ({"Statement": kept},)


def test_an_account_as_the_templates_make_it_passes_with_the_runners_policy(account: GuardedAccount) -> None:
    found = examined()
    assert failures(found) == {}
    assert [asked.resource.rpartition("/")[2] for asked in account.denied] == [NO_INSTANCE]
    assert found["identity"].detail.startswith("arn:aws:")
    assert REGION in found["identity"].detail
    assert {name for name, finding in found.items() if finding.verdict is not Verdict.OK} == {"terminate"}
    assert "g4dn.xlarge" in found["launch on spot"].detail
    made_on = boto3.client("ec2").describe_images()["Images"][0]["CreationDate"][:10]
    assert found["image"].detail.endswith(f", named by the parameter {IMAGE_PARAMETER}, made on {made_on}")
    assert AwsDriver(CONFIG, system_clock()).instances() == []


def test_every_finding_that_is_not_fine_says_what_to_do(account: GuardedAccount) -> None:
    account.quotas = {}
    account.arn = "arn:aws:iam::123456789012:root"
    for finding in examined().values():
        assert finding.hint or finding.verdict is Verdict.OK or finding.name == "terminate", finding


# -- the way out -----------------------------------------------------------------------------------------------------


def test_a_zone_whose_subnets_lead_nowhere_is_warned_of_with_what_to_type(account: GuardedAccount) -> None:
    with account.as_administrator():
        subnet = hide(ZONES[0])
    found = examined()
    warning = found[f"way out of {ZONES[0]}"]
    assert warning.verdict is Verdict.WARNED
    assert subnet in warning.detail
    command = f"aws ec2 modify-subnet-attribute --region {REGION} --subnet-id {subnet} --map-public-ip-on-launch"
    assert warning.hint == command
    assert ZONES[0] not in found["way out"].detail
    assert ZONES[1] in found["way out"].detail


def test_a_network_without_any_way_out_is_warned_of_in_each_zone(account: GuardedAccount) -> None:
    """Public addresses alone lead nowhere."""
    with account.as_administrator():
        ec2 = boto3.client("ec2")
        (table,) = ec2.describe_route_tables()["RouteTables"]
        ec2.delete_route(RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0")
    found = examined()
    assert "way out" not in found
    for zone in ZONES:
        assert "nat-gateway-id" in found[f"way out of {zone}"].hint


def test_a_policy_of_before_that_hides_the_routes_leaves_the_way_out_unknown(account: GuardedAccount) -> None:
    account.policies = without_one("ec2:DescribeRouteTables")
    found = examined()
    assert failures(found) == {}
    assert found["way out"].verdict is Verdict.UNKNOWN
    assert "ec2:DescribeRouteTables" in found["way out"].hint


def hide(zone: str) -> str:
    """Give no more public addresses in a zone's subnet."""
    ec2 = boto3.client("ec2")
    (row,) = ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": [zone]}])["Subnets"]
    ec2.modify_subnet_attribute(SubnetId=row["SubnetId"], MapPublicIpOnLaunch={"Value": False})
    return str(row["SubnetId"])


def without_one(action: str) -> Sequence[Document]:
    """The runner's policy less one of the actions of a statement."""
    cut = [
        {**each, "Action": [one for one in listed(each["Action"]) if one != action]} for each in RUNNER[0]["Statement"]
    ]
    return ({"Statement": [each for each in cut if each["Action"]]},)


# -- the key of the disks --------------------------------------------------------------------------------------------

SPOT_ROLE = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
MAY_READ_KEYS = {
    "Effect": "Allow",
    "Action": ["kms:DescribeKey", "kms:GetKeyPolicy", "kms:ListGrants"],
    "Resource": "*",
}


@pytest.fixture
def key(account: GuardedAccount) -> str:
    """A customer's own key, with the policy that KMS gives it, by which EBS encrypts."""
    with account.as_administrator():
        account.disk_key = boto3.client("kms").create_key()["KeyMetadata"]["Arn"]
    account.policies = (*RUNNER, {"Statement": [MAY_READ_KEYS]})
    return account.disk_key


def test_a_key_that_ec2_may_not_use_for_spot_is_named_with_the_command_that_grants_it(key: str) -> None:
    finding = examined()["disk key"]
    assert finding.verdict is Verdict.WARNED
    assert key in finding.detail
    assert "AWSServiceRoleForEC2Spot" in finding.detail
    granted = f"aws kms create-grant --region {REGION} --key-id {key} --grantee-principal {SPOT_ROLE} --operations "
    assert finding.hint.startswith(granted)


def test_a_key_matters_to_spot_alone(key: str) -> None:
    assert examined(wanted(spot_policy="on-demand"))["disk key"].verdict is Verdict.OK


def test_a_key_that_ec2_has_a_grant_of_is_fine(account: GuardedAccount, key: str) -> None:
    with account.as_administrator():
        boto3.client("kms").create_grant(KeyId=key, GranteePrincipal=SPOT_ROLE, Operations=["Decrypt", "CreateGrant"])
    assert examined()["disk key"].verdict is Verdict.OK


@pytest.mark.parametrize("principal", [{"AWS": ["arn:aws:iam::1:user/x", SPOT_ROLE]}, "*", {"AWS": "*"}], ids=str)
def test_a_key_whose_policy_names_ec2s_role_or_everybody_is_fine(
    account: GuardedAccount, key: str, principal: object
) -> None:
    allows = {"Effect": "Allow", "Principal": principal, "Action": ["kms:Decrypt", "kms:Create*"], "Resource": "*"}
    with account.as_administrator():
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allows]})
        boto3.client("kms").put_key_policy(KeyId=key, PolicyName="default", Policy=policy)
    assert examined()["disk key"].verdict is Verdict.OK


def test_a_key_that_is_disabled_fails(account: GuardedAccount, key: str) -> None:
    with account.as_administrator():
        boto3.client("kms").disable_key(KeyId=key.rpartition("/")[2])
    finding = examined()["disk key"]
    assert finding.verdict is Verdict.FAILED
    assert f"{key}, EBS's default key in {REGION}, is Disabled" in finding.detail


def test_a_key_whose_policy_the_caller_may_not_read_is_named_all_the_same(account: GuardedAccount, key: str) -> None:
    account.policies = RUNNER
    finding = examined()["disk key"]
    assert finding.verdict is Verdict.UNKNOWN
    assert key in finding.detail
    assert "kms:ListGrants" in finding.hint
    assert "aws kms create-grant" in finding.hint


# -- who asks, and when ----------------------------------------------------------------------------------------------


def test_doctor_checks_nothing_else_without_credentials(
    account: GuardedAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    found = examined(region=Region(REGION, system_clock()))
    assert list(found) == ["identity"]
    assert "aws sso login" in found["identity"].hint
    assert found["identity"].exit_code == CloudError.exit_code
    assert account.calls == []


def test_root_is_warned_of(account: GuardedAccount) -> None:
    account.arn = "arn:aws:iam::123456789012:root"
    assert "spotrun-runner" in examined()["identity"].hint


@pytest.mark.parametrize(("ahead_s", "words"), [(100, "ahead of"), (-100, "behind")])
def test_a_clock_that_is_off_is_warned_of(account: GuardedAccount, ahead_s: int, words: str) -> None:
    finding = examined(clock=clock_ahead(ahead_s))["aws clock"]
    assert finding.verdict is Verdict.WARNED
    assert words in finding.detail
    assert "timedatectl" in finding.hint


def test_a_signature_that_is_refused_for_the_clock_is_blamed_on_the_clock(
    account: GuardedAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.refuse("GetCallerIdentity", "SignatureDoesNotMatch", 403, times=2)
    with monkeypatch.context() as patch:
        patch.setattr(clock_skew, "system_clock", lambda: clock_ahead(1200))
        found = examined()
    assert list(found) == ["identity"]
    assert "clock is 1," in found["identity"].detail
    assert "timedatectl" in found["identity"].hint
    assert "AWS_PROFILE" in examined()["identity"].hint


def clock_ahead(seconds: int) -> ManualClock:
    return ManualClock(datetime.now(UTC) + timedelta(seconds=seconds))


# -- permissions -----------------------------------------------------------------------------------------------------


def test_a_launch_that_is_not_allowed_is_found_by_a_dry_run(account: GuardedAccount) -> None:
    account.policies = without("ec2:RunInstances")
    found = examined()
    assert set(failures(found)) == {"launch on spot", "launch on demand"}
    assert "spotrun-runner" in found["launch on spot"].hint
    assert found["launch on spot"].exit_code == AccessDenied.exit_code
    assert "ec2:RunInstances" in found["launch on spot"].detail


def test_a_role_that_may_not_be_passed_is_found_too(account: GuardedAccount) -> None:
    account.policies = without("iam:PassRole")
    found = failures(examined(clock=patient(), instance_profile="spotrun-run-0123456789"))
    assert "iam:PassRole" in found["launch on demand"].detail
    assert "iam:PassRole" in failures(examined(clock=patient()))["role"].detail


def test_a_role_like_that_of_a_run_is_tried_and_removed(account: GuardedAccount) -> None:
    assert examined()["role"].verdict is Verdict.OK
    profiles = {asked["IamInstanceProfile.Name"] for asked in launches(account)}
    assert len(profiles) == 1
    assert profiles.pop().startswith("spotrun-run-doctor")
    assert roles(account) == {"spotrun-run-0123456789"}


def test_a_role_that_ec2_does_not_know_yet_is_waited_for(account: GuardedAccount) -> None:
    account.profiles_are_known = False
    clock = Knowing(account, at=LOOK_AGAIN_S * 3)
    assert failures(examined(clock=clock)) == {}
    assert len(launches(account)) == 3 + 2, "three in vain, then one of each capacity type"


def test_doctor_says_at_once_why_it_waits_for_a_role(account: GuardedAccount) -> None:
    account.profiles_are_known = False
    ((at_s, told),) = told_to_wait(Knowing(account, at=LOOK_AGAIN_S * 3))
    assert (at_s, told.name) == (0.0, "launch on spot")
    assert "3m at most" in told.detail
    assert "Invalid IAM Instance Profile name" in told.detail


def test_doctor_waits_for_a_new_role_that_cannot_be_changed_yet(account: GuardedAccount) -> None:
    account.refuse("AttachRolePolicy", "AccessDenied", 403)
    assert failures(examined(clock=patient())) == {}
    account.refuse("AttachRolePolicy", "AccessDenied", 403)
    ((_, told),) = told_to_wait(patient())
    assert told.name == "role"
    assert "AccessDenied" in told.detail


def test_a_role_that_ec2_never_comes_to_know_is_found_and_removed(account: GuardedAccount) -> None:
    account.profiles_are_known = False
    found = failures(examined(clock=patient()))
    assert set(found) == {"launch on spot", "launch on demand"}
    assert "Invalid IAM Instance Profile name" in found["launch on spot"].detail
    assert roles(account) == {"spotrun-run-0123456789"}


class Knowing(ManualClock):
    """EC2 knows all profiles once so many seconds were waited."""

    def __init__(self, account: GuardedAccount, at: float) -> None:
        super().__init__(datetime.now(UTC))
        self._account, self._left = account, at

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._left -= seconds
        self._account.profiles_are_known = self._left <= 0


def roles(account: GuardedAccount) -> set[str]:
    with account.as_administrator():
        found = (each["RoleName"] for each in boto3.client("iam").list_roles()["Roles"])
        return {name for name in found if name.startswith(OWN_PROFILE)}


@pytest.mark.parametrize("action", ["iam:CreateRole", "iam:AttachRolePolicy", "iam:AddRoleToInstanceProfile"])
def test_doctor_reports_a_missing_right_to_make_roles(account: GuardedAccount, action: str) -> None:
    account.policies = without(action)
    found = failures(examined(clock=patient()))
    assert set(found) == {"role"}
    assert action.partition(":")[0] in found["role"].detail
    assert "spotrun-runner" in found["role"].hint
    assert found["role"].exit_code == AccessDenied.exit_code


def test_doctor_reports_policies_that_let_no_role_name_a_secret(account: GuardedAccount) -> None:
    ours = [{**each} for each in RUNNER[0]["Statement"]]
    (tagging,) = [each for each in ours if each["Sid"] == "TagRolesOfRuns"]
    tagging["Condition"] = {"ForAllValues:StringEquals": {"aws:TagKeys": ["spotrun:run", "spotrun:folder"]}}
    account.policies = ({"Statement": ours},)
    assert failures(examined()) == {}
    found = failures(examined(secrets={"WORD": Reference(PARAMETER, "/spotrun/WORD")}))
    assert set(found) == {"role", "secret WORD"}
    assert "iam:TagRole" in found["role"].detail
    assert "spotrun-runner" in found["role"].hint


def test_an_account_without_the_policy_of_nodes_is_found(account: GuardedAccount) -> None:
    with account.as_administrator():
        RunRoles(calls(), ManualClock()).remove(RUN)
        boto3.client("iam").delete_policy(PolicyArn=f"arn:aws:iam::{ACCOUNT}:policy/spotrun-node")
    assert "account.yaml" in failures(examined())["role"].hint


def test_a_profile_for_all_runs_is_looked_at_instead(account: GuardedAccount) -> None:
    with account.as_administrator():
        assert failures(examined(instance_profile="spotrun-run-0123456789")) == {}
        found = failures(examined(instance_profile="somebodys"))
    assert set(found) == {"launch on spot", "launch on demand"}
    assert "aws.instance_profile" in found["launch on spot"].hint
    assert count(account, "CreateRole") == 0


def test_an_end_that_is_not_allowed_is_found_where_there_is_an_instance_to_ask_about(account: GuardedAccount) -> None:
    assert examined()["terminate"].verdict is Verdict.UNKNOWN
    instance_id = launched()
    assert examined()["terminate"].detail == f"EC2 would end {instance_id}"
    account.policies = without("ec2:TerminateInstances")
    assert set(failures(examined())) == {"terminate"}
    assert account.row(instance_id)._state.name == "running"


def launched() -> str:
    cloud = AwsDriver(CONFIG, system_clock())
    return cloud.launch(request(cloud)).instance_id


# -- what is there ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config", [{"image_parameter": "/spotrun/image-of-old"}, {"image_id": "ami-00000000000000000"}], ids=str
)
def test_an_image_that_is_not_there_is_found(account: GuardedAccount, config: dict[str, str]) -> None:
    found = examined(**config)
    assert set(failures(found)) == {"image"}
    assert "image" in found["image"].hint


def test_a_group_that_is_not_there_is_found(account: GuardedAccount) -> None:
    assert "aws.security_group" in failures(examined(security_group="nobody"))["network"].hint


def test_doctor_says_once_what_to_deploy_in_a_region_without_templates(account: GuardedAccount) -> None:
    with account.as_administrator():
        boto3.client("ssm", WEST).put_parameter(Name=IMAGE_PARAMETER, Value=image_in(WEST), Type="String")
    found = examined(region=Region(WEST, system_clock()))
    assert set(failures(found)) == {"network"}
    assert f"deploy infra/aws/region.yaml in {WEST}" in found["network"].hint
    assert found["launches"].verdict is Verdict.UNKNOWN
    assert not {"launch on spot", "capacity", "spot prices", "permissions"} & set(found)


def image_in(region: str) -> str:
    return str(next(iter(ec2_backends[ACCOUNT][region].amis)))


def test_right_that_several_checks_need_is_reported_once(account: GuardedAccount) -> None:
    account.policies = without("ec2:DescribeInstanceTypes")
    account.policies[0]["Statement"].append(  # type: ignore[index]
        {"Effect": "Allow", "Action": [each for each in look() if each != "ec2:DescribeInstanceTypes"], "Resource": "*"}
    )
    found = examined()
    assert set(failures(found)) == {"capacity"}
    assert "ec2:DescribeInstanceTypes" in found["capacity"].detail


def test_a_group_that_lets_something_in_is_warned_of(account: GuardedAccount) -> None:
    with account.as_administrator():
        rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
        boto3.client("ec2").authorize_security_group_ingress(GroupName="spotrun-node", IpPermissions=[rule])
    found = examined()
    assert found["ingress"].verdict is Verdict.WARNED
    assert "1 rule lets something into" in found["ingress"].detail
    assert "revoke-security-group-ingress" in found["ingress"].hint


@pytest.mark.filterwarnings("ignore:Tried to parse AWS")
def test_a_launch_template_is_looked_at_where_one_is_named(account: GuardedAccount) -> None:
    assert "launch template" not in examined()
    account.deploy_region()
    found = examined(launch_template="spotrun-node")
    assert failures(found) == {}
    assert ":1, the default version of spotrun-node" in found["launch template"].detail
    found = failures(examined(launch_template="somebodys"))
    assert "region.yaml makes one" in found["launch template"].hint


@pytest.mark.filterwarnings("ignore:Tried to parse AWS")
def test_a_launch_template_that_the_policy_does_not_allow_is_found_by_a_dry_run(account: GuardedAccount) -> None:
    account.deploy_region()
    account.policies = [{"Statement": [*map(without_templates, RUNNER[0]["Statement"])]}]
    assert "launch-template/" in failures(examined(launch_template="spotrun-node"))["launch on spot"].detail


def without_templates(statement: Mapping[str, Any]) -> dict[str, Any]:
    resources = listed(statement["Resource"])
    return {**statement, "Resource": [each for each in resources if "launch-template" not in each]}


def test_each_zone_says_what_it_has(account: GuardedAccount) -> None:
    found = examined(wanted(instance_type="g5.xlarge"))
    assert {found[f"zone {zone}"].detail for zone in ZONES} == {"g5.xlarge"}


def test_unavailable_accelerator_is_reported_with_the_available_ones(account: GuardedAccount) -> None:
    finding = failures(examined(wanted(accelerators=read_accelerators("H999:1"))))["capacity"]
    assert "H999:1" in finding.detail
    assert "T4" in finding.hint


def test_misspelled_type_is_reported_with_the_intended_one(account: GuardedAccount) -> None:
    finding = failures(examined(wanted(instance_type="g5.xlrage"), instance_types=("g5.xlrage",)))["capacity"]
    assert (finding.detail, finding.hint) == (
        f"{REGION}: nothing is offered with instance_type g5.xlrage",
        "did you mean g5.xlarge?",
    )


def test_zone_without_a_subnet_is_reported(account: GuardedAccount) -> None:
    remove_subnets(account, ZONES[:1])
    found = examined(wanted(instance_type="g5.xlarge"))
    assert ZONES[0] in found["subnets"].detail
    assert f"zone {ZONES[0]}" not in found
    found = examined(wanted(instance_type="g5.xlarge", zone=ZONES[0]))
    assert "without a subnet" in found["capacity"].detail
    assert "create-subnet" in found["capacity"].hint
    assert "launch on spot" not in found


def remove_subnets(account: GuardedAccount, zones: Sequence[str]) -> None:
    with account.as_administrator():
        ec2 = boto3.client("ec2")
        for subnet in ec2.describe_subnets()["Subnets"]:
            if subnet["AvailabilityZone"] in zones:
                ec2.delete_subnet(SubnetId=subnet["SubnetId"])


# -- what the role of instances may do --------------------------------------------------------------------------------


def make_bucket_of(account: GuardedAccount, store: str) -> None:
    with account.as_administrator():
        boto3.client("s3").create_bucket(Bucket=store.split("/")[2])


def test_store_that_a_runs_role_may_use_is_fine(account: GuardedAccount) -> None:
    make_bucket_of(account, f"s3://{BUCKET}/runs")
    found = examined(store=f"s3://{BUCKET}/runs/team")["store of instances"]
    assert (found.verdict, found.detail) == (
        Verdict.OK,
        f"the role of instances may read and write in s3://{BUCKET}/runs/team",
    )
    assert roles(account) == {"spotrun-run-0123456789"}


@pytest.mark.parametrize("store", ["s3://another/runs", f"s3://{BUCKET}/my-runs", f"s3://{BUCKET}"])
def test_store_that_only_the_caller_may_use_fails(account: GuardedAccount, store: str) -> None:
    """The policy of runs' roles covers one prefix of one bucket; three instances would be lost before a run gave up."""
    account.policies = None
    make_bucket_of(account, store)
    clock = patient()
    found = failures(examined(clock=clock, store=store))
    assert set(found) == {"store of instances"}
    assert f"IAM does not allow instances to use {store}/doctor-" in found["store of instances"].detail
    assert "s3:PutObject on arn:aws:s3:::" in found["store of instances"].detail
    assert "infra/aws/account.yaml" in found["store of instances"].hint
    assert found["store of instances"].exit_code == AccessDenied.exit_code
    assert clock.monotonic() <= DENIED_WITHIN.total_seconds() + LOOK_AGAIN_S


def test_store_is_never_called_fine_if_the_role_cannot_be_examined(account: GuardedAccount) -> None:
    make_bucket_of(account, f"s3://{BUCKET}/runs")
    account.policies = without_one("iam:SimulatePrincipalPolicy")
    found = examined(store=f"s3://{BUCKET}/runs")["store of instances"]
    assert found.verdict is Verdict.WARNED
    assert "whether instances may use the store is unknown" in found.detail
    assert "iam:SimulatePrincipalPolicy" in found.hint


def test_profile_of_all_runs_is_examined_too(account: GuardedAccount) -> None:
    """The role of another run, without this run's tags, may use neither folder."""
    account.policies = None
    make_bucket_of(account, f"s3://{BUCKET}/runs")
    found = examined(instance_profile="spotrun-run-0123456789", store=f"s3://{BUCKET}/runs")["store of instances"]
    assert found.verdict is Verdict.FAILED
    assert found.hint == "allow these in a policy of the role in spotrun-run-0123456789"


JOB_OF_AWS: dict[str, object] = {
    "name": "a",
    "workdir": "/",
    "train": {"run": "make"},
    "resources": {"cloud": "aws", "region": REGION},
    "checkpoint": {"uri": "s3://another/runs"},
}


def test_role_that_may_not_use_its_runs_folder_is_refused_before_a_launch(account: GuardedAccount) -> None:
    account.policies, account.tells_time = None, False  # otherwise AWS's answers set the clock back
    clock, uri = ManualClock(datetime.now(UTC)), "s3://another/runs/a-fedcba9876"
    runner = CLOUD.identities(RunSpec.from_dict(JOB_OF_AWS), clock)
    with pytest.raises(CloudUnavailable, match=f"IAM does not allow instances to use {uri}"):
        runner.make("fedcba9876", uri)  # IAM may not know the new role yet
    clock.sleep(2 * DENIED_WITHIN.total_seconds())
    with pytest.raises(AccessDenied, match=f"IAM does not allow instances to use {uri}"):
        runner.make("fedcba9876", uri)
    runner.remove("fedcba9876")


@pytest.mark.parametrize(("bucket", "missing"), [(BUCKET, ""), ("another", "iam:SimulatePrincipalPolicy")])
def test_role_that_may_use_its_runs_folder_or_cannot_be_examined_is_made(
    account: GuardedAccount, bucket: str, missing: str
) -> None:
    account.policies = without_one(missing)
    made = CheckedRunRoles(calls(), ManualClock())
    made.make("fedcba9876", f"s3://{bucket}/runs/a-fedcba9876")
    assert "spotrun-run-fedcba9876" in roles(account)
    made.remove("fedcba9876")


def test_bucket_that_is_not_there_is_the_first_thing_to_do(
    account: GuardedAccount, sandbox: Sandbox, called: Spotrun
) -> None:
    account.policies = None  # S3 says only to a caller with rights that there is no bucket
    told = called.call("doctor", "aws", job(sandbox, "s3://nobodys-runs/runs"), code=CloudError.exit_code)
    assert "FAILED  bucket: there is no bucket s3://nobodys-runs\n" in told
    assert "try: first, bucket: make it (infra/aws/README.md, or only: aws s3 mb s3://nobodys-runs --region" in told
    assert "store of instances" not in told


# -- quotas ----------------------------------------------------------------------------------------------------------


def test_a_quota_of_nothing_is_a_warning_while_the_other_market_is_open(account: GuardedAccount) -> None:
    account.quotas[SPOT_G] = 0.0
    found = examined()
    assert failures(found) == {}
    finding = found["spot vCPUs of G and VT"]
    assert finding.verdict is Verdict.WARNED
    assert f"--quota-code {SPOT_G} --desired-value 8 --region {REGION}" in finding.hint


def test_quotas_that_let_nothing_start_are_a_failure(account: GuardedAccount) -> None:
    account.quotas = {SPOT_G: 0.0, ON_DEMAND_G: 2.0}
    assert set(failures(examined())) == {"spot vCPUs of G and VT", "on-demand vCPUs of G and VT"}
    spot_only = wanted(spot_policy="spot")
    assert set(failures(examined(spot_only))) == {"spot vCPUs of G and VT"}


def test_a_quota_of_one_instance_leaves_no_standby(account: GuardedAccount) -> None:
    account.quotas[SPOT_G] = 4.0
    assert "no standby" in examined()["spot vCPUs of G and VT"].detail


def test_unreadable_quota_is_unknown(account: GuardedAccount) -> None:
    account.policies = without("servicequotas:GetServiceQuota", "ec2:DescribeInstances")
    account.policies[0]["Statement"].append(  # type: ignore[index]
        {"Effect": "Allow", "Action": [each for each in look() if each[:3] == "ec2"], "Resource": "*"}
    )
    finding = examined()["spot vCPUs of G and VT"]
    assert finding.verdict is Verdict.UNKNOWN
    assert "servicequotas:GetServiceQuota" in finding.hint


def look() -> list[str]:
    return next(each["Action"] for each in RUNNER[0]["Statement"] if each["Sid"] == "Look")


@pytest.mark.parametrize(
    ("kind", "spot", "on_demand"),
    [
        ("g4dn.xlarge", SPOT_G, ON_DEMAND_G),
        ("gr6.4xlarge", SPOT_G, ON_DEMAND_G),
        ("p3.2xlarge", "L-7212CCBC", "L-417A185B"),
        ("p4d.24xlarge", "L-7212CCBC", "L-417A185B"),
        ("p5en.48xlarge", "L-C4BD4855", "L-417A185B"),
        ("p9.48xlarge", None, "L-417A185B"),
        ("m7i.large", "L-34B43A08", "L-1216C47A"),
        ("t3.micro", "L-34B43A08", "L-1216C47A"),
        ("trn1.2xlarge", None, None),
        ("hpc7a.12xlarge", None, None),
    ],
)
def test_each_type_counts_against_the_quota_of_its_family(kind: str, spot: str | None, on_demand: str | None) -> None:
    found = [quota_of(kind, each) for each in (CapacityType.SPOT, CapacityType.ON_DEMAND)]
    assert [quota and quota.code for quota in found] == [spot, on_demand]


# -- at the door -----------------------------------------------------------------------------------------------------

DOOR = ("doctor", "aws", "--region", REGION, "--instance-type", "g5.xlarge", "--image", IMAGE_PARAMETER)


def make_bucket(account: GuardedAccount, **place: Any) -> str:
    with account.as_administrator():
        boto3.client("s3").create_bucket(Bucket=BUCKET, **place)
    return f"s3://{BUCKET}/runs"


def test_the_command_looks_at_the_account_and_at_the_bucket_with_the_runners_rights(
    account: GuardedAccount, sandbox: Sandbox
) -> None:
    report = sandbox.call_json(*DOOR, "--store", make_bucket(account))
    told = {check["name"]: check["verdict"] for check in report["checks"]}
    assert report["ok"], report
    assert {"identity", "launch on spot", "creation", "expiry", "region"} <= set(told)
    assert told["protection"] == "ok"  # the policy lets nobody delete an entry, and the doctor has seen it
    assert {asked.action for asked in account.denied} == {"s3:DeleteObject", "ec2:TerminateInstances"}


def test_a_bucket_in_another_region_than_the_instances_is_warned_of(
    account: GuardedAccount, sandbox: Sandbox, called: Spotrun
) -> None:
    place = {"CreateBucketConfiguration": {"LocationConstraint": "eu-west-1"}}
    report = called.call_json(*DOOR, "--store", make_bucket(account, **place))
    finding = next(check for check in report["checks"] if check["name"] == "region")
    assert finding["verdict"] == "warned"
    assert REGION in finding["hint"]


def test_a_folder_of_this_machine_is_no_store_for_instances_on_aws(
    account: GuardedAccount, sandbox: Sandbox, called: Spotrun
) -> None:
    output = called.call(*DOOR, "--json", code=StoreError.exit_code)
    report = json.loads(output[: output.rindex("}") + 1])
    finding = next(check for check in report["checks"] if check["verdict"] == "failed")
    assert "s3://" in finding["hint"]


def job(sandbox: Sandbox, store: str, regions: str = REGION) -> Path:
    path = sandbox.folder / "examined.yaml"
    path.write_text(
        f"workdir: {JOBS}\ntrain: {{script: quick.py}}\ncheckpoint: {{uri: '{store}'}}\n"
        "resources: {cloud: aws, accelerators: 'T4:1'}\n"
        f"aws: {{regions: [{regions}], instance_types: [{', '.join(TYPES)}], image_parameter: {IMAGE_PARAMETER}}}\n"
    )
    return path


def test_a_job_says_what_is_wanted_and_flags_win(account: GuardedAccount, sandbox: Sandbox, called: Spotrun) -> None:
    examined_job = job(sandbox, make_bucket(account))
    examined_job.write_text(f"{examined_job.read_text()}secrets: [WORD]\n")
    with account.as_administrator():
        boto3.client("ssm").put_parameter(Name="/spotrun/WORD", Value="w", Type="SecureString")
    told = called.call("doctor", "aws", examined_job)
    assert "secret WORD: /spotrun/WORD, a SecureString\n" in told
    assert f"zone {ZONES[0]}: g4dn.xlarge\n" in told
    told = called.call("doctor", "aws", examined_job, "--accelerators", "A10G:1")
    assert f"zone {ZONES[0]}: g5.xlarge\n" in told


def test_each_region_of_a_job_is_looked_at(account: GuardedAccount, sandbox: Sandbox, called: Spotrun) -> None:
    examined_job = job(sandbox, make_bucket(account), regions=f"{REGION}, us-west-2")
    output = called.call("doctor", "aws", examined_job, code=CloudError.exit_code)
    assert "ok      network in us-east-1" in output
    assert "FAILED  network in us-west-2" in output


def test_a_store_that_is_named_by_flag_is_that_of_the_job_too(
    account: GuardedAccount, sandbox: Sandbox, called: Spotrun
) -> None:
    store = make_bucket(account)
    examined_job = job(sandbox, "not a store of instances")
    assert f"ok      store: {store}\n" in called.call("doctor", "aws", examined_job, "--store", store)


def test_doctor_and_launch_without_a_login_say_only_how_to_log_in(
    account: GuardedAccount, sandbox: Sandbox, called: Spotrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_bucket(account)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    told = called.call(*DOOR, "--store", store, code=CloudError.exit_code)
    assert "ok      store" not in told
    assert told.count("FAILED  store") == 1
    assert told.count("try: log in by `aws sso login`") == 2
    told = called.call("launch", job(sandbox, store), "--dry-run", code=LoginMissing.exit_code)
    assert "problems in" not in told
    assert told.count("Unable to locate credentials") == told.count("try: log in by `aws sso login`") == 1
    assert "correct the file" not in told


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "aws", "--region", "us-esat-1"),
        ("offers", "--region", "us-esat-1"),
        ("reap", "--cloud", "aws", "--region", "us-esat-1"),
    ],
    ids=lambda words: words[0],
)
def test_a_region_that_aws_does_not_have_is_refused_with_the_one_that_was_meant(
    account: GuardedAccount, sandbox: Sandbox, called: Spotrun, words: tuple[str, ...]
) -> None:
    told = called.call(*words, code=SpecInvalid.exit_code)
    assert "error: AWS has no region us-esat-1\n" in told
    assert "did you mean us-east-1?" in told
    assert account.calls == []


def test_instances_in_a_region_unknown_to_the_sdk_can_be_ended(account: GuardedAccount) -> None:
    assert CLOUD.account(["mars-north-1"]).driver is not None


def test_a_job_in_a_region_that_aws_does_not_have_is_refused_with_its_line(
    account: GuardedAccount, sandbox: Sandbox, called: Spotrun
) -> None:
    mistyped = job(sandbox, make_bucket(account), regions=f"{REGION}, eu-wset-1")
    account.calls.clear()
    told = called.call("launch", mistyped, "--dry-run", code=SpecInvalid.exit_code)
    assert "examined.yaml:5: aws.regions[1]: AWS has no region eu-wset-1" in told
    assert "did you mean eu-west-1?" in told
    assert account.calls == []


def test_a_dry_run_finds_a_bucket_and_a_profile_that_are_not_there(
    account: GuardedAccount, sandbox: Sandbox, called: Spotrun
) -> None:
    told = called.call("launch", job(sandbox, "s3://nobody-has-made-this/runs"), "--dry-run", code=StoreError.exit_code)
    assert "examined.yaml:3: checkpoint.uri: " in told
    named = job(sandbox, make_bucket(account))
    named.write_text(named.read_text().replace("aws: {", "aws: {instance_profile: spotrun-run-nobodys, "))
    told = called.call("launch", named, "--dry-run", code=IdentityUnknown.exit_code)
    assert "examined.yaml:5: aws.instance_profile: there is no instance profile spotrun-run-nobodys" in told


def test_a_dry_run_lists_all_resources_that_are_not_there(
    account: GuardedAccount, sandbox: Sandbox, called: Spotrun
) -> None:
    named = job(sandbox, "s3://nobody-has-made-this/runs")
    bad = "instance_profile: spotrun-run-nobodys, launch_template: nobodys, image_id: ami-00000000000000000, "
    named.write_text(named.read_text().replace("aws: {", f"aws: {{{bad}"))
    told = called.call("launch", named, "--dry-run", code=SpecInvalid.exit_code)
    assert "error: 4 problems in " in told
    assert "examined.yaml:3: checkpoint.uri: " in told
    for key in ("instance_profile", "launch_template", "image_id"):
        assert f"examined.yaml:5: aws.{key}: " in told


def test_dry_run_notes_a_profile_whose_role_may_not_use_the_store(
    account: GuardedAccount, sandbox: Sandbox, called: Spotrun
) -> None:
    account.policies = None
    named = job(sandbox, make_bucket(account))
    named.write_text(named.read_text().replace("aws: {", "aws: {instance_profile: spotrun-run-0123456789, "))
    told = called.call("launch", named, "--dry-run")
    assert "note: IAM does not allow instances to use " in told
    assert "allow these in a policy of the role in spotrun-run-0123456789" in told
    account.policies = without_one("iam:SimulatePrincipalPolicy")
    told = called.call("launch", named, "--dry-run")
    assert "not checked" not in told
    assert "IAM does not allow" not in told


@pytest.mark.parametrize("types", [pytest.param("g4dn.xlrge", marks=pytest.mark.nightly), "g4dn.xlarge, g4dn.xlrge"])
def test_a_listed_type_that_aws_does_not_have_is_refused_with_its_line(
    account: GuardedAccount, sandbox: Sandbox, called: Spotrun, types: str
) -> None:
    mistyped = job(sandbox, make_bucket(account))
    mistyped.write_text(mistyped.read_text().replace(", ".join(TYPES), types))
    told = called.call("launch", mistyped, "--dry-run", code=SpecInvalid.exit_code)
    assert f"examined.yaml:5: aws.instance_types[{types.count(',')}]: " in told
    assert "did you mean g4dn.xlarge, from $" in told


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "--region", REGION),
        ("doctor", "aws", "a.yaml", "b.yaml"),
        ("doctor", "aws", "--region", REGION, "--accelerators", "A10G:many"),
    ],
    ids=str,
)
def test_flags_that_mean_nothing_are_refused(sandbox: Sandbox, called: Spotrun, words: tuple[str, ...]) -> None:
    assert "try:" in called.call(*words, code=SpecInvalid.exit_code)


def test_an_account_without_guards_is_warned(account: GuardedAccount) -> None:
    with account.as_administrator():
        boto3.client("scheduler").delete_schedule_group(Name="spotrun")
    found = examined()["guard"]
    assert found.verdict is Verdict.WARNED
    assert "there is no schedule group spotrun" in found.detail
    account.furnish()


def test_doctor_warns_of_a_missing_right_to_make_guards(account: GuardedAccount) -> None:
    account.policies = without("scheduler:CreateSchedule")
    found = examined()["guard"]
    assert found.verdict is Verdict.WARNED
    assert "AccessDeniedException" in found.detail
    account.denied.clear()
