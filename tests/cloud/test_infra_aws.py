"""infra/aws: clean for cfn-lint, taken by CloudFormation (moto's), and as narrow as it says."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from spotrun.clock import system_clock
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.config import OWN_PROFILE, AwsConfig
from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.aws.request import RUN
from spotrun.clouds.aws.run_role import FOLDER, IMAGE, POLICY, RunRoles
from spotrun.clouds.aws.secret_tags import KEY as SECRET
from spotrun.clouds.aws.secret_tags import SECRETS_MAX
from spotrun.store.lifecycle import s3_expiries, s3_older_versions_days
from tests.support import ec2_server
from tests.support.aws_stack import deploy
from tests.support.aws_templates import NAMES, Template, path_of
from tests.support.ec2_server import ACCOUNT, REGION
from tests.support.guarded_account import GuardedAccount
from tests.support.iam import listed
from tests.support.manual_clock import ManualClock

MOTO_CANNOT_DEPLOY = {
    *("AWS::S3::BucketPolicy", "AWS::Scheduler::ScheduleGroup", "AWS::Scheduler::Schedule"),
    "AWS::Lambda::EventInvokeConfig",
}
"""What is only linted, and read from the template; of a bucket, moto deploys no more than name and encryption."""
POLICY_MAX_CHARACTERS = 6144
"""https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html; blanks do not count."""
BUCKET = f"spotrun-{ACCOUNT}-{REGION}"


def roles() -> RunRoles:
    return RunRoles(Region(REGION, ManualClock()), ManualClock())


@pytest.fixture
def bare(account: GuardedAccount) -> Iterator[None]:
    """An account in which nothing of ours is yet, and whose administrator we are."""
    with account.as_administrator():
        boto3.client("ec2").delete_security_group(GroupName="spotrun-node")
        roles().remove(ec2_server.RUN)
        boto3.client("iam").delete_policy(PolicyArn=f"arn:aws:iam::{ACCOUNT}:policy/{POLICY}")
        yield


@pytest.mark.checks("infra/aws")
@pytest.mark.parametrize("name", NAMES)
def test_cfn_lint_finds_nothing(name: str) -> None:
    command = [str(Path(sys.executable).with_name("cfn-lint")), "--include-checks", "I", "--", str(path_of(name))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def deployed_by_awscli(name: str, **parameters: str) -> None:
    command = ["aws", "cloudformation", "deploy", "--stack-name", f"spotrun-{name}"]
    command += ["--template-file", str(path_of(name)), "--capabilities", "CAPABILITY_NAMED_IAM"]
    if parameters:
        command += ["--parameter-overrides", *(f"{key}={text}" for key, text in parameters.items())]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def deploy_as_one_would(name: str, **parameters: str) -> None:
    (deployed_by_awscli if shutil.which("aws") else deploy)(name, **parameters)


def commands_of_the_readme() -> list[str]:
    """What its first block says to type."""
    block: str = (path_of("account").parent / "README.md").read_text().split("```")[1]
    return block.strip().splitlines()


def set_up() -> None:
    """As the README says; without awscli, what its commands amount to."""
    if shutil.which("aws") is None:
        deploy("account")
        deploy("region", VpcId=network())
        policy = f"arn:aws:iam::{ACCOUNT}:policy/spotrun-runner"
        boto3.client("iam").attach_user_policy(UserName="trainer", PolicyArn=policy)
        return
    for command in commands_of_the_readme():
        environment = {**os.environ, "USER": "trainer"}
        folder = path_of("account").parents[2]
        done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, timeout=120)
        assert done.returncode == 0, (command, done.stdout, done.stderr)


def network() -> str:
    return str(boto3.client("ec2").describe_vpcs()["Vpcs"][0]["VpcId"])


@pytest.mark.filterwarnings("ignore:Tried to parse AWS")
@pytest.mark.usefixtures("bare")
def test_deployed_policies_are_those_that_other_tests_read() -> None:
    deploy_as_one_would("account", SessionManager="enabled")
    iam = boto3.client("iam")
    found = {}
    for policy in iam.list_policies(Scope="Local")["Policies"]:
        version = iam.get_policy_version(PolicyArn=policy["Arn"], VersionId=policy["DefaultVersionId"])
        found[policy["PolicyName"]] = version["PolicyVersion"]["Document"]
    for role in iam.list_roles()["Roles"]:
        found[f"{role['RoleName']}/trust"] = role["AssumeRolePolicyDocument"]
        for name in iam.list_role_policies(RoleName=role["RoleName"])["PolicyNames"]:
            answer = iam.get_role_policy(RoleName=role["RoleName"], PolicyName=name)
            document = answer["PolicyDocument"]
            if isinstance(document, str):  # moto's CloudFormation stores those of roles as Python's words for them
                document = ast.literal_eval(document)
            found[f"{role['RoleName']}/{name}"] = document
    expected = Template("account", SessionManager="enabled").documents()
    expected.pop("bucket")
    assert found == expected
    encryption = boto3.client("s3").get_bucket_encryption(Bucket=BUCKET)["ServerSideEncryptionConfiguration"]
    assert encryption["Rules"][0]["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}


@pytest.mark.filterwarnings("ignore:Tried to parse AWS")
@pytest.mark.usefixtures("bare")
def test_after_the_three_commands_of_the_readme_a_driver_finds_what_it_needs() -> None:
    boto3.client("iam").create_user(UserName="trainer")
    set_up()
    attached = boto3.client("iam").list_attached_user_policies(UserName="trainer")["AttachedPolicies"]
    assert [policy["PolicyName"] for policy in attached] == ["spotrun-runner"]
    config = AwsConfig(
        regions=(REGION,), instance_types=tuple(ec2_server.TYPES), image_parameter=ec2_server.IMAGE_PARAMETER
    )
    assert {each.zone for each in AwsDriver(config, system_clock()).offerings()} >= set(ec2_server.ZONES)
    groups = boto3.client("ec2").describe_security_groups(GroupNames=["spotrun-node"])["SecurityGroups"]
    assert groups[0]["IpPermissions"] == []
    assert groups[0]["Tags"][0] == {"Key": "spotrun:group", "Value": "node"}
    assert roles().make("0123456789", f"s3://{BUCKET}/runs/r-0123456789") is not None
    template = boto3.client("ec2").describe_launch_templates(LaunchTemplateNames=["spotrun-node"])["LaunchTemplates"][0]
    assert template["Tags"][0] == {"Key": "spotrun:group", "Value": "node"}


def test_resource_kinds_that_moto_cannot_deploy_are_listed() -> None:
    kinds = {each["Type"] for name in NAMES for each in Template(name).body["Resources"].values()}
    assert {
        "AWS::S3::Bucket",
        "AWS::EC2::LaunchTemplate",
        "AWS::EC2::SecurityGroup",
        "AWS::IAM::ManagedPolicy",
        "AWS::IAM::Policy",
        "AWS::IAM::Role",
        "AWS::Events::Rule",
        "AWS::Lambda::Function",
        "AWS::Lambda::Permission",
        "AWS::Logs::LogGroup",
    } == kinds - MOTO_CANNOT_DEPLOY
    assert kinds >= MOTO_CANNOT_DEPLOY


# -- the bucket ------------------------------------------------------------------------------------------------------


def test_the_bucket_is_private_versioned_and_stays() -> None:
    bucket = Template("account").properties("Bucket")
    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    assert bucket["OwnershipControls"]["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]
    assert bucket["BucketName"] == BUCKET
    assert Template("account", BucketName="mine").properties("Bucket")["BucketName"] == "mine"
    assert Template("account").body["Resources"]["Bucket"]["DeletionPolicy"] == "Retain"


@pytest.mark.usefixtures("bare")
def test_no_rule_of_the_bucket_expires_what_is_current_and_unfinished_uploads_end() -> None:
    rules = Template("account").properties("Bucket")["LifecycleConfiguration"]["Rules"]
    assert all("ExpirationInDays" not in rule and "Transitions" not in rule for rule in rules)
    as_s3_tells_them = in_words_of_the_api(rules)
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket=BUCKET)
    s3.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": as_s3_tells_them})
    told = s3.get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"]
    assert s3_expiries(told, "runs/") == ()
    assert s3_older_versions_days(told, "runs/") == 7
    assert any("AbortIncompleteMultipartUpload" in rule for rule in told)


def in_words_of_the_api(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """CloudFormation flattens what S3's own API nests."""
    found = []
    for rule in rules:
        again = {"ID" if key == "Id" else key: value for key, value in rule.items()} | {"Filter": {"Prefix": ""}}
        if again.pop("ExpiredObjectDeleteMarker", False):
            again["Expiration"] = {"ExpiredObjectDeleteMarker": True}
        found.append(again)
    return found


