"""
Nights on AWS: EventBridge Scheduler calls a Lambda function. A CloudFormation stack, night.yaml, holds all of one
night.

https://docs.aws.amazon.com/scheduler/latest/UserGuide/schedule-types.html
https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_CreateStack.html
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from importlib.resources import files
from typing import Any

from spotrun import address
from spotrun.clock import Clock, system_clock
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.control_plane import usd_of_a_night
from spotrun.clouds.aws.error_codes import NotThere
from spotrun.clouds.aws.function_zip import function_of_this_installation
from spotrun.clouds.aws.night_alarm import AwsAlarm, name_of
from spotrun.clouds.nights import Alarm, Function
from spotrun.clouds.patience import Patience
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable, SpecInvalid
from spotrun.folder.night_record import FOLDER, Night
from spotrun.store.opening import open_store
from spotrun.store.retrying import persist
from spotrun.units import shown

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
NAME_MAX = 48
"""A role's name has 64 characters at most, `spotrun-night-` among them."""
MACHINES = ("x86_64",)
AGAIN_EVERY_MIN = 15
POLL_S = 3.0
DEPLOYED_WITHIN = timedelta(minutes=15)
FUNCTION_S = 300.0
"""Its time-out in night.yaml."""
_PATIENT = Patience(connect_s=10.0, read_s=FUNCTION_S + 30.0, tries_for_s=20.0)
_TAG = "spotrun:night"
_RIGHT = re.compile(r"not authorized to perform: ([\w-]+:\w+)")
_RIGHTS = "infra/aws/README.md, under Nights, has what a person needs who installs one"


def expression(night: Night) -> str:
    """When a night is due, for EventBridge Scheduler, in the night's own time zone."""
    hours, minutes = _time_of(night)
    return _cron(str(minutes), hours, night.days)


def expression_again(night: Night) -> str:
    """
    Every quarter of the hour that follows that of the night: the call for a night which could not begin, or whose time
    a clock change left out, so that the schedule did not fire.
    """
    hours, minutes = _time_of(night)
    first = minutes % AGAIN_EVERY_MIN
    days = night.days if hours < 23 else tuple(DAYS[(DAYS.index(day) + 1) % len(DAYS)] for day in night.days)
    return _cron(",".join(str(first + each) for each in range(0, 60, AGAIN_EVERY_MIN)), (hours + 1) % 24, days)


def _time_of(night: Night) -> tuple[int, int]:
    hours, _, minutes = night.at.partition(":")
    return int(hours), int(minutes)


def _cron(minutes: str, hours: int, days: tuple[str, ...]) -> str:
    return f"cron({minutes} {hours} ? * {','.join(day.upper() for day in days)} *)"


