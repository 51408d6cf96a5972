"""`spotrun doctor aws` names each right of our policy that is missing, before a run would miss it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from moto import backends
from msgspec.structs import replace

from spotrun.clock import system_clock
from spotrun.clouds.aws import guard
from spotrun.clouds.aws.account_checks import NO_INSTANCE
from spotrun.clouds.aws.doctor import AwsDoctor
from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.identity_trial import DENIED_WITHIN, LOOK_AGAIN_S
from spotrun.doctor.facts import fact_findings
from spotrun.doctor.finding import Finding, Verdict, findings_of
from spotrun.doctor.trial import StoreTrial
from spotrun.secrets.reference import PARAMETER, Reference
from spotrun.spec.model import ResourcesSpec
from spotrun.store.opening import open_store
from spotrun.units import to_the_second
from tests.support.aws_launches import CONFIG, request
from tests.support.aws_templates import Template
from tests.support.ec2_server import ACCOUNT, REGION
from tests.support.guarded_account import RUNNER, TEMPLATE, GuardedAccount, calls
from tests.support.iam import listed
from tests.support.manual_clock import ManualClock

NOT_OF_A_RUN = {
    "ec2:GetConsoleOutput": "an end is told without it",
    "s3:AbortMultipartUpload": "spotrun makes none",
    "ecr:GetAuthorizationToken": "the check of a job's image names it: tests/cloud/test_image_logins.py",
    "ecr:BatchGetImage": "the same",
}
"""Rights that the doctor may be silent on."""
IN_OTHER_WORDS = {
    "s3:PutObject": "cannot create an object",
    "s3:DeleteObject": "cannot delete it",
    "s3:GetBucketVersioning": "versioning",
    "s3:GetLifecycleConfiguration": "whether objects expire",
    "s3:GetBucketPolicy": "who can read the keys of runs",
}
"""What is said of a bucket is said of any store."""
ALLOWED = [
    (str(each["Sid"]), action)
    for each in RUNNER[0]["Statement"]
    if each["Effect"] == "Allow"
    for action in listed(each["Action"])
    if action not in NOT_OF_A_RUN
]
OF_STORE = [each for each in ALLOWED if each[1].startswith("s3:")]
OF_CLOUD = [each for each in ALLOWED if each not in OF_STORE]
BUCKET = TEMPLATE.properties("Bucket")["BucketName"]
TEMPLATE_VERSIONS = "ec2:DescribeLaunchTemplateVersions"


@pytest.fixture
def account(account_of_module: GuardedAccount, monkeypatch: pytest.MonkeyPatch) -> Iterator[GuardedAccount]:
    """One with the runner's policy, and a job that uses all that a job can."""
    account = account_of_module
    account.reach(monkeypatch)
    backends.get_backend("s3").reset()  # type: ignore[arg-type]
    account.furnish()
    account.tells_time = True
    account.quotas = {"L-3819A6DF": 64.0, "L-DB2E81BA": 64.0}
    with account.as_administrator():
        boto3.client("s3").create_bucket(Bucket=BUCKET)
    yield account
    account.denied.clear()


def take_away(account: GuardedAccount, sid: str, action: str) -> None:
    account.policies = [{"Statement": [less(each, sid, action) for each in RUNNER[0]["Statement"]]}]


def less(statement: dict[str, Any], sid: str, action: str) -> dict[str, Any]:
    """IAM allows no list that is empty: `none:None` is no action."""
    if statement["Sid"] != sid:
        return statement
    left = [each for each in listed(statement["Action"]) if each != action]
    return {**statement, "Action": left or ["none:None"]}


def of_cloud(launch_template: str | None = None, clock: ManualClock | None = None) -> list[Finding]:
    config = replace(CONFIG, launch_template=launch_template)
    secrets = {"WORD": Reference(PARAMETER, "/spotrun/WORD")}
    wanted = ResourcesSpec().model_copy(update={"cloud": "aws"})
    clock = clock or patient()  # where IAM might only be slow, the doctor looks again for minutes
    return [*AwsDoctor(calls(), config, wanted, clock, secrets, store_uri=f"s3://{BUCKET}/runs").findings()]


def patient() -> ManualClock:
    """Of somebody for whom waiting takes no time."""
    return ManualClock(system_clock().now())


def of_store() -> list[Finding]:
    store = open_store(f"s3://{BUCKET}/runs")
    return [
        *findings_of("store", StoreTrial(store, system_clock()).findings),
        *findings_of("store", lambda: fact_findings(store, REGION)),
    ]


def naming(action: str, found: list[Finding]) -> list[str]:
    return [
        each.name
        for each in found
        if each.verdict is not Verdict.OK and action in f"{each.name} {each.detail} {each.hint}"
    ]


@pytest.mark.filterwarnings("ignore:Tried to parse AWS")
@pytest.mark.parametrize(("sid", "action"), OF_CLOUD, ids=str)
def test_a_right_that_alone_is_missing_is_named(account: GuardedAccount, sid: str, action: str) -> None:
    if action == TEMPLATE_VERSIONS:
        account.deploy_region()
    if action == "ec2:TerminateInstances":
        cloud = AwsDriver(CONFIG, system_clock())
        cloud.launch(request(cloud))
    take_away(account, sid, action)
    assert naming(action, of_cloud("spotrun-node" if action == TEMPLATE_VERSIONS else None)), f"{action} of {sid}"