# -- the policies ----------------------------------------------------------------------------------------------------

SESSIONS = {"SessionManager": "enabled"}
DOCUMENTS = Template("account", **SESSIONS).documents()
WITHOUT_RESOURCES = {
    *(
        "ec2:Describe",
        "ec2:GetEbsDefaultKmsKeyId",
        "ecr:GetAuthorizationToken",
        "iam:ListRoles",
        "pricing:",
        "servicequotas:",
    ),
    *("ssm:DescribeParameters", "ssm:UpdateInstanceInformation", "ssmmessages:"),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_action_that_is_allowed_has_a_wildcard_and_only_what_knows_no_resources_has_them_all(name: str) -> None:
    for statement in DOCUMENTS[name]["Statement"]:
        if statement["Effect"] != "Allow":
            continue
        actions = listed(statement["Action"])
        assert not [action for action in actions if "*" in action]
        assert "NotAction" not in statement
        if "*" in listed(statement.get("Resource", [])):
            assert [action for action in actions if not action.startswith(tuple(WITHOUT_RESOURCES))] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_policy_fits_into_what_iam_takes_with_long_names_too(name: str) -> None:
    long_names = {"BucketName": "b" * 63, "RunsPrefix": "p" * 40, "ImageOwners": "amazon,210987654321"}
    for template in (Template("account", **SESSIONS), Template("account", "aws-us-gov", **SESSIONS, **long_names)):
        text = json.dumps(template.documents()[name], separators=(",", ":"))
        assert len("".join(text.split())) <= POLICY_MAX_CHARACTERS


def test_the_node_may_do_nothing_in_ec2() -> None:
    actions = [action for each in DOCUMENTS[POLICY]["Statement"] for action in listed(each["Action"])]
    assert not [action for action in actions if action.startswith(("ec2:", "iam:", "scheduler:"))]


def test_sessions_are_off_unless_enabled() -> None:
    off = Template("account").documents()
    assert set(DOCUMENTS) - set(off) == {"spotrun-sessions"}
    assert [documents[POLICY]["Statement"][-1]["Effect"] for documents in (DOCUMENTS, off)] == ["Allow", "Deny"]
    assert "ssmmessages:OpenDataChannel" in off[POLICY]["Statement"][-1]["Action"]


def test_the_group_lets_nothing_in() -> None:
    group = Template("region", VpcId="vpc-12345678").properties("NodeGroup")
    assert "SecurityGroupIngress" not in group
    assert group["GroupName"] == AwsConfig(regions=(REGION,)).security_group


def test_the_policies_know_the_tag_that_the_driver_gives() -> None:
    assert f"aws:RequestTag/{RUN}" in json.dumps(DOCUMENTS["spotrun-runner"])
    assert f"aws:ResourceTag/{RUN}" in json.dumps(DOCUMENTS["spotrun-guard/end-instances"])


def test_the_policies_know_the_names_and_tags_of_the_roles_of_runs() -> None:
    runners = {each["Sid"]: each for each in DOCUMENTS["spotrun-runner"]["Statement"]}
    role = f"arn:aws:iam::{ACCOUNT}:role/{OWN_PROFILE}*"
    assert runners["MakeRolesOfRuns"]["Resource"] == role
    assert runners["MakeRolesOfRuns"]["Condition"]["ArnEquals"] == {
        "iam:PermissionsBoundary": f"arn:aws:iam::{ACCOUNT}:policy/{POLICY}"
    }
    tags = runners["TagRolesOfRuns"]["Condition"]["ForAllValues:StringLike"]["aws:TagKeys"]
    assert tags == [RUN, FOLDER, IMAGE, f"{SECRET}*"]
    read = {RUN, FOLDER, IMAGE, *(f"{SECRET}{number}" for number in range(1, SECRETS_MAX + 1))}
    assert read == {*re.findall('aws:PrincipalTag/([^}"]+)', json.dumps(DOCUMENTS[POLICY]))}
