"""
Creates, updates, describes and deletes the CloudFormation stack of a night, and uploads the code of its Lambda
function. The function is the runner that begins the night's job at its time of day.

A stack is incomplete if a user has deleted some of its resources by hand, or has interrupted its creation. Such a stack
is deleted and created again.

https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/view-stack-events.html
https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_CreateStack.html
https://docs.aws.amazon.com/lambda/latest/api/API_UpdateFunctionCode.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from importlib.resources import files
from typing import Any

from spotrun.clock import Clock
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.night_alarm import BEGIN, BEGIN_AGAIN, EACH_MINUTE, TICK, name_of
from spotrun.clouds.error_kinds import AlreadyThere, NotThere
from spotrun.clouds.patience import Patience
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable

SLOW = Patience(connect_s=10.0, read_s=330.0, tries_for_s=20.0)
"""
The timeouts for calls of the function and for uploads. A call of the function takes up to the function's timeout of
300 s, and an upload may take as long.
"""
POLL_S = 3.0
DEPLOYED_WITHIN = timedelta(minutes=15)
RACES_MAX = 5
SOUND = ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE")
"""
States in which a stack can be updated. In a state that ends with _IN_PROGRESS, a stack is being changed, and this
module waits for the change to end. In any other state a stack cannot be updated, so it is deleted and created again.
"""
FUNCTION = "the function"
_DELETED: Mapping[str, Any] = {"StackStatus": "DELETE_COMPLETE"}
_TAG = "spotrun:night"
_RIGHT = re.compile(r"not authorized to perform: ([\w-]+:\w+)")
_RIGHTS = "infra/aws/README.md, under Nights, lists the rights that installing a night needs"


def ask(region: Region, action: str, call: Callable[[], Any]) -> Any:
    """
    Call AWS with `Region.ask`. If AWS refuses the call because the user lacks a right, the AccessDenied's hint names
    this right.
    """
    with naming_the_right():
        return region.ask(action, call)


@contextmanager
def naming_the_right() -> Iterator[None]:
    """If the `with` block raises an AccessDenied, name the missing right in the error's hint."""
    try:
        yield
    except AccessDenied as error:
        right = _RIGHT.search(error.message)
        hint = f"ask for {right[1]}; {_RIGHTS}" if right else error.hint
        raise AccessDenied(error.message, hint=hint) from error


def parameters_of(stack: Mapping[str, Any]) -> dict[str, str]:
    return {each["ParameterKey"]: each["ParameterValue"] for each in stack.get("Parameters", ())}


