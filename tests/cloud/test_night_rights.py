"""What the function of a night may do, who may read its keys, and what an account says that allows no night."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

import pytest

from spotrun.clouds.archive import glibc_of
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.night_alarm import INSTANCES_MAX, pattern
from spotrun.clouds.aws.nights import AwsNights, expression, expression_again
from spotrun.clouds.night_archives import NightArchives
from spotrun.clouds.nights import Function
from spotrun.errors import AccessDenied, CloudError
from spotrun.folder.night import Night, pin_for
from spotrun.folder.night_record import NightRecord
from spotrun.store import s3
from tests.support.aws_templates import ACCOUNT, REGION, Template, path_of
from tests.support.iam import Asked, decide, listed
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.night_world import Bucket
from tests.support.plain_aws import refusal

ACCOUNT_DOCUMENTS = Template("account").documents()
OWN = Template("night", Night="resnet50").documents()
FUNCTION = [ACCOUNT_DOCUMENTS["spotrun-runner"], OWN["spotrun-night-resnet50/be-called"]]
RUNS = f"arn:aws:s3:::spotrun-{ACCOUNT}-{REGION}/runs"
NODE = {"aws:PrincipalTag/spotrun:run": "0123456789", "aws:PrincipalTag/spotrun:folder": f"{RUNS[13:]}/r-0123456789"}


def night(**changes: Any) -> Night:
    facts: dict[str, Any] = {
        "name": "resnet50",
        "spec": {},
        "workdir_sha256": "",
        "at": "22:00",
        "zone": "Europe/Berlin",
        "days": ("mon", "fri"),
        "winter_offset_s": 3600,
        "cloud": "aws",
        "region": REGION,
        "installed_at": datetime(2026, 11, 27, tzinfo=UTC),
        "spotrun": "0",
    }
    return Night(**{**facts, **changes})


# -- rights ----------------------------------------------------------------------------------------------------------


def test_the_function_has_a_runners_rights_and_may_switch_what_calls_it_and_no_more() -> None:
    role = Template("night", Night="resnet50").properties("Role")
    assert role["ManagedPolicyArns"] == [f"arn:aws:iam::{ACCOUNT}:policy/spotrun-runner"]
    actions = {
        action for each in OWN["spotrun-night-resnet50/be-called"]["Statement"] for action in listed(each["Action"])
    }
    assert actions == {
        *("scheduler:GetSchedule", "scheduler:UpdateSchedule", "iam:PassRole", "events:PutRule"),
        *("logs:CreateLogStream", "logs:PutLogEvents"),
    }
    schedule = f"arn:aws:scheduler:{REGION}:{ACCOUNT}:schedule"
    assert decide(FUNCTION, Asked("scheduler:UpdateSchedule", f"{schedule}/spotrun-night-resnet50/tick")).allowed
    for other in ("spotrun-night-resnet50/begin", "spotrun-night-other/tick", "spotrun/0123456789-1"):
        assert not decide(FUNCTION, Asked("scheduler:UpdateSchedule", f"{schedule}/{other}")).allowed
    clock, guard = (
        f"arn:aws:iam::{ACCOUNT}:role/{name}" for name in ("spotrun-clock-resnet50", "spotrun-night-resnet50")
    )
    to_scheduler = {"iam:PassedToService": "scheduler.amazonaws.com"}
    assert decide(FUNCTION, Asked("iam:PassRole", clock, to_scheduler)).allowed
    assert not decide(FUNCTION, Asked("iam:PassRole", guard, to_scheduler)).allowed


def test_the_function_reads_the_addresses_that_its_job_names_and_no_other() -> None:
    place = f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/spotrun"
    told = Template("night", Night="resnet50", Webhooks=f"{place}/SLACK,{place}/team/OTHER").documents()
    policies = [*FUNCTION, told["read-webhooks"]]
    for name, may in (("SLACK", True), ("team/OTHER", True), ("SLACK2", False), ("HF_TOKEN", False)):
        assert decide(policies, Asked("ssm:GetParameters", f"{place}/{name}")).allowed is may
        assert not decide(policies, Asked("ssm:GetParameter", f"{place}/{name}")).allowed
    assert "read-webhooks" not in OWN
    assert not decide(FUNCTION, Asked("ssm:GetParameters", f"{place}/SLACK")).allowed


@pytest.mark.parametrize("key", ["keys/0123456789", "nights/resnet50/night.json", "nights/function-0.zip"])
def test_keys_and_nights_are_read_by_the_function_and_by_no_instance(key: str) -> None:
    assert decide(FUNCTION, Asked("s3:GetObject", f"{RUNS}/{key}")).allowed
    for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
        assert not decide([ACCOUNT_DOCUMENTS["spotrun-node"]], Asked(action, f"{RUNS}/{key}", NODE)).allowed


def test_the_schedules_may_call_this_function_alone_and_only_ours_are_the_role() -> None:
    (statement,) = OWN["spotrun-clock-resnet50/call-the-function"]["Statement"]
    assert statement["Resource"] == f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:spotrun-night-resnet50"
    (trust,) = OWN["spotrun-clock-resnet50/trust"]["Statement"]
    assert trust["Condition"]["ArnLike"]["aws:SourceArn"].endswith(":schedule-group/spotrun-night-resnet50")


def test_the_template_of_infra_is_the_one_that_is_installed() -> None:
    installed = files("spotrun.clouds.aws").joinpath("night.yaml").read_text()
    assert installed == path_of("night").read_text()


# -- schedules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "first", "again"),
    [
        ("22:00", "cron(0 22 ? * MON,FRI *)", "cron(0,15,30,45 23 ? * MON,FRI *)"),
        ("23:50", "cron(50 23 ? * MON,FRI *)", "cron(5,20,35,50 0 ? * TUE,SAT *)"),
        ("00:07", "cron(7 0 ? * MON,FRI *)", "cron(7,22,37,52 1 ? * MON,FRI *)"),
    ],
)
def test_a_night_is_called_at_its_time_and_again_each_quarter_of_the_next_hour(at: str, first: str, again: str) -> None:
    assert expression(night(at=at)) == first
    assert expression_again(night(at=at)) == again


@pytest.mark.parametrize("at", ["00:00", "02:30", "12:00", "22:00", "23:59"])
def test_all_calls_for_a_night_are_of_one_evening(at: str) -> None:
    hours, minutes = map(int, at.split(":"))
    for summer_s in (0, 3600):
        called_at = datetime(2026, 11, 27, hours, minutes, tzinfo=UTC).timestamp() - 3600 - summer_s
        for late_s in (0, 3600, 7200):
            moment = datetime.fromtimestamp(called_at + late_s, UTC)
            assert night(at=at).due(moment) == "2026-11-27"


def test_the_pattern_of_the_rule_fits_into_what_eventbridge_takes() -> None:
    wanted = pattern([f"i-{number:017x}" for number in range(200)])
    assert len(wanted) < 2048
    assert len(json.loads(wanted)["detail"]["instance-id"]) == INSTANCES_MAX
    assert json.loads(pattern(()))["detail"]["instance-id"] == ["i-00000000000000000"]


# -- refusals --------------------------------------------------------------------------------------------------------

Stacks = Callable[..., SimpleNamespace]
DENIED = "User: arn:aws:iam::1:user/me is not authorized to perform: {} on resource: x"


class Code:
    """The code of one function, as Lambda tells of it. `becomes` is what Lambda makes of what it receives."""

    def __init__(self, becomes: Callable[[bytes], bytes] = lambda data: data) -> None:
        self.data = b"# not uploaded yet"
        self._becomes, self._looks = becomes, 0

    def updated(self, FunctionName: str, ZipFile: bytes) -> dict[str, Any]:
        self.data, self._looks = self._becomes(ZipFile), 2
        return {"FunctionName": FunctionName}

    def described(self, FunctionName: str) -> dict[str, Any]:
        self._looks -= 1
        state = "InProgress" if self._looks >= 0 else "Successful"
        digest = base64.b64encode(hashlib.sha256(self.data).digest()).decode()
        return {"Configuration": {"CodeSha256": digest, "LastUpdateStatus": state}}


def schedule(Name: str, GroupName: str) -> dict[str, Any]:
    expressions = {"begin": "cron(0 22 ? * FRI *)", "begin-again": "cron(0 23 ? * FRI *)", "tick": "rate(1 minute)"}
    target = {"Arn": f"arn:aws:lambda:{REGION}:123456789012:function:{GroupName}"}
    return {"State": "ENABLED", "ScheduleExpression": expressions[Name], "Target": target}


def nights_with(monkeypatch: pytest.MonkeyPatch, **operations: Any) -> AwsNights:
    def absent(**_: Any) -> None:
        raise refusal("ValidationError", words="Stack with id x does not exist")

    parts = {**dict.fromkeys(("describe_rule", "get_role"), lambda **_: {}), "get_schedule": schedule}
    code = Code()
    functions = {"get_function": code.described, "update_function_code": code.updated}
    client = SimpleNamespace(**{"describe_stacks": absent, **parts, **functions, **operations})
    monkeypatch.setattr(Region, "_client", lambda *_: client)
    store = MemoryStore()
    monkeypatch.setattr(s3, "S3Store", lambda _: store)
    return AwsNights(Region(REGION, ManualClock()), ManualClock())


def install(nights: AwsNights, **changes: Any) -> None:
    pin = pin_for(night(**changes), None)
    nights.install(pin, "s3://bucket/runs", Function(b"zip", "python3.13", "x86_64"), lambda _: None)


def test_refused_stack_names_the_missing_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_stack(**_: Any) -> None:
        raise refusal("AccessDenied", 403, DENIED.format("cloudformation:CreateStack"))

    with pytest.raises(AccessDenied) as refused:
        install(nights_with(monkeypatch, create_stack=create_stack))
    assert "ask for cloudformation:CreateStack" in str(refused.value.hint)


class Failing:
    """A stack that is rolled back, for this reason."""

    def __init__(self, reason: str) -> None:
        self._reason, self._made = reason, False

    def create_stack(self, **asked: Any) -> dict[str, str]:
        assert asked["OnFailure"] == "DELETE"
        self._made = True
        return {"StackId": "arn:stack"}

    def describe_stacks(self, StackName: str) -> dict[str, Any]:
        if not self._made:
            raise refusal("ValidationError", words=f"Stack with id {StackName} does not exist")
        return {"Stacks": [{"StackId": "arn:stack", "StackStatus": "DELETE_COMPLETE"}]}

    def get_paginator(self, _: str) -> SimpleNamespace:
        later, first = datetime(2026, 11, 27, 1, tzinfo=UTC), datetime(2026, 11, 27, tzinfo=UTC)
        told = {"LogicalResourceId": "Role", "ResourceType": "AWS::IAM::Role", "ResourceStatus": "CREATE_FAILED"}
        events = [
            {**told, "LogicalResourceId": "Function", "Timestamp": later, "ResourceStatusReason": "cancelled"},
            {**told, "Timestamp": first, "ResourceStatusReason": self._reason},
        ]
        return SimpleNamespace(paginate=lambda **_: [{"StackEvents": events}])


@pytest.mark.parametrize(
    ("reason", "kind", "hint"),
    [
        (DENIED.format("iam:CreateRole"), AccessDenied, "ask for iam:CreateRole"),
        ("Policy spotrun-runner does not exist", CloudError, "infra/aws/account.yaml"),
    ],
)
def test_failed_stack_is_reported_with_its_first_reason(
    monkeypatch: pytest.MonkeyPatch, reason: str, kind: type[CloudError], hint: str
) -> None:
    failing = Failing(reason)
    nights = nights_with(
        monkeypatch,
        create_stack=failing.create_stack,
        describe_stacks=failing.describe_stacks,
        get_paginator=failing.get_paginator,
    )
    with pytest.raises(kind) as refused:
        install(nights)
    assert reason in refused.value.message
    assert hint in str(refused.value.hint)


def test_a_stack_that_is_as_it_was_needs_no_update(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def update_stack(**each: Any) -> None:
        asked.append(each)
        raise refusal("ValidationError", words="No updates are to be performed.")

    there = {"Stacks": [{"StackId": "arn:stack", "StackStatus": "CREATE_COMPLETE"}]}
    install(nights_with(monkeypatch, describe_stacks=lambda **_: there, update_stack=update_stack))
    assert len(asked) == 1


def test_code_of_another_digest_than_was_uploaded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    code = Code(becomes=lambda data: data + b" and more")
    nights = nights_with(
        monkeypatch,
        describe_stacks=lambda **_: {"Stacks": [{"StackId": "arn:stack", "StackStatus": "UPDATE_COMPLETE"}]},
        update_stack=lambda **_: {"StackId": "arn:stack"},
        get_function=code.described,
        update_function_code=code.updated,
    )
    with pytest.raises(CloudError, match="has other code than was uploaded"):
        install(nights)


def test_failed_function_is_reported_with_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def invoke(**_: Any) -> dict[str, Any]:
        said = rb'{"errorType": "StoreError", "errorMessage": "AccessDenied\n  try: call again"}'
        return {"FunctionError": "Unhandled", "Payload": SimpleNamespace(read=lambda: said)}

    with pytest.raises(CloudError, match=r"failed: StoreError: AccessDenied\n  try: aws logs"):
        nights_with(monkeypatch, invoke=invoke).begin("resnet50", datetime(2026, 11, 27, tzinfo=UTC))


@pytest.mark.parametrize(
    ("tag", "glibc"),
    [("manylinux_2_34_x86_64", (2, 34)), ("manylinux2014_x86_64", (2, 17)), ("linux_x86_64", None), ("any", None)],
)
def test_the_oldest_linux_of_a_wheel_is_read_off_its_tag(tag: str, glibc: tuple[int, int] | None) -> None:
    assert glibc_of(tag) == glibc


# -- what is left of older versions ----------------------------------------------------------------------------------


class Kept:
    """
    A store with two nights, their archives, one that no night has, and one that is young. Nobody may read the stack
    that is `denied`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stacks = {"spotrun-night-a": "runs/nights/function-a.zip", "spotrun-night-b": "runs/nights/function-b.zip"}
        self.denied = ""
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        monkeypatch.setattr(s3, "S3Store", lambda place: Bucket(self.store, place, lambda _: None))
        client = SimpleNamespace(describe_stacks=self._described, delete_stack=self._deleted)
        monkeypatch.setattr(Region, "_client", lambda *_: client)
        self.nights = AwsNights(Region(REGION, self.clock), self.clock)
        for name in ("a", "b"):
            NightRecord("s3://bucket/runs", name).install(night(name=name))
        for name in ("a", "b", "older"):
            self.store.put(f"runs/nights/function-{name}.zip", b"zip")
        self.clock.advance(25 * 3600)
        self.store.put("runs/nights/function-young.zip", b"zip")

    def _described(self, StackName: str) -> dict[str, Any]:
        if StackName == self.denied:
            raise refusal("AccessDenied", 403, DENIED.format("cloudformation:DescribeStacks"))
        if StackName not in self.stacks:
            raise refusal("ValidationError", words=f"Stack with id {StackName} does not exist")
        asked = [{"ParameterKey": "CodeKey", "ParameterValue": self.stacks[StackName]}]
        return {"Stacks": [{"StackId": StackName, "StackStatus": "CREATE_COMPLETE", "Parameters": asked}]}

    def _deleted(self, StackName: str) -> None:
        del self.stacks[StackName]

    @property
    def archives(self) -> set[str]:
        listed = self.store.list("runs/nights/function-")
        return {each.key.removeprefix("runs/nights/function-").removesuffix(".zip") for each in listed}


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    return Kept(monkeypatch)


def test_a_night_that_is_removed_takes_archives_with_it_that_no_other_needs(kept: Kept) -> None:
    kept.nights.remove("b", "s3://bucket/runs", lambda _: None)
    assert kept.archives == {"a", "young"}


def test_last_night_that_is_removed_leaves_no_archive(kept: Kept) -> None:
    for name in ("a", "b"):
        kept.nights.remove(name, "s3://bucket/runs", lambda _: None)
        NightRecord("s3://bucket/runs", name).remove()
    assert kept.archives == set()


def test_archive_stays_where_its_use_is_unknown(kept: Kept) -> None:
    said: list[str] = []
    kept.denied = "spotrun-night-a"
    kept.nights.remove("b", "s3://bucket/runs", said.append)
    assert kept.archives == {"a", "b", "older", "young"}
    assert "archives that no night needs may stay in s3://bucket/runs/nights" in said[0]


def test_archive_is_put_even_if_a_stranger_has_put_one_of_its_name(kept: Kept) -> None:
    archives = NightArchives("s3://bucket/runs", kept.clock)
    _, name = archives.upload(b"an archive")
    kept.store.put(name, b"a stranger's")
    assert archives.upload(b"an archive") == ("bucket", name)
    assert kept.store.get(name) == b"an archive"