class AwsNights:
    """See Nights."""

    def __init__(self, region: Region, clock: Clock | None = None) -> None:
        self._region = region
        self._clock = clock or system_clock()

    def build(self) -> Function:
        return function_of_this_installation()

    def install(self, night: Night, store: str, function: Function, say: Callable[[str], None]) -> None:
        if len(night.name) > NAME_MAX:
            raise SpecInvalid(
                f"{shown(night.name)} is too long for a night: its role is called {name_of('…')}",
                hint=f"give a name of at most {NAME_MAX} characters by --name",
            )
        if function.machine not in MACHINES:
            raise SpecInvalid(
                f"the function would be built from packages for {function.machine}",
                hint=f"install the night from a machine with {' or '.join(MACHINES)} processors",
            )
        parameters = {
            "Night": night.name,
            "Store": store,
            **self._upload(store, function),
            "Runtime": function.python,
            "Expression": expression(night),
            "ExpressionAgain": expression_again(night),
            "Zone": night.zone,
        }
        say(f"deploying the stack {name_of(night.name)} in {self._region.name}")
        self._deploy(night.name, parameters)
        self._call(night.name, {"kind": "look"})

    def begin(self, name: str, now: datetime) -> Mapping[str, Any]:
        return self._call(name, {"kind": "begin", "by_hand": now.isoformat(timespec="seconds")})

    def is_installed(self, name: str) -> bool:
        return self._status(name_of(name)) is not None

    def remove(self, name: str) -> None:
        stack = name_of(name)
        found = self._described(stack)
        if found is None:
            return
        self._ask(f"delete the stack {stack}", lambda: self._region.stacks.delete_stack(StackName=stack))
        self._wait(str(found["StackId"]), wanted=("DELETE_COMPLETE",))

    def alarm(self, name: str) -> Alarm:
        return AwsAlarm(self._region, name)

    def usd(self, hours: float) -> Decimal:
        return usd_of_a_night(hours)

    # -- the stack ---------------------------------------------------------------------------------------------------

    def _upload(self, store: str, function: Function) -> dict[str, str]:
        """Beside the nights of the store, so that CloudFormation reads it from there. The same code is one object."""
        place = address.parse(store)
        assert isinstance(place, address.BucketAddress), store
        key = f"{FOLDER}/function-{hashlib.sha256(function.data).hexdigest()[:32]}.zip"
        runs = open_store(store)
        if not persist(lambda: runs.list(key)):
            persist(lambda: runs.put(key, function.data))
        return {"CodeBucket": place.bucket, "CodeKey": f"{place.prefix}/{key}" if place.prefix else key}

    def _deploy(self, night: str, parameters: Mapping[str, str]) -> None:
        stack = name_of(night)
        asked: dict[str, Any] = {
            "StackName": stack,
            "TemplateBody": files(__package__).joinpath("night.yaml").read_text(),
            "Parameters": [{"ParameterKey": key, "ParameterValue": text} for key, text in parameters.items()],
            "Capabilities": ["CAPABILITY_NAMED_IAM"],
            "Tags": [{"Key": _TAG, "Value": night}],
        }
        if self._status(stack) is None:
            create = partial(self._region.stacks.create_stack, **asked, OnFailure="DELETE")
            made = self._ask(f"create the stack {stack}", create)
            self._wait(str(made["StackId"]), wanted=("CREATE_COMPLETE",))
            return
        try:
            changed = self._ask(f"update the stack {stack}", partial(self._region.stacks.update_stack, **asked))
        except CloudError as error:
            if "No updates are to be performed" not in error.message:
                raise
            return
        self._wait(str(changed["StackId"]), wanted=("UPDATE_COMPLETE", "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS"))

    def _wait(self, stack: str, wanted: tuple[str, ...]) -> None:
        """
        Raises:
            CloudError: the stack came to another end; with the first reason, as AccessDenied if a right is missing.
            CloudUnavailable: it is still under way.
        """
        until_s = self._clock.monotonic() + DEPLOYED_WITHIN.total_seconds()
        while (status := self._status(stack) or "DELETE_COMPLETE") not in wanted:
            if not status.endswith("_IN_PROGRESS"):
                raise self._failure(stack)
            if self._clock.monotonic() >= until_s:
                raise CloudUnavailable(f"the stack {stack} is still {status}", hint="see CloudFormation's console")
            self._clock.sleep(POLL_S)

    def _status(self, stack: str) -> str | None:
        """None if there is no such stack."""
        found = self._described(stack)
        return None if found is None else str(found["StackStatus"])

    def _described(self, stack: str) -> Mapping[str, Any] | None:
        describe = partial(self._region.stacks.describe_stacks, StackName=stack)
        try:
            found: Mapping[str, Any] = self._ask(f"look at the stack {stack}", describe)["Stacks"][0]
        except CloudError as error:
            if "does not exist" not in error.message:
                raise
            return None
        return None if found["StackStatus"] == "DELETE_COMPLETE" and not stack.startswith("arn:") else found

    def _failure(self, stack: str) -> CloudError:
        """The first thing that went wrong: all others follow from it."""
        events = self._region.pages(self._region.stacks, "describe_stack_events", "StackEvents", StackName=stack)
        failed = [each for each in events if each["ResourceStatus"].endswith("_FAILED")]
        first = min(failed, key=lambda each: each["Timestamp"], default=None)
        if first is None:
            return CloudError(f"the stack {stack} failed", hint="see CloudFormation's console")
        reason = str(first.get("ResourceStatusReason", "no reason given"))
        what = f"{first['LogicalResourceId']} ({first['ResourceType']}) could not be deployed: {reason}"
        right = _RIGHT.search(reason)
        if right is None:
            return CloudError(what, hint="infra/aws/account.yaml and region.yaml have to be deployed before")
        return AccessDenied(f"{what}", hint=f"ask for {right[1]}; {_RIGHTS}")

    # -- the function ------------------------------------------------------------------------------------------------

    def _call(self, name: str, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """
        Raises:
            CloudError: it is not there, or it failed: with what it said.
        """
        patient = Region(self._region.name, self._clock, _PATIENT)
        called = partial(patient.functions.invoke, FunctionName=name_of(name), Payload=json.dumps(event).encode())
        try:
            answer = self._ask(f"call the function {name_of(name)}", called)
        except NotThere as error:
            hint = f"see `spotrun night ls`, or install it: spotrun night install JOB.yaml --name {name}"
            raise CloudError(f"there is no function {name_of(name)} in {self._region.name}", hint=hint) from error
        told: Mapping[str, Any] = json.loads(answer["Payload"].read() or b"{}") or {}
        if "FunctionError" in answer:
            said = f"{told.get('errorType', 'error')}: {told.get('errorMessage', 'it says no more')}"
            where = f"aws logs tail /aws/lambda/{name_of(name)} --region {self._region.name}"
            raise CloudError(f"the function {name_of(name)} failed: {said}", hint=where)
        return told

    def _ask(self, action: str, call: Callable[[], Any]) -> Any:
        try:
            return self._region.ask(action, call)
        except AccessDenied as error:
            right = _RIGHT.search(error.message)
            hint = f"ask for {right[1]}; {_RIGHTS}" if right else error.hint
            raise AccessDenied(error.message, hint=hint) from error