@pytest.mark.parametrize("action", ["iam:GetInstanceProfile", "iam:AttachRolePolicy"])
def test_a_right_that_is_missing_for_good_is_not_waited_for_as_long_as_a_new_role(
    account: GuardedAccount, action: str
) -> None:
    clock = patient()
    take_away(account, next(sid for sid, each in OF_CLOUD if each == action), action)
    found = of_cloud(clock=clock)
    assert clock.monotonic() <= DENIED_WITHIN.total_seconds() + LOOK_AGAIN_S
    assert f"{to_the_second(DENIED_WITHIN)} at most" in next(each.detail for each in found if each.name == "role")


@pytest.mark.parametrize(("sid", "action"), OF_STORE, ids=str)
def test_a_right_in_the_bucket_that_alone_is_missing_is_named(account: GuardedAccount, sid: str, action: str) -> None:
    take_away(account, sid, action)
    assert naming(IN_OTHER_WORDS.get(action, action), of_store()), f"{action} of {sid}"


def test_answer_without_a_code_is_reported_by_its_status(account: GuardedAccount) -> None:
    take_away(account, next(sid for sid, each in OF_STORE if each == "s3:ListBucket"), "s3:ListBucket")
    (found,) = [each for each in of_store() if each.name == "region"]
    assert found.detail == "S3 answered 403 to HeadBucket"


def test_where_none_is_missing_none_is_named(account: GuardedAccount) -> None:
    found = [*of_cloud(), *of_store()]
    assert [(each.name, each.detail) for each in found if each.verdict is Verdict.FAILED] == [
        ("secret WORD", "there is no parameter /spotrun/WORD in us-east-1")
    ]
    assert {each.name for each in found if each.verdict is Verdict.UNKNOWN} == {"terminate"}


def test_doctor_tells_whether_the_buckets_policy_keeps_keys_for_runners(account: GuardedAccount) -> None:
    """An attacker who only may read the bucket could sign as the owner of each run."""
    (found,) = [each for each in of_store() if each.name == "keys"]
    assert found.verdict is Verdict.WARNED
    with account.as_administrator():
        policy = json.dumps(TEMPLATE.documents()["bucket"])
        boto3.client("s3").put_bucket_policy(Bucket=BUCKET, Policy=policy)
    (found,) = [each for each in of_store() if each.name == "keys"]
    assert found.verdict is Verdict.OK


def test_runner_whom_the_template_does_not_name_is_refused_with_the_page_to_read(
    account: GuardedAccount, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account, "template", Template("account", Runners=f"arn:aws:iam::{ACCOUNT}:user/another"))
    (found,) = [each for each in of_store() if each.verdict is Verdict.FAILED]
    assert found.detail.startswith("cannot read the keys of runs: S3 answered 403")
    assert "The keys of runs in infra/aws/README.md" in found.hint


def test_the_right_to_end_instances_is_named_although_it_cannot_be_checked(account: GuardedAccount) -> None:
    assert naming("ec2:TerminateInstances", of_cloud()) == ["terminate"]


# -- what is made for nobody -----------------------------------------------------------------------------------------


def test_trial_guard_is_removed(account: GuardedAccount) -> None:
    (found,) = [each for each in of_cloud() if each.name == "guard"]
    assert found.verdict is Verdict.OK
    assert schedules(account) == []


@pytest.fixture
def left(account: GuardedAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    """A doctor has died before it deleted its guard."""
    with monkeypatch.context() as dying:
        dying.setattr(guard, "_delete", lambda *_: None)
        of_cloud()
    assert schedules(account) != []


@pytest.mark.usefixtures("left")
def test_trial_guard_names_no_instance_and_fires_far_ahead(account: GuardedAccount) -> None:
    (name,) = schedules(account)
    with account.as_administrator():
        made = boto3.client("scheduler", region_name=REGION).get_schedule(GroupName="spotrun", Name=name)
    assert NO_INSTANCE in made["Target"]["Input"]
    fires_at = datetime.fromisoformat(made["ScheduleExpression"].removeprefix("at(").removesuffix(")"))
    assert fires_at.replace(tzinfo=UTC) - datetime.now(UTC) > timedelta(days=300)


@pytest.mark.usefixtures("left")
def test_leftover_trial_guard_is_replaced(account: GuardedAccount) -> None:
    (found,) = [each for each in of_cloud() if each.name == "guard"]
    assert found.verdict is Verdict.OK
    assert schedules(account) == []


def schedules(account: GuardedAccount) -> list[str]:
    with account.as_administrator():
        found = boto3.client("scheduler", region_name=REGION).list_schedules(GroupName="spotrun")
    return [each["Name"] for each in found["Schedules"]]


def test_the_role_for_spot_is_made_once(account: GuardedAccount) -> None:
    first, second = ([each.detail for each in of_cloud() if each.name == "spot role"] for _ in range(2))
    assert first == ["is made: nobody has asked for spot in this account before"]
    assert second == ["is there"]
