"""A stack of a night in whatever state somebody has left it: cut off, half deleted, or of another store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.night_stack import NightStack
from spotrun.clouds.aws.nights import AwsNights
from spotrun.errors import CloudUnavailable, SpecInvalid
from spotrun.folder.night import Night
from tests.support.aws_templates import REGION
from tests.support.manual_clock import ManualClock
from tests.support.plain_aws import refusal

STORE = "s3://bucket/runs"
TIMES = {"Expression": "cron(0 22 ? * FRI *)", "ExpressionAgain": "cron(0,15,30,45 23 ? * FRI *)", "Zone": "UTC"}
PARAMETERS = {"Store": STORE, **TIMES}
NIGHT = Night(
    name="resnet50",
    spec={},
    workdir_sha256="",
    at="22:00",
    zone="UTC",
    days=("fri",),
    winter_offset_s=0,
    cloud="aws",
    region=REGION,
    installed_at=datetime(2026, 11, 27, tzinfo=UTC),
    spotrun="0",
)


def schedule(expression: str, **facts: str) -> dict[str, Any]:
    target = {"Arn": f"arn:aws:lambda:{REGION}:123456789012:function:spotrun-night-resnet50"}
    return {"State": "ENABLED", "ScheduleExpression": expression, "Target": target, **facts}


class Stacks:
    """CloudFormation with at most one stack, and what is beside it. Each look at a stack brings it one state on."""

    def __init__(self, *states: str, store: str = STORE, gone: tuple[str, ...] = ()) -> None:
        self.states, self.gone = [*states], {*gone}
        self.parameters = {**PARAMETERS, "Store": store}
        self.function: dict[str, Any] = {"CodeSha256": "a digest", "LastUpdateStatus": "Successful"}
        self.concurrency: dict[str, Any] = {}
        times = (("begin", "Expression"), ("begin-again", "ExpressionAgain"))
        self.schedules = {
            "tick": schedule("rate(1 minute)", State="DISABLED"),
            **{name: schedule(TIMES[key], ScheduleExpressionTimezone="UTC") for name, key in times},
        }
        self.done: list[str] = []

    def describe_stacks(self, StackName: str) -> dict[str, Any]:
        if not self.states:
            raise refusal("ValidationError", words=f"Stack with id {StackName} does not exist")
        state = self.states[0] if len(self.states) == 1 else self.states.pop(0)
        known = [{"ParameterKey": key, "ParameterValue": text} for key, text in self.parameters.items()]
        return {"Stacks": [{"StackId": "arn:stack", "StackStatus": state, "Parameters": known}]}

    def create_stack(self, **_: Any) -> dict[str, str]:
        self.done.append("create")
        if self.states and self.states[0] != "DELETE_COMPLETE":
            raise refusal("AlreadyExistsException", words="Stack [x] already exists")
        self.states, self.gone = ["CREATE_IN_PROGRESS", "CREATE_COMPLETE"], set()
        return {"StackId": "arn:stack"}

    def update_stack(self, **_: Any) -> dict[str, str]:
        self.done.append("update")
        self.states = ["UPDATE_IN_PROGRESS", "UPDATE_COMPLETE"]
        return {"StackId": "arn:stack"}

    def delete_stack(self, StackName: str) -> None:
        self.done.append("delete")
        self.states = ["DELETE_IN_PROGRESS", "DELETE_COMPLETE"]

    def get_function(self, FunctionName: str) -> dict[str, Any]:
        return {**self._part("function"), "Configuration": self.function, **self.concurrency}

    def describe_rule(self, Name: str) -> dict[str, Any]:
        return self._part("rule")

    def get_role(self, RoleName: str) -> dict[str, Any]:
        return self._part("role", "NoSuchEntity")

    def get_schedule(self, Name: str, GroupName: str) -> dict[str, Any]:
        return {**self._part(Name), **self.schedules[Name]}

    def _part(self, name: str, code: str = "ResourceNotFoundException") -> dict[str, Any]:
        if name in self.gone:
            raise refusal(code, 404, words=f"{name} is not there")
        return {}


def reach(monkeypatch: pytest.MonkeyPatch, stacks: Stacks) -> AwsNights:
    monkeypatch.setattr(Region, "_client", lambda *_: stacks)
    return AwsNights(Region(REGION, ManualClock()), ManualClock())


def deploy(monkeypatch: pytest.MonkeyPatch, stacks: Stacks) -> list[str]:
    """What was said meanwhile."""
    said: list[str] = []
    reach(monkeypatch, stacks)
    NightStack(Region(REGION, ManualClock()), "resnet50", ManualClock()).deploy(PARAMETERS, said.append)
    return said


@pytest.mark.parametrize(
    ("states", "done"),
    [
        ((), ["create"]),
        (("CREATE_COMPLETE",), ["update"]),
        (("CREATE_IN_PROGRESS", "CREATE_IN_PROGRESS", "CREATE_COMPLETE"), ["update"]),
        (("UPDATE_IN_PROGRESS", "UPDATE_COMPLETE"), ["update"]),
        (("ROLLBACK_COMPLETE",), ["delete", "create"]),
        (("UPDATE_ROLLBACK_FAILED",), ["delete", "create"]),
        (("DELETE_FAILED",), ["delete", "create"]),
    ],
)
def test_a_stack_is_deployed_whatever_became_of_the_last_installation(
    monkeypatch: pytest.MonkeyPatch, states: tuple[str, ...], done: list[str]
) -> None:
    stacks = Stacks(*states)
    deploy(monkeypatch, stacks)
    assert stacks.done == done


def test_a_stack_that_another_installation_has_begun_meanwhile_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Stacks):
        def create_stack(self, **asked: Any) -> dict[str, str]:
            self.states = ["CREATE_IN_PROGRESS", "CREATE_COMPLETE"]
            return super().create_stack(**asked)

    stacks = Other()
    deploy(monkeypatch, stacks)
    assert stacks.done == ["create", "update"]


def test_stack_that_never_settles_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CloudUnavailable, match="is still UPDATE_IN_PROGRESS"):
        deploy(monkeypatch, Stacks("UPDATE_IN_PROGRESS"))


@pytest.mark.parametrize("part", ["function", "rule", "role", "begin", "begin-again", "tick"])
def test_part_deleted_by_hand_is_reported_and_made_again(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    stacks = Stacks("CREATE_COMPLETE", gone=(part,))
    wrong = reach(monkeypatch, stacks).wrong(NIGHT, STORE)
    assert part in wrong
    assert "`spotrun night install` makes it again" in wrong
    (said,) = deploy(monkeypatch, stacks)
    assert part in said
    assert stacks.done == ["delete", "create"]
    assert reach(monkeypatch, stacks).wrong(NIGHT, STORE) == ""


OTHER = "arn:aws:lambda:us-east-1:123456789012:function:other"


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        (lambda it: it.schedules["begin"].update(State="DISABLED"), "the schedule begin is disabled"),
        (lambda it: it.schedules["begin-again"].update(Target={"Arn": OTHER}), f"calls another target, {OTHER}"),
        (lambda it: it.schedules["tick"].update(ScheduleExpression="rate(1 day)"), "tick calls at other times"),
        (lambda it: it.schedules["begin"].update(ScheduleExpressionTimezone="Asia/Tokyo"), "begin calls at other"),
        (lambda it: it.concurrency.update(Concurrency={"ReservedConcurrentExecutions": 0}), "function is throttled"),
    ],
)
def test_part_changed_by_hand_is_reported_and_made_again(
    monkeypatch: pytest.MonkeyPatch, breaks: Callable[[Stacks], None], words: str
) -> None:
    stacks = Stacks("CREATE_COMPLETE")
    assert reach(monkeypatch, stacks).wrong(NIGHT, STORE) == ""
    breaks(stacks)
    wrong = reach(monkeypatch, stacks).wrong(NIGHT, STORE)
    assert words in wrong
    assert "`spotrun night install` makes it again" in wrong
    (said,) = deploy(monkeypatch, stacks)
    assert words in said
    assert stacks.done == ["delete", "create"]


def test_failed_update_of_the_function_is_reported_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    stacks = Stacks("CREATE_COMPLETE")
    stacks.function |= {"LastUpdateStatus": "Failed", "LastUpdateStatusReason": "The role cannot be assumed."}
    wrong = reach(monkeypatch, stacks).wrong(NIGHT, STORE)
    assert "the last update of the function spotrun-night-resnet50 failed: The role cannot be assumed." in wrong
    assert "`spotrun night install` makes it again" in wrong


def test_a_night_of_another_store_is_neither_taken_over_nor_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    stacks = Stacks("CREATE_COMPLETE", store="s3://bucket/other")
    nights = reach(monkeypatch, stacks)
    with pytest.raises(SpecInvalid, match="already has a night resnet50, which uses the store s3://bucket/other"):
        nights.require("resnet50", STORE)
    nights.remove("resnet50", STORE, print)
    assert stacks.done == []
    assert "calls a night of s3://bucket/other" in nights.wrong(NIGHT, STORE)
    nights.require("resnet50", "s3://bucket/other/")
    nights.remove("resnet50", "s3://bucket/other/", print)
    assert stacks.done == ["delete"]


def test_night_scheduled_at_other_times_than_recorded_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    stacks = Stacks("CREATE_COMPLETE")
    stacks.parameters["Zone"] = "Europe/Berlin"
    assert "at other times than it should" in reach(monkeypatch, stacks).wrong(NIGHT, STORE)


def test_function_without_the_installed_code_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation that was cut off before its upload, and another program that changed the function."""
    stacks = Stacks("CREATE_COMPLETE")
    stacks.parameters["Code"] = "a digest"
    assert reach(monkeypatch, stacks).wrong(NIGHT, STORE) == ""
    stacks.function["CodeSha256"] = "another"
    assert "the code of the function spotrun-night-resnet50 is not what" in reach(monkeypatch, stacks).wrong(
        NIGHT, STORE
    )
