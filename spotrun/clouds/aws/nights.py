"""
Installs, describes and removes nights on AWS. A night is a job that a runner in the cloud begins at a set time of day,
even if the user's machine is off. The runner is a Lambda function, which EventBridge Scheduler calls.

Each night has a CloudFormation stack, made from night.yaml. The stack contains all of the night's resources except the
function's code. spotrun sends the code directly to Lambda, not through the store, because other people may be able to
write to the store.

https://docs.aws.amazon.com/scheduler/latest/UserGuide/schedule-types.html
https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_CreateStack.html
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

from spotrun import address
from spotrun.clock import Clock, system_clock
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.control_plane import usd_of_a_night
from spotrun.clouds.aws.error_codes import translated
from spotrun.clouds.aws.function_zip import function_of_this_installation
from spotrun.clouds.aws.night_alarm import AwsAlarm, name_of
from spotrun.clouds.aws.night_stack import SLOW, SOUND, NightStack, ask, naming_the_right, parameters_of
from spotrun.clouds.error_kinds import NotThere
from spotrun.clouds.night_archives import NightArchives
from spotrun.clouds.nights import ANEW, Alarm, Function, ScheduleTimes, when_due, when_due_again
from spotrun.errors import CloudError, SpecInvalid
from spotrun.folder.night import AGAIN, Night, Pin, pinned
from spotrun.folder.night_record import NightRecord, names
from spotrun.secrets.parameter_store import BATCH, read_at_once
from spotrun.secrets.reference import Reference, put_command

MACHINES = ("x86_64",)
FUNCTION_S = 300.0
"""The function's timeout in seconds, as in night.yaml."""


def expression(night: Night) -> str:
    """Return the times at which a night is due, as an EventBridge Scheduler expression in the night's time zone."""
    return _cron(when_due(night))


def expression_again(night: Night) -> str:
    """
    Return the times of the repeated calls, which are made in case the first call could not begin the night, as an
    EventBridge Scheduler expression.
    """
    return _cron(when_due_again(night))


def _cron(due: ScheduleTimes) -> str:
    return f"cron({','.join(map(str, due.minutes))} {due.hour} ? * {','.join(day.upper() for day in due.days)} *)"


def _times(night: Night) -> dict[str, str]:
    return {"Expression": expression(night), "ExpressionAgain": expression_again(night), "Zone": night.zone}


def _is_of(stack: Mapping[str, Any], store: str) -> bool:
    """
    Return True if the stack belongs to the night in the store `store`, and not to a night of the same name in another
    store.
    """
    known = parameters_of(stack).get("Store", store)
    return address.parse(known) == address.parse(store)


def _function_trouble(function: Mapping[str, Any] | None, name: str, parameters: Mapping[str, str]) -> str:
    """Return one sentence about why the function `name` does not execute what was installed; "" if it does."""
    function = function or {}
    if parameters.get("Code", wanted := function.get("CodeSha256")) != wanted:
        return f"the code of the function {name} is not what was installed: {ANEW}"
    if function.get("LastUpdateStatus") == "Failed":
        why = function.get("LastUpdateStatusReason", "Lambda gives no reason")
        return f"the last update of the function {name} failed: {why}: {ANEW}"
    return ""


