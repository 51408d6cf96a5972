"""What the policies of infra/aws allow and what they do not, decided as IAM decides; see tests/support/iam.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import botocore.session
import pytest
from botocore.serialize import create_serializer
from hypothesis import given
from hypothesis import strategies as st

from spotrun.clouds.aws.config import AwsConfig
from spotrun.clouds.aws.network import Ami
from spotrun.clouds.aws.request import run_instances
from spotrun.clouds.aws.secret_tags import SECRETS_MAX, secret_tags
from spotrun.folder.final_status import KEY
from spotrun.folder.status_objects import RUNNER_KEY
from spotrun.notify.delivery import FOLDER as NOTIFIED
from spotrun.offering import CapacityType, Offering
from spotrun.secrets.reference import ENVIRONMENT, PARAMETER, Reference
from tests.support.aws_templates import Template
from tests.support.ec2_server import ACCOUNT, REGION
from tests.support.iam import Asked, Decision, conditions_hold, decide
from tests.support.iam_calls import Call, Known, asked_by
from tests.support.launch_requests import requested

ADA, ROLE_OF_ADA = f"arn:aws:iam::{ACCOUNT}:user/ada", f"arn:aws:iam::{ACCOUNT}:role/trainers/ada"
DOCUMENTS = Template("account", SessionManager="enabled", Runners=f"{ADA},{ROLE_OF_ADA}").documents()
BUCKET = f"arn:aws:s3:::spotrun-{ACCOUNT}-{REGION}"
RUN = f"{BUCKET}/runs/resnet50-0123456789"
KEY_OF_RUN = f"{BUCKET}/runs/keys/0123456789"
ANOTHER = f"{BUCKET}/runs/bert-fedcba9876"
INSTANCE = f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/i-0123456789abcdef0"
TEMPLATE = f"arn:aws:ec2:{REGION}:{ACCOUNT}:launch-template/lt-0123456789abcdef0"
INTERFACE = f"arn:aws:ec2:{REGION}:{ACCOUNT}:network-interface"
SCHEDULE = f"arn:aws:scheduler:{REGION}:{ACCOUNT}:schedule"
ROLE, PROFILE = f"arn:aws:iam::{ACCOUNT}:role", f"arn:aws:iam::{ACCOUNT}:instance-profile"
OF_RUN, PROFILE_OF_RUN = f"{ROLE}/spotrun-run-0123456789", f"{PROFILE}/spotrun-run-0123456789"
NODE_POLICY = f"arn:aws:iam::{ACCOUNT}:policy/spotrun-node"
BOUND, GIVEN = {"iam:PermissionsBoundary": NODE_POLICY}, {"iam:PolicyARN": NODE_POLICY}
TAGGED = {"aws:TagKeys": ("spotrun:run", "spotrun:folder", "spotrun:image", "spotrun:secret-1", "spotrun:secret-20")}
IMAGES = f"arn:aws:ecr:{REGION}:{ACCOUNT}:repository"
PULLING = ("ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
SECRETS = f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/spotrun"
OURS = {"aws:ResourceTag/spotrun:run": "0123456789"}
TO_EC2, TO_SCHEDULER = {"iam:PassedToService": "ec2.amazonaws.com"}, {"iam:PassedToService": "scheduler.amazonaws.com"}
TLS, CREATING = {"aws:SecureTransport": "true"}, {"aws:SecureTransport": "true", "s3:if-none-match": "*"}
ATTACHED = {
    "runner": ("spotrun-runner", "bucket"),
    "node": ("spotrun-node", "bucket"),
    "node without secrets": ("spotrun-node", "bucket"),
    "node without tags": ("spotrun-node", "bucket"),
    "node of a folder elsewhere": ("spotrun-node", "bucket"),
    "guard": ("spotrun-guard/end-instances",),
    "user": ("spotrun-sessions",),
    "administrator": ("anything", "bucket"),
    "function of a night": ("spotrun-runner", "bucket"),
    "runner that is not named": ("spotrun-runner", "bucket"),
    "node elsewhere": ("spotrun-node",),
    "runner elsewhere": ("spotrun-runner",),
}
"""Who has which policies. Elsewhere the bucket was made without our template, and has no policy of its own."""
OF_NODE = {
    "aws:PrincipalTag/spotrun:run": "0123456789",
    "aws:PrincipalTag/spotrun:folder": "runs/resnet50-0123456789",
}
NAMING = {"aws:PrincipalTag/spotrun:secret-1": "team/hf", "aws:PrincipalTag/spotrun:secret-2": "wandb"}
TAGS_OF = {
    "node": OF_NODE | NAMING | {"aws:PrincipalTag/spotrun:image": "team/train"},
    "node without secrets": OF_NODE,
    "node elsewhere": OF_NODE,
    "node of a folder elsewhere": OF_NODE | {"aws:PrincipalTag/spotrun:folder": "elsewhere/resnet50-0123456789"},
}
IS = "aws:PrincipalArn"
ARN_OF = {
    "runner": ADA,
    "function of a night": f"arn:aws:iam::{ACCOUNT}:role/spotrun-night-resnet50",
    "node": f"arn:aws:iam::{ACCOUNT}:role/spotrun-run-0123456789",
}
"""Those who are not here are called somebody."""
ANYTHING = {"Statement": [{"Sid": "Anything", "Effect": "Allow", "Action": "*", "Resource": "*"}]}
NOT_EVALUATED = {"EndOwnSessions"}
"""Statements that are not put to any request here, by name: this one has a policy variable in it."""

ALLOWED = [
    ("node", Asked("s3:ListBucket", BUCKET, TLS)),
    ("node", Asked("s3:GetObject", f"{RUN}/work/5feceb66.tar.gz", TLS)),
    ("node", Asked("s3:GetObject", f"{RUN}/ledger/00000000.json", TLS)),
    ("node", Asked("s3:PutObject", f"{RUN}/ledger/00000001.json", CREATING)),
    ("node", Asked("s3:PutObject", f"{RUN}/hints/agent-1.json", TLS)),
    ("node", Asked("s3:DeleteObject", f"{RUN}/checkpoints/1/0/part-0", TLS)),
    *(
        ("node", Asked(f"ssm:{verb}", f"{SECRETS}/{path}"))
        for verb in ("GetParameter", "GetParameters")
        for path in ("wandb", "team/hf")
    ),
    ("node", Asked("s3:PutObject", f"{RUN}/environments/5feceb66.json", CREATING)),
    ("node", Asked("s3:PutObject", f"{RUN}/environments/5feceb66/7/000000", TLS)),
    ("node", Asked("s3:DeleteObject", f"{RUN}/environments/5feceb66.json", TLS)),
    ("node", Asked("s3:PutObject", f"{RUN}/outputs/7/5feceb66", TLS)),
    ("node", Asked("s3:DeleteObject", f"{RUN}/outputs/7/5feceb66", TLS)),
    ("node", Asked("s3:AbortMultipartUpload", f"{RUN}/environments/0", TLS)),
    *(
        ("node", Asked(f"ssmmessages:{verb}{kind}Channel"))
        for verb in ("Create", "Open")
        for kind in ("Control", "Data")
    ),
    ("node", Asked("ssm:UpdateInstanceInformation")),
    ("node", Asked("ecr:GetAuthorizationToken")),
    *(("node", Asked(action, f"{IMAGES}/team/train")) for action in PULLING),
    *(("node", Asked(action, "arn:aws:ecr:eu-west-1:763104351884:repository/team/train")) for action in PULLING),
    ("runner", Asked("ecr:GetAuthorizationToken")),
    ("runner", Asked("ecr:BatchGetImage", f"{IMAGES}/team/train")),
    ("administrator", Asked("s3:PutObject", f"{RUN}/ledger/00000000.json", CREATING)),
    ("guard", Asked("ec2:TerminateInstances", INSTANCE, OURS)),
    ("user", Asked("ssm:StartSession", INSTANCE, {"ssm:resourceTag/spotrun:run": "0123456789"})),
    ("user", Asked("ssm:StartSession", f"arn:aws:ssm:{REGION}::document/AWS-StartPortForwardingSession")),
    ("runner", Asked("ec2:DescribeInstances")),
    ("runner", Asked("ec2:DescribeLaunchTemplateVersions")),
    ("runner", Asked("servicequotas:GetServiceQuota")),
    ("runner", Asked("ssm:DescribeParameters")),
    ("runner", Asked("ec2:TerminateInstances", INSTANCE, OURS)),
    *(("runner", Asked("ec2:RunInstances", f"{INTERFACE}/*", each)) for each in ({}, {"ec2:NetworkInterfaceID": "*"})),
    ("runner", Asked("ec2:GetConsoleOutput", INSTANCE, OURS)),
    ("runner", Asked("iam:ListRoles")),
    ("runner", Asked("iam:CreateRole", OF_RUN, BOUND)),
    ("runner", Asked("iam:TagRole", OF_RUN, TAGGED)),
    ("runner", Asked("iam:TagInstanceProfile", PROFILE_OF_RUN, TAGGED)),
    ("runner", Asked("iam:AttachRolePolicy", OF_RUN, BOUND | GIVEN)),
    ("runner", Asked("iam:DetachRolePolicy", OF_RUN, BOUND | GIVEN)),
    *(("runner", Asked(f"iam:{verb}Role", OF_RUN)) for verb in ("Get", "Delete")),
    ("runner", Asked("iam:SimulatePrincipalPolicy", OF_RUN)),
    *(
        ("runner", Asked(f"iam:{verb}InstanceProfile", PROFILE_OF_RUN))
        for verb in ("Create", "Get", "AddRoleTo", "RemoveRoleFrom", "Delete")
    ),
    ("runner", Asked("iam:PassRole", OF_RUN, TO_EC2)),
    ("runner", Asked("iam:PassRole", f"{ROLE}/spotrun-guard", TO_SCHEDULER)),
    *(
        ("runner", Asked(f"scheduler:{verb}Schedule", f"{SCHEDULE}/spotrun/i-0123456789abcdef0"))
        for verb in ("Create", "Delete")
    ),
    (
        "runner",
        Asked(
            "iam:CreateServiceLinkedRole",
            f"{ROLE}/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot",
            {"iam:AWSServiceName": "spot.amazonaws.com"},
        ),
    ),
    ("runner", Asked("ssm:GetParameter", f"arn:aws:ssm:{REGION}::parameter/aws/service/deeplearning/ami/latest")),
    ("runner", Asked("ssm:GetParameter", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/spotrun/image")),
    ("runner", Asked("s3:PutObject", f"{RUN}/ledger/00000000.json", CREATING)),
    ("runner", Asked("s3:PutObject", f"{RUN}/{KEY}", TLS)),
    ("runner", Asked("s3:DeleteObject", f"{BUCKET}/runs/market/aws/us-east-1/x", TLS)),
    ("runner", Asked("s3:GetObject", f"{RUN}/ledger/00000000.json", TLS)),
    ("runner", Asked("s3:AbortMultipartUpload", f"{RUN}/environments/0", TLS)),
    *(
        (who, Asked(f"s3:{verb}Object", KEY_OF_RUN, TLS))
        for who in ("runner", "function of a night")
        for verb in ("Get", "Put", "Delete")
    ),
    ("runner", Asked("s3:GetObject", KEY_OF_RUN, TLS | {IS: ROLE_OF_ADA})),
    ("administrator", Asked("s3:GetObject", f"{RUN}/ledger/00000000.json", TLS)),
    *(
        ("runner", Asked(f"s3:{action}", BUCKET, TLS))
        for action in ("ListBucket", "GetBucketPolicy", "GetBucketVersioning", "GetLifecycleConfiguration")
    ),
]

DENIED = [
    *(
        ("node", Asked(f"s3:{verb}Object", f"{RUN}/{key}", TLS))
        for verb in ("Put", "Delete")
        for key in (KEY, RUNNER_KEY, f"{NOTIFIED}/0.json")
    ),
    *(
        ("node", Asked(f"s3:{verb}Object", f"{folder}/hints/agent-1.json", TLS))
        for verb in ("Get", "Put", "Delete")
        for folder in (ANOTHER, f"{ANOTHER}/0123456789", f"{ANOTHER}-0123456789", f"{RUN}0", f"{BUCKET}/runs")
    ),
    ("node", Asked("s3:PutObject", f"{ANOTHER}/ledger/resnet50-0123456789/0.json", CREATING)),
    *(("node", Asked(f"s3:{verb}Object", KEY_OF_RUN, TLS)) for verb in ("Get", "Put", "Delete")),
    ("node", Asked("s3:PutObject", f"{BUCKET}/runs/market/aws/us-east-1/x", CREATING)),
    *(
        (who, Asked(action, resource, TLS))
        for who in ("node without tags", "node of a folder elsewhere")
        for action, resource in (
            ("s3:GetObject", f"{RUN}/work/5feceb66.tar.gz"),
            ("s3:PutObject", f"{BUCKET}/elsewhere/resnet50-0123456789/x"),
            ("s3:GetObject", f"{BUCKET}//x"),
        )
    ),
    ("node without tags", Asked("s3:ListBucket", BUCKET, TLS)),
    *(
        (who, Asked(f"ssm:{verb}", f"{SECRETS}/{path}"))
        for verb in ("GetParameter", "GetParameters")
        for who, path in (
            *(("node", path) for path in ("aws", "wandb2", "wandb/deeper", "team", "hf", "team/", "*")),
            *(("node without secrets", path) for path in ("wandb", "", "${aws:PrincipalTag/spotrun:secret-1}")),
            ("node without tags", "wandb"),
        )
    ),
    ("node without tags", Asked("ssm:UpdateInstanceInformation")),
    ("node without secrets", Asked("ecr:GetAuthorizationToken")),
    *(("node without secrets", Asked(action, f"{IMAGES}/{name}")) for action in PULLING for name in ("team/train", "")),
    *(
        ("node", Asked(action, f"{IMAGES}/{name}"))
        for action in PULLING
        for name in ("team", "team/train/more", "team/train2", "*")
    ),
    *(("node", Asked(f"ecr:{verb}", f"{IMAGES}/team/train")) for verb in ("PutImage", "DescribeImages", "ListImages")),
    ("runner", Asked("ecr:GetDownloadUrlForLayer", f"{IMAGES}/team/train")),
    ("runner", Asked("ecr:PutImage", f"{IMAGES}/team/train")),
    *(
        ("node", Asked(f"iam:{action}", OF_RUN, BOUND | GIVEN | TO_EC2 | TAGGED))
        for action in ("CreateRole", "TagRole", "AttachRolePolicy", "PassRole", "GetRole", "PutRolePolicy")
    ),
    ("runner", Asked("iam:CreateRole", OF_RUN)),
    ("runner", Asked("iam:CreateRole", OF_RUN, {"iam:PermissionsBoundary": "arn:aws:iam::aws:policy/ReadOnlyAccess"})),
    ("runner", Asked("iam:CreateRole", f"{ROLE}/administrator", BOUND)),
    ("runner", Asked("iam:CreateRole", f"{ROLE}/admins/spotrun-run-0123456789", BOUND)),
    ("runner", Asked("iam:TagRole", f"{ROLE}/administrator", TAGGED)),
    ("runner", Asked("iam:TagRole", OF_RUN, {"aws:TagKeys": ("spotrun:run", "team")})),
    ("runner", Asked("iam:TagRole", OF_RUN, {"aws:TagKeys": ("spotrun:secret-1", "spotrun:secrets")})),
    ("runner", Asked("iam:TagRole", f"{ROLE}/spotrun-guard", {"aws:TagKeys": ("spotrun:secret-1",)})),
    (
        "runner",
        Asked("iam:AttachRolePolicy", OF_RUN, BOUND | {"iam:PolicyARN": "arn:aws:iam::aws:policy/AmazonS3FullAccess"}),
    ),
    ("runner", Asked("iam:AttachRolePolicy", OF_RUN, GIVEN)),
    ("runner", Asked("iam:AttachRolePolicy", f"{ROLE}/administrator", BOUND | GIVEN)),
    ("runner", Asked("iam:DetachRolePolicy", OF_RUN, BOUND | {"iam:PolicyARN": "arn:aws:iam::aws:policy/AWSDenyAll"})),
    *(
        ("runner", Asked(f"iam:{action}", OF_RUN, BOUND | GIVEN))
        for action in (
            *("PutRolePolicy", "UpdateAssumeRolePolicy", "UpdateRole", "UntagRole"),
            *("PutRolePermissionsBoundary", "DeleteRolePermissionsBoundary"),
        )
    ),
    *(("runner", Asked(f"iam:{verb}PolicyVersion", NODE_POLICY)) for verb in ("Create", "SetDefault")),
    ("runner", Asked("iam:DeletePolicy", NODE_POLICY)),
    ("runner", Asked("iam:DeleteRole", f"{ROLE}/administrator")),
    ("runner", Asked("iam:SimulatePrincipalPolicy", f"{ROLE}/administrator")),
    ("runner", Asked("iam:DeleteRole", f"{ROLE}/spotrun-guard")),
    ("runner", Asked("iam:AddRoleToInstanceProfile", f"{PROFILE}/administrator")),
    ("runner", Asked("iam:PassRole", OF_RUN, {"iam:PassedToService": "lambda.amazonaws.com"})),
    ("runner", Asked("iam:PassRole", OF_RUN)),
    ("node", Asked("s3:PutObject", f"{BUCKET}/environments/5feceb66.json", CREATING)),
    ("node", Asked("s3:PutObject", f"{RUN}/ledger/00000001.json", TLS)),
    ("node", Asked("s3:DeleteObject", f"{RUN}/ledger/00000001.json", TLS)),
    ("node", Asked("s3:DeleteObjectVersion", f"{RUN}/checkpoints/1/0/part-0", TLS)),
    ("node", Asked("s3:GetObject", f"{BUCKET}/elsewhere/x", TLS)),
    ("node", Asked("s3:GetObject", "arn:aws:s3:::another/runs/x", TLS)),
    ("node", Asked("s3:ListBucket", "arn:aws:s3:::another", TLS)),
    ("node", Asked("s3:GetObject", f"{RUN}/work/5feceb66.tar.gz", {"aws:SecureTransport": "false"})),
    ("node", Asked("s3:PutBucketPolicy", BUCKET, TLS)),
    ("node", Asked("ssm:GetParameter", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/database/password")),
    ("node", Asked("ssm:GetParameter", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/wandb")),
    ("node", Asked("ssm:GetParameters", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/spotrunner/wandb")),
    ("node", Asked("ssm:GetParametersByPath", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/spotrun/")),
    ("node", Asked("ssm:PutParameter", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/spotrun/wandb")),
    ("node", Asked("ssm:DescribeParameters")),
    ("node", Asked("ec2:TerminateInstances", INSTANCE, OURS)),
    ("node", Asked("ec2:RunInstances", INSTANCE, OURS)),
    ("guard", Asked("ec2:TerminateInstances", INSTANCE)),
    ("user", Asked("ssm:StartSession", INSTANCE)),
    ("user", Asked("ssm:StartSession", f"arn:aws:ssm:{REGION}::document/AWS-StartPortForwardingSessionToRemoteHost")),
    ("user", Asked("ssm:StartSession", f"arn:aws:ssm:{REGION}:{ACCOUNT}:document/mine")),
    ("runner", Asked("ec2:TerminateInstances", INSTANCE)),
    ("runner", Asked("ec2:TerminateInstances", INSTANCE, {"aws:ResourceTag/Name": "spotrun:run"})),
    ("runner", Asked("ec2:StopInstances", INSTANCE, OURS)),
    *(
        ("runner", Asked(f"ec2:{verb}", TEMPLATE, {"aws:ResourceTag/spotrun:group": "node"}))
        for verb in ("CreateLaunchTemplate", "CreateLaunchTemplateVersion", "ModifyLaunchTemplate", "CreateTags")
    ),
    ("node", Asked("ec2:RunInstances", TEMPLATE, {"aws:ResourceTag/spotrun:group": "node"})),
    ("runner", Asked("ec2:RunInstances", f"{INTERFACE}/eni-1", {"ec2:NetworkInterfaceID": "eni-1"})),
    ("runner", Asked("ec2:ModifyInstanceAttribute", INSTANCE, OURS)),
    ("runner", Asked("ec2:CreateTags", INSTANCE, {"aws:RequestTag/spotrun:run": "1", "aws:TagKeys": ("spotrun:run",)})),
    (
        "runner",
        Asked("ec2:CreateTags", INSTANCE, {"ec2:CreateAction": "RunInstances", "aws:TagKeys": ("spotrun:run", "team")}),
    ),
    ("runner", Asked("iam:PassRole", f"{ROLE}/spotrun-guard", TO_EC2)),
    ("runner", Asked("iam:PassRole", f"{ROLE}/administrator", TO_EC2)),
    ("runner", Asked("iam:PassRole", f"{ROLE}/administrator", TO_SCHEDULER)),
    ("runner", Asked("iam:CreateServiceLinkedRole", f"{ROLE}/aws-service-role/spot.amazonaws.com/x")),
    ("runner", Asked("scheduler:CreateSchedule", f"{SCHEDULE}/default/x")),
    ("runner", Asked("scheduler:GetSchedule", f"{SCHEDULE}/spotrun/x")),
    ("runner", Asked("ssm:GetParameter", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/spotrun/wandb")),
    ("runner", Asked("ssm:GetParameters", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/spotrun/wandb")),
    *(
        ("runner", Asked("ssm:GetParameter", f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/spotrun/{name}"))
        for name in ("image-host-password", "images", "image/key")
    ),
    ("runner", Asked("s3:PutObject", f"{RUN}/ledger/00000000.json", TLS)),
    ("runner", Asked("s3:DeleteObject", f"{RUN}/ledger/00000000.json", TLS)),
    ("runner", Asked("s3:DeleteObjectVersion", f"{RUN}/ledger/00000000.json", TLS)),
    ("runner", Asked("s3:GetObject", f"{BUCKET}/elsewhere/x", TLS)),
    ("runner", Asked("s3:ListBucket", "arn:aws:s3:::another", TLS)),
    ("runner", Asked("s3:DeleteBucket", BUCKET, TLS)),
    ("node elsewhere", Asked("s3:PutObject", f"{RUN}/ledger/00000000.json", TLS)),
    ("runner elsewhere", Asked("s3:PutObject", f"{RUN}/ledger/00000000.json", TLS)),
    *(
        (who, Asked(f"s3:{verb}", key, TLS))
        for who in ("administrator", "runner that is not named")
        for verb in ("GetObject", "GetObjectVersion", "PutObject", "DeleteObject", "DeleteObjectVersion")
        for key in (KEY_OF_RUN, f"{BUCKET}/runs/team/keys/0123456789-{'ab' * 32}")
    ),
    ("administrator", Asked("s3:GetObject", KEY_OF_RUN, TLS | {IS: f"{ROLE}/ada"})),
    ("administrator", Asked("s3:GetObject", KEY_OF_RUN, TLS | {IS: f"{ADA}2"})),
    ("administrator", Asked("s3:GetObject", KEY_OF_RUN, TLS | {IS: f"{ROLE}/my-spotrun-night-x"})),
    ("runner", Asked("s3:GetBucketPolicy", "arn:aws:s3:::another", TLS)),
    ("runner", Asked("s3:PutBucketPolicy", BUCKET, TLS)),
    ("administrator", Asked("s3:PutObject", f"{RUN}/ledger/00000000.json", TLS)),
    ("administrator", Asked("s3:GetObject", f"{RUN}/ledger/00000000.json", {"aws:SecureTransport": "false"})),
]


def decided(who: str, asked: Asked) -> Decision:
    arn = {IS: ARN_OF.get(who, f"arn:aws:iam::{ACCOUNT}:user/somebody")}
    by_whom = replace(asked, context={**arn, **asked.context, **TAGS_OF.get(who, {})})
    return decide([ANYTHING if name == "anything" else DOCUMENTS[name] for name in ATTACHED[who]], by_whom)


def case(value: Any) -> str:
    if not isinstance(value, Asked):
        return str(value)
    return f"{value.action} {value.resource.split(':', 5)[-1]} {sorted(value.context)}"


@pytest.mark.parametrize(("who", "asked"), ALLOWED, ids=case)
def test_needed_actions_are_allowed(who: str, asked: Asked) -> None:
    assert decided(who, asked).allowed


@pytest.mark.parametrize(("who", "asked"), DENIED, ids=case)
def test_other_actions_are_denied(who: str, asked: Asked) -> None:
    assert not decided(who, asked).allowed


NO_NETWORK = {"SubnetId": None, "SecurityGroupIds": None}
"""An interface that exists brings its own."""


def by_template(template_id: str) -> dict[str, Any]:
    return {"LaunchTemplate": {"LaunchTemplateId": template_id, "Version": "3"}}


@pytest.mark.parametrize(
    "changes", [{}, {"ImageId": "ami-2"}, {"InstanceMarketOptions": None}, by_template("lt-node")], ids=str
)
def test_a_launch_as_the_driver_asks_for_it_is_allowed(changes: dict[str, Any]) -> None:
    assert refused_for(launch(changes)) == set()


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"TagSpecifications": None}, {"instance/*", "volume/*", "spot-instances-request/*"}),
        ({"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "team", "Value": "x"}]}]}, None),
        ({"MetadataOptions": None}, {"instance/*"}),
        ({"MetadataOptions": {"HttpTokens": "optional", "HttpPutResponseHopLimit": 1}}, {"instance/*"}),
        ({"MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2}}, {"instance/*"}),
        ({"IamInstanceProfile": None}, {"instance/*"}),
        ({"IamInstanceProfile": {"Name": "administrator"}}, {"instance/*", "role/administrator"}),
        ({"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8}}]}, {"volume/*"}),
        ({"SecurityGroupIds": ["sg-database"]}, {"security-group/sg-database"}),
        ({"SecurityGroupIds": ["sg-node", "sg-database"]}, {"security-group/sg-database"}),
        ({"KeyName": "mine"}, {"key-pair/mine"}),
        (by_template("lt-somebodys"), {"launch-template/lt-somebodys"}),
        (
            {"NetworkInterfaces": [{"DeviceIndex": 0, "NetworkInterfaceId": "eni-database"}]} | NO_NETWORK,
            {"network-interface/eni-database"},
        ),
    ],
    ids=lambda value: ", ".join(sorted(value)) if value else "any",
)
def test_a_launch_in_another_shape_is_not_allowed(changes: dict[str, Any], refused: set[str] | None) -> None:
    found = refused_for(launch(changes))
    assert found if refused is None else found == refused


def test_image_of_another_owner_is_launched_only_if_the_owner_is_named() -> None:
    asked = Asked("ec2:RunInstances", f"arn:aws:ec2:{REGION}::image/ami-1", {"ec2:Owner": "210987654321"})
    assert not decided("runner", asked).allowed
    theirs = Template("account", ImageOwners="210987654321").documents()["spotrun-runner"]
    assert decide([theirs], asked).allowed


def test_where_no_runner_is_named_each_reader_of_the_bucket_reads_keys() -> None:
    bucket = Template("account").documents()["bucket"]
    assert decide([ANYTHING, bucket], Asked("s3:GetObject", KEY_OF_RUN, TLS)).allowed
    assert [each["Sid"] for each in bucket["Statement"]] == ["TlsOnly", "LedgerEntriesAreCreatedNeverOverwritten"]


def test_only_schedules_of_our_group_may_be_the_guard() -> None:
    (guard,) = DOCUMENTS["spotrun-guard/trust"]["Statement"]
    assert guard["Principal"] == {"Service": "scheduler.amazonaws.com"}
    group = f"arn:aws:scheduler:{REGION}:{ACCOUNT}:schedule-group"
    ours = {"aws:SourceAccount": ACCOUNT, "aws:SourceArn": f"{group}/spotrun"}
    assert conditions_hold(guard["Condition"], ours)
    assert not conditions_hold(guard["Condition"], ours | {"aws:SourceArn": f"{group}/default"})
    assert not conditions_hold(guard["Condition"], ours | {"aws:SourceAccount": "210987654321"})
    assert not conditions_hold(guard["Condition"], {})


def test_every_statement_that_we_ship_decides_something_here_or_is_named() -> None:
    shipped = {each["Sid"] for name in DOCUMENTS if "trust" not in name for each in DOCUMENTS[name]["Statement"]}
    launched = asked_by(launch(by_template("lt-node")), KNOWN)
    cases = [*ALLOWED, *DENIED, *(("runner", asked) for asked in launched)]
    assert shipped - {sid for who, asked in cases for sid in decided(who, asked).by} == NOT_EVALUATED


# -- the secrets of a job --------------------------------------------------------------------------------------------

NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=2).map("/".join)
JOB = st.lists(NAMES, max_size=SECRETS_MAX, unique=True)


@given(JOB, NAMES, st.sampled_from(["ssm:GetParameter", "ssm:GetParameters"]))
def test_the_role_of_a_run_reads_what_its_job_names_and_nothing_else(job: list[str], path: str, action: str) -> None:
    tags = secret_tags(Reference(PARAMETER, f"/spotrun/{each}") for each in job)
    who = OF_NODE | {f"aws:PrincipalTag/{key}": text for key, text in tags.items()}
    asked = Asked(action, f"{SECRETS}/{path}", who)
    assert decide([DOCUMENTS["spotrun-node"]], asked).allowed is (path in job)


def test_the_policy_has_a_line_for_each_secret_that_a_job_may_name() -> None:
    job = [f"s{number}" for number in range(SECRETS_MAX)]
    tags = secret_tags(Reference(PARAMETER, f"/spotrun/{each}") for each in [*job, *job])
    who = {f"aws:PrincipalTag/{key}": text for key, text in tags.items()}
    for each in job:
        assert decide([DOCUMENTS["spotrun-node"]], Asked("ssm:GetParameters", f"{SECRETS}/{each}", who)).allowed
    assert secret_tags([Reference(PARAMETER, "/database/password"), Reference(ENVIRONMENT, "HOME")]) == {}


# -- launches --------------------------------------------------------------------------------------------------------

KNOWN = Known(tags={each: {"spotrun:group": "node"} for each in ("sg-node", "lt-node")})


def launch(changes: Mapping[str, Any]) -> Call:
    """The driver's own spot launch with other parameters; those that are None are left out."""
    offering = Offering(
        cloud="aws",
        region=REGION,
        zone=f"{REGION}a",
        instance_type="g5.xlarge",
        capacity_type=CapacityType.SPOT,
        price_usd_per_hour=Decimal("0.4"),
        image="ami-1",
        subnet="subnet-1",
    )
    request = requested(offering, 7, run_uri="s3://b/runs/r")
    image = Ami(image_id="ami-1", root_device="/dev/sda1", volume_gib=8)
    parameters = run_instances(request, AwsConfig(regions=(REGION,)), image, "sg-node") | dict(changes)
    given = {name: value for name, value in parameters.items() if value is not None}
    operation = botocore.session.get_session().get_service_model("ec2").operation_model("RunInstances")
    return Call("ec2", "RunInstances", create_serializer("ec2").serialize_to_request(given, operation)["body"])