class NightStack:
    """The CloudFormation stack of the night `name`. It may not exist yet."""

    def __init__(self, region: Region, name: str, clock: Clock) -> None:
        self._region, self._clock = region, clock
        self._night = name
        self.name = name_of(name)

    def described(self) -> Mapping[str, Any] | None:
        return self._described(self.name)

    def deploy(self, parameters: Mapping[str, str], say: Callable[[str], None]) -> None:
        """
        Create or update the stack. CloudFormation does not restore resources that a user has deleted by hand, so an
        incomplete stack is deleted and created again.

        Raises:
            CloudError: the stack failed, for the reason in the message (AccessDenied if a right is missing).
            CloudUnavailable: CloudFormation has not finished the change in time.
        """
        stack = self.name
        asked: dict[str, Any] = {
            "StackName": stack,
            "TemplateBody": files(__package__).joinpath("night.yaml").read_text(),
            "Parameters": [{"ParameterKey": key, "ParameterValue": text} for key, text in parameters.items()],
            "Capabilities": ["CAPABILITY_NAMED_IAM"],
            "Tags": [{"Key": _TAG, "Value": self._night}],
        }
        for _ in range(RACES_MAX):
            found = self._at_rest()
            broken = [] if found is None else self.broken(parameters_of(found))
            if found is not None and (broken or found["StackStatus"] not in SOUND):
                why = ", ".join(broken) or f"it is {found['StackStatus']}"
                say(f"removing the stack {stack} first, because {why}")
                self.delete(found)
                found = None
            if self._create(asked) if found is None else self._update(asked):
                return
        raise CloudUnavailable(
            f"other processes keep changing the stack {stack}", hint="the CloudFormation console shows its events"
        )

    def _create(self, asked: Mapping[str, Any]) -> bool:
        """Create the stack. Return False if another installation has already begun to create it."""
        create = partial(self._region.stacks.create_stack, **asked, OnFailure="DELETE")
        try:
            made = ask(self._region, f"create the stack {asked['StackName']}", create)
        except AlreadyThere:
            return False
        self._wait(str(made["StackId"]), wanted=("CREATE_COMPLETE",))
        return True

    def _update(self, asked: Mapping[str, Any]) -> bool:
        """Update the stack. Return False if another installation is already changing it."""
        update = partial(self._region.stacks.update_stack, **asked)
        try:
            changed = ask(self._region, f"update the stack {asked['StackName']}", update)
        except CloudError as error:
            if "_IN_PROGRESS state" in error.message:
                return False
            if "No updates are to be performed" not in error.message:
                raise
            return True
        self._wait(str(changed["StackId"]), wanted=("UPDATE_COMPLETE", "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS"))
        return True

    def upload(self, code: bytes, sha256: str) -> None:
        """
        Upload `code` to the function, and check that Lambda then reports its digest, `sha256` (in base64).

        Raises:
            CloudError: Lambda reports another digest.
            CloudUnavailable: Lambda has not processed the code in time.
        """
        slow = Region(self._region.name, self._clock, SLOW)
        put = partial(slow.functions.update_function_code, FunctionName=self.name, ZipFile=code)
        ask(slow, f"upload the code of the function {self.name}", put)
        until_s = self._clock.monotonic() + DEPLOYED_WITHIN.total_seconds()
        while (found := self.function() or {}).get("LastUpdateStatus") == "InProgress":
            if self._clock.monotonic() >= until_s:
                raise CloudUnavailable(
                    f"Lambda is still processing the code of {self.name}", hint="the Lambda console shows its state"
                )
            self._clock.sleep(POLL_S)
        if found.get("CodeSha256") != sha256:
            what = f"the function {self.name} has other code than was uploaded (digest: {found.get('CodeSha256')})"
            raise CloudError(what, hint="find out who else is changing this function, then install the night again")

    def function(self) -> Mapping[str, Any] | None:
        look = partial(self._region.functions.get_function, FunctionName=self.name)
        try:
            found: Mapping[str, Any] = ask(self._region, f"read the function {self.name}", look)["Configuration"]
        except NotThere:
            return None
        return found

    def delete(self, found: Mapping[str, Any]) -> None:
        stack = str(found["StackId"])
        ask(self._region, f"delete the stack {stack}", lambda: self._region.stacks.delete_stack(StackName=stack))
        self._wait(stack, wanted=("DELETE_COMPLETE",))

    def _at_rest(self) -> Mapping[str, Any] | None:
        """
        Wait for changes of the stack that an interrupted installation may have left in progress. Then return the
        stack's description; None if there is no stack.
        """
        until_s = self._clock.monotonic() + DEPLOYED_WITHIN.total_seconds()
        while (found := self.described()) is not None and found["StackStatus"].endswith("_IN_PROGRESS"):
            self._sleep(found, until_s)
        return found

    def broken(self, parameters: Mapping[str, str]) -> list[str]:
        """
        Return what a user has deleted or changed by hand in the stack, which has these parameters, so that no call or
        another call is made: `the rule is gone`. A resource that the user is not allowed to read counts as sound.

        CloudFormation undoes none of this when it updates a stack:
        https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/using-cfn-stack-drift.html
        """
        name, region = self.name, self._region
        expressions = {
            BEGIN: (parameters.get("Expression"), parameters.get("Zone")),
            BEGIN_AGAIN: (parameters.get("ExpressionAgain"), parameters.get("Zone")),
            TICK: (EACH_MINUTE, None),
        }
        looks: dict[str, Callable[[], Any]] = {
            FUNCTION: lambda: region.functions.get_function(FunctionName=name),
            "the rule": lambda: region.events.describe_rule(Name=name),
            **{f"the role {role}": partial(_role, region, role) for role in (name, f"spotrun-clock-{self._night}")},
            **{f"the schedule {each}": partial(_schedule, region, name, each) for each in expressions},
        }
        faults: dict[str, Callable[[Mapping[str, Any]], str]] = {
            FUNCTION: _function_fault,
            **{f"the schedule {each}": partial(_schedule_fault, name, times) for each, times in expressions.items()},
        }
        found = {part: self._fault(part, look, faults.get(part, _no_fault)) for part, look in looks.items()}
        return [f"{part} {fault}" for part, fault in found.items() if fault]

    def _fault(self, part: str, look: Callable[[], Any], fault: Callable[[Mapping[str, Any]], str]) -> str:
        try:
            return fault(ask(self._region, f"read {part}", look))
        except NotThere:
            return "is gone"
        except AccessDenied:
            return ""

    def _wait(self, stack: str, wanted: tuple[str, ...]) -> None:
        """
        Wait until the stack is in a wanted state.

        Raises:
            CloudError: the stack failed, for the reason in the message (AccessDenied if a right is missing).
            CloudUnavailable: CloudFormation has not finished the change in time.
        """
        until_s = self._clock.monotonic() + DEPLOYED_WITHIN.total_seconds()
        while (found := self._described(stack) or _DELETED)["StackStatus"] not in wanted:
            if not found["StackStatus"].endswith("_IN_PROGRESS"):
                raise self._failure(stack)
            self._sleep(found, until_s)

    def _sleep(self, found: Mapping[str, Any], until_s: float) -> None:
        """
        Pause before the stack `found` is read again.

        Raises:
            CloudUnavailable: `until_s` has passed.
        """
        if self._clock.monotonic() >= until_s:
            what = f"the stack {found['StackId']} is still {found['StackStatus']}"
            raise CloudUnavailable(what, hint="see the CloudFormation console")
        self._clock.sleep(POLL_S)

    def _described(self, stack: str) -> Mapping[str, Any] | None:
        """Describe a stack, by its name or id; return None if it does not exist."""
        describe = partial(self._region.stacks.describe_stacks, StackName=stack)
        try:
            found: Mapping[str, Any] = ask(self._region, f"read the stack {stack}", describe)["Stacks"][0]
        except CloudError as error:
            if "does not exist" not in error.message:
                raise
            return None
        return None if found["StackStatus"] == "DELETE_COMPLETE" and not stack.startswith("arn:") else found

    def _failure(self, stack: str) -> CloudError:
        """Return an error that describes the stack's first failure. Later failures are only its consequences."""
        events = self._region.pages(self._region.stacks, "describe_stack_events", "StackEvents", StackName=stack)
        failed = [each for each in events if each["ResourceStatus"].endswith("_FAILED")]
        first = min(failed, key=lambda each: each["Timestamp"], default=None)
        if first is None:
            return CloudError(f"the stack {stack} failed", hint="the CloudFormation console shows its events")
        reason = str(first.get("ResourceStatusReason", "no reason given"))
        what = f"{first['LogicalResourceId']} ({first['ResourceType']}) could not be deployed: {reason}"
        right = _RIGHT.search(reason)
        if right is None:
            return CloudError(what, hint="infra/aws/account.yaml and region.yaml have to be deployed first")
        return AccessDenied(f"{what}", hint=f"ask for {right[1]}; {_RIGHTS}")