class AwsNights:
    """Installs, describes and removes the nights in one region of AWS."""

    name_max = 48  # a role's name has at most 64 characters, including `spotrun-night-`
    name_limit = f"its IAM role's name, {name_of('…')}, would exceed AWS's limit"

    def __init__(self, region: Region, clock: Clock | None = None) -> None:
        self._region = region
        self._clock = clock or system_clock()

    def build(self) -> Function:
        return function_of_this_installation()

    def require(self, name: str, store: str) -> None:
        found = self._stack(name).described()
        if found is not None and not _is_of(found, store):
            other = parameters_of(found)["Store"]
            raise SpecInvalid(
                f"{self._region.name} already has a night {name}, which uses the store {other}",
                hint=f"give this one another --name, or: spotrun night rm {name} --store {other}",
            )

    def addresses(self, places: Mapping[str, Reference]) -> dict[str, str]:
        paths = sorted({each.name for each in places.values()})
        with naming_the_right(), translated(f"read {', '.join(paths)}"):
            found = read_at_once(paths, self._region.name)
        return {variable: found[place.name] for variable, place in places.items()}

    def put_address(self, place: Reference) -> str:
        return f"{put_command(place.name, self._region.name, 'https://…')} --overwrite"

    def pinned(self, name: str) -> Pin | None:
        found = self._stack(name).function()
        return None if found is None else pinned(found.get("Environment", {}).get("Variables", {}))

    def install(self, pin: Pin, store: str, function: Function, say: Callable[[str], None]) -> None:
        if function.machine not in MACHINES:
            raise SpecInvalid(
                f"this machine's packages are built for {function.machine}, but Lambda needs {' or '.join(MACHINES)}",
                hint=f"install the night from a machine with {' or '.join(MACHINES)} processors",
            )
        night, code = pin.night, base64.b64encode(hashlib.sha256(function.data).digest()).decode()
        parameters = {
            "Night": night.name,
            "Store": store,
            "Pin": pin.text,
            "Code": code,
            "Runtime": function.python,
            "Webhooks": ",".join(self._arns(night.webhooks)),
            **_times(night),
        }
        say(f"deploying the stack {name_of(night.name)} in {self._region.name}")
        stack = self._stack(night.name)
        stack.deploy(parameters, say)
        say(f"uploading the function: {len(function.data) / 1e6:.0f} MB")
        stack.upload(function.data, code)
        NightArchives(store, self._clock).forget(lambda: self._archives_needed(store), say)

    def _arns(self, paths: Sequence[str]) -> list[str]:
        """Return the ARNs of the parameters at these paths of Parameter Store, without decrypting their values."""
        found = list[str]()
        for start in range(0, len(paths), BATCH):
            look = partial(self._region.ssm.get_parameters, Names=[*paths[start : start + BATCH]])
            found += [
                str(row["ARN"]) for row in ask(self._region, "read the addresses of webhooks", look)["Parameters"]
            ]
        return found

    def look(self, name: str) -> None:
        self._call(name, {"kind": "look"})

    def begin(self, name: str, now: datetime) -> Mapping[str, Any]:
        return self._call(name, {"kind": "begin", "by_hand": now.isoformat(timespec="seconds")})

    def wrong(self, night: Night, store: str) -> str:
        stack = name_of(night.name)
        found = self._stack(night.name).described()
        if found is None:
            return f"the stack {stack}, which calls the night, is gone: {ANEW}"
        known = parameters_of(found)
        if not _is_of(found, store):
            return (
                f"the stack {stack} calls a night of {known['Store']}; `spotrun night rm` removes this night's record"
            )
        if found["StackStatus"] not in SOUND:
            return f"the stack {stack} is {found['StackStatus']}: {ANEW}"
        if any(known.get(key, wanted) != wanted for key, wanted in _times(night).items()):
            return f"the night is called at other times than it should, because an installation was interrupted: {ANEW}"
        if broken := self._stack(night.name).broken(known):
            return f"of the stack {stack}, {', '.join(broken)}: {ANEW}"
        return _function_trouble(self._stack(night.name).function(), stack, known)

    def remove(self, name: str, store: str, say: Callable[[str], None]) -> None:
        stack = self._stack(name)
        found = stack.described()
        if found is None:
            say(f"note: {self._region.name} had no stack {name_of(name)}")
        elif _is_of(found, store):
            stack.delete(found)
        NightArchives(store, self._clock).forget(lambda: self._archives_needed(store), say, removed=name)

    def alarm(self, name: str) -> Alarm:
        return AwsAlarm(self._region, name)

    def usd(self, hours: float) -> Decimal:
        return usd_of_a_night(hours)

    def _stack(self, name: str) -> NightStack:
        return NightStack(self._region, name, self._clock)

    def _archives_needed(self, store: str) -> set[str]:
        """
        Return the file names of the code archives that must stay in the store. An earlier version of spotrun kept the
        code of functions there. If an update of such a function fails, CloudFormation needs the old code to undo it.

        Raises:
            CloudError, StoreError: a night's stack or record cannot be read, so the names are unknown.
        """
        found = set()
        for name in names(store):
            night = NightRecord(store, name).read()
            region = self._region if night.region == self._region.name else Region(night.region, self._clock)
            stack = NightStack(region, name, self._clock).described()
            if stack is not None:
                found.add(parameters_of(stack).get("CodeKey", "").rpartition("/")[2])
        return found

    # -- calls of the function ---------------------------------------------------------------------------------------

    def _call(self, name: str, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """
        Call a night's function and return its answer.

        Raises:
            CloudError: the function does not exist, or failed; the message quotes its error.
        """
        patient = Region(self._region.name, self._clock, SLOW)
        called = partial(patient.functions.invoke, FunctionName=name_of(name), Payload=json.dumps(event).encode())
        try:
            answer = ask(self._region, f"call the function {name_of(name)}", called)
        except NotThere as error:
            hint = f"see `spotrun night ls`, or install it: spotrun night install JOB.yaml --name {name}"
            raise CloudError(f"there is no function {name_of(name)} in {self._region.name}", hint=hint) from error
        told: Mapping[str, Any] = json.loads(answer["Payload"].read() or b"{}") or {}
        if "FunctionError" in answer:
            message, _, advice = str(told.get("errorMessage", "it says no more")).partition("\n  try: ")
            said = f"{told.get('errorType', 'error')}: {message}"
            where = f"aws logs tail /aws/lambda/{name_of(name)} --region {self._region.name}"
            hint = advice if advice.startswith(AGAIN) else where  # other advice is for a process that runs in the cloud
            raise CloudError(f"the function {name_of(name)} failed: {said}", hint=hint)
        return told