def refused_for(call: Call) -> set[str]:
    return {asked.resource.split(":", 5)[-1] for asked in asked_by(call, KNOWN) if not decided("runner", asked).allowed}


# -- the evaluator itself --------------------------------------------------------------------------------------------


def statement(**changes: Any) -> list[dict[str, Any]]:
    return [{"Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*", **changes}]}]


@pytest.mark.parametrize(
    "changes",
    [
        {"NotAction": "s3:*"},
        {"NotResource": "*"},
        {"Effect": "Maybe"},
        {"Principal": {"AWS": "arn:aws:iam::1:root"}},
        {"Resource": "arn:aws:s3:::b/${aws:username}"},
        {"Resource": "arn:aws:s3:::b/${aws:PrincipalTag/a, 'x'}"},
        {"Condition": {"DateGreaterThan": {"aws:CurrentTime": "2026-01-01"}}},
        {"Condition": {"StringEqualsIfExists": {"a": "b"}}},
        {"Condition": {"ForAnyValue:StringLike": {"a": "b"}}},
    ],
    ids=str,
)
def test_evaluator_refuses_unknown_policy_elements(changes: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError):
        decide(statement(**changes), Asked("s3:GetObject", "arn:aws:s3:::b/k", {"a": "b"}))


@pytest.mark.parametrize(
    ("conditions", "context", "holds"),
    [
        ({"StringEquals": {"a": ["x", "y"]}}, {"A": "y"}, True),
        ({"StringEquals": {"a": "x"}}, {}, False),
        ({"StringEquals": {"a": "x", "b": "y"}}, {"a": "x"}, False),
        ({"StringLike": {"a": "x*"}}, {"a": "xyz"}, True),
        ({"Null": {"a": "true"}}, {}, True),
        ({"Null": {"a": "false"}}, {}, False),
        ({"Bool": {"a": "true"}}, {"a": "True"}, True),
        ({"NumericEquals": {"a": "1"}}, {"a": "1.0"}, True),
        ({"ArnLike": {"a": "arn:aws:s3:*:1:x"}}, {"a": "arn:aws:s3:eu:1:x"}, True),
        ({"ArnLike": {"a": "arn:aws:s3:*:x"}}, {"a": "arn:aws:s3:eu:1:x"}, False),
        ({"ArnNotLike": {"a": ["arn:aws:iam::1:user/x", "arn:aws:iam::1:y"]}}, {"a": "arn:aws:iam::1:y"}, False),
        ({"ArnNotLike": {"a": ["arn:aws:iam::1:user/x", "arn:aws:iam::1:y"]}}, {"a": "arn:aws:iam::1:z"}, True),
        ({"StringNotLike": {"a": "x*"}}, {"a": "xyz"}, False),
        ({"StringNotLike": {"a": "x*"}}, {}, True),
        ({"ForAllValues:StringLike": {"a": ["x*", "y"]}}, {"a": ("x1", "y")}, True),
        ({"ForAllValues:StringLike": {"a": "x*"}}, {"a": ("x1", "y")}, False),
        ({"ForAllValues:StringLike": {"a": "x*"}}, {}, True),
    ],
    ids=str,
)
def test_conditions_hold_as_iam_says(conditions: dict[str, Any], context: dict[str, Any], holds: bool) -> None:
    assert conditions_hold(conditions, context) is holds