def _role(region: Region, name: str) -> Any:
    return region.iam.get_role(RoleName=name)


def _schedule(region: Region, group: str, name: str) -> Any:
    return region.scheduler.get_schedule(Name=name, GroupName=group)


def _no_fault(found: Mapping[str, Any]) -> str:
    return ""


def _function_fault(found: Mapping[str, Any]) -> str:
    """
    Return "is throttled" if the function's reserved concurrency is 0, so that it takes no calls. Lambda's console sets
    this with the button Throttle: https://docs.aws.amazon.com/lambda/latest/api/API_PutFunctionConcurrency.html
    """
    return "is throttled" if found.get("Concurrency", {}).get("ReservedConcurrentExecutions") == 0 else ""


def _schedule_fault(function: str, times: tuple[str | None, str | None], found: Mapping[str, Any]) -> str:
    """
    Return why a schedule does not call the function at these times, an expression and its time zone, which are None if
    unknown. The schedule of each minute, which has no time zone, may be disabled: the function itself switches it on
    and off.
    """
    target = str(found["Target"]["Arn"])
    if target.rpartition(":function:")[2] != function:
        return f"calls another target, {target}"
    known = (found["ScheduleExpression"], found.get("ScheduleExpressionTimezone"))
    if any(wanted not in (None, is_now) for wanted, is_now in zip(times, known, strict=True)):
        return "calls at other times than it should"
    return "is disabled" if found["State"] == "DISABLED" and times[1] else ""