@pytest.mark.parametrize(
    ("tags", "key", "allowed"),
    [
        ({"aws:PrincipalTag/a": "x"}, "runs/x/k", True),
        ({"AWS:principaltag/A": "x"}, "runs/x/k", True),
        ({"aws:PrincipalTag/a": "x/y"}, "runs/x/y/k", True),
        ({"aws:PrincipalTag/a": "x"}, "runs/y/k", False),
        ({"aws:PrincipalTag/a": ""}, "runs/x/k", False),
        ({"aws:PrincipalTag/b": "x"}, "runs/x/k", False),
        ({}, "runs//k", False),
        ({}, "runs/${aws:PrincipalTag/a}/k", False),
    ],
    ids=str,
)
def test_a_tag_of_who_asks_stands_in_a_resource(tags: dict[str, str], key: str, allowed: bool) -> None:
    policy = statement(Resource="arn:aws:s3:::b/runs/${aws:PrincipalTag/a}/*")
    assert decide(policy, Asked("s3:GetObject", f"arn:aws:s3:::b/{key}", tags)).allowed is allowed


def test_a_denial_wins_whatever_allows() -> None:
    both = [*statement(), *statement(Sid="no", Effect="Deny", Action="s3:Get*")]
    assert decide(both, Asked("s3:GetObject", "arn:aws:s3:::b/k")) == Decision(allowed=False, by=("no",))
    assert not decide([], Asked("s3:GetObject")).allowed
