"""
Nights on AWS: EventBridge Scheduler calls a Lambda function. A CloudFormation stack, night.yaml, holds all of one
night.

https://docs.aws.amazon.com/scheduler/latest/UserGuide/schedule-types.html
https://docs.aws.amazon.com/AWSCloudFormation/latest/APIReference/API_CreateStack.html
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

from spotrun import address
from spotrun.clock import Clock, system_clock
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.control_plane import usd_of_a_night
from spotrun.clouds.aws.error_codes import NotThere
from spotrun.clouds.aws.function_zip import function_of_this_installation
from spotrun.clouds.aws.night_alarm import AwsAlarm, name_of
from spotrun.clouds.aws.night_stack import SOUND, NightStack, ask, parameters_of
from spotrun.clouds.nights import Alarm, Due, Function, when_due, when_due_again
from spotrun.clouds.patience import Patience
from spotrun.errors import CloudError, SpecInvalid, StoreError
from spotrun.folder.night_record import FOLDER, Night, NightRecord, names
from spotrun.store.opening import open_store
from spotrun.store.retrying import persist
from spotrun.units import shown

NAME_MAX = 48
"""A role's name has 64 characters at most, `spotrun-night-` among them."""
MACHINES = ("x86_64",)
FUNCTION_S = 300.0
"""Its time-out in night.yaml."""
_ARCHIVES = f"{FOLDER}/function-"
_YOUNG = timedelta(days=1)
_PATIENT = Patience(connect_s=10.0, read_s=FUNCTION_S + 30.0, tries_for_s=20.0)
_ANEW = "`spotrun night install` makes it anew, `spotrun night rm` removes the rest"


def expression(night: Night) -> str:
    """When a night is due, for EventBridge Scheduler, in the night's own time zone."""
    return _cron(when_due(night))


def expression_again(night: Night) -> str:
    """When it is called again."""
    return _cron(when_due_again(night))


def _cron(due: Due) -> str:
    return f"cron({','.join(map(str, due.minutes))} {due.hour} ? * {','.join(day.upper() for day in due.days)} *)"


def _times(night: Night) -> dict[str, str]:
    return {"Expression": expression(night), "ExpressionAgain": expression_again(night), "Zone": night.zone}


def _is_of(stack: Mapping[str, Any], store: str) -> bool:
    """Whether it calls a night of this store: its name alone does not say."""
    known = parameters_of(stack).get("Store", store)
    return address.parse(known) == address.parse(store)


class AwsNights:
    """See Nights."""

    def __init__(self, region: Region, clock: Clock | None = None) -> None:
        self._region = region
        self._clock = clock or system_clock()

    def build(self) -> Function:
        return function_of_this_installation()

    def require(self, name: str, store: str) -> None:
        if len(name) > NAME_MAX:
            raise SpecInvalid(
                f"{shown(name)} is too long for a night: its role is called {name_of('…')}",
                hint=f"give a name of at most {NAME_MAX} characters by --name",
            )
        found = self._stack(name).described()
        if found is not None and not _is_of(found, store):
            other = parameters_of(found)["Store"]
            raise SpecInvalid(
                f"{self._region.name} has a night {name} already, of the store {other}",
                hint=f"give this one another --name, or: spotrun night rm {name} --store {other}",
            )

    def install(self, night: Night, store: str, function: Function, say: Callable[[str], None]) -> None:
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
            **_times(night),
        }
        say(f"deploying the stack {name_of(night.name)} in {self._region.name}")
        self._stack(night.name).deploy(parameters, say)
        self._forget_functions(store, say)

    def look(self, name: str) -> None:
        self._call(name, {"kind": "look"})

    def begin(self, name: str, now: datetime) -> Mapping[str, Any]:
        return self._call(name, {"kind": "begin", "by_hand": now.isoformat(timespec="seconds")})

    def wrong(self, night: Night, store: str) -> str:
        stack = name_of(night.name)
        found = self._stack(night.name).described()
        if found is None:
            return f"what calls it is gone: {_ANEW}"
        known = parameters_of(found)
        if not _is_of(found, store):
            return f"the stack {stack} calls a night of {known['Store']}; `spotrun night rm` forgets this one"
        if found["StackStatus"] not in SOUND:
            return f"the stack {stack} is {found['StackStatus']}: {_ANEW}"
        if any(known.get(key, wanted) != wanted for key, wanted in _times(night).items()):
            return f"it is called at other times than it should, because an installation was cut off: {_ANEW}"
        missing = self._stack(night.name).missing()
        return f"{', '.join(missing)} of the stack {stack} is gone: {_ANEW}" if missing else ""

    def remove(self, name: str, store: str, say: Callable[[str], None]) -> None:
        stack = self._stack(name)
        found = stack.described()
        if found is not None and _is_of(found, store):
            stack.delete(found)
        self._forget_functions(store, say)

    def alarm(self, name: str) -> Alarm:
        return AwsAlarm(self._region, name)

    def usd(self, hours: float) -> Decimal:
        return usd_of_a_night(hours)

    def _stack(self, name: str) -> NightStack:
        return NightStack(self._region, name, self._clock)

    def _upload(self, store: str, function: Function) -> dict[str, str]:
        """Beside the nights of the store, so that CloudFormation reads it from there. The same code is one object."""
        place = address.parse(store)
        assert isinstance(place, address.BucketAddress), store
        key = f"{_ARCHIVES}{hashlib.sha256(function.data).hexdigest()[:32]}.zip"
        runs = open_store(store)
        known = persist(lambda: runs.list(key))
        if not known or self._clock.now() - known[0].modified_at > _YOUNG / 2:  # nobody deletes one that is young
            persist(lambda: runs.put(key, function.data))
        return {"CodeBucket": place.bucket, "CodeKey": f"{place.prefix}/{key}" if place.prefix else key}

    def _forget_functions(self, store: str, say: Callable[[str], None]) -> None:
        """
        Delete the archives that no stack of a night names. CloudFormation reads the one that a stack has when an update
        fails; one that is young may be of a stack that somebody else deploys just now. What cannot be deleted costs
        less than a cent a year, and the next installation tries again.
        """
        runs = open_store(store)
        young = self._clock.now() - _YOUNG
        try:
            old = [each.key for each in persist(lambda: runs.list(_ARCHIVES)) if each.modified_at < young]
            needed = self._archives_needed(store) if old else set()
            for key in old:
                if key.rpartition("/")[2] not in needed:
                    persist(partial(runs.delete, key))
        except (CloudError, StoreError) as error:
            say(f"note: functions of older versions stay in {store}/{FOLDER}: {error.one_line}")

    def _archives_needed(self, store: str) -> set[str]:
        """
        Raises:
            CloudError, StoreError: somebody's stack cannot be looked at, so nobody knows.
        """
        found = set()
        for name in names(store):
            night = NightRecord(store, name).read()
            if night.cloud != "aws":
                continue  # their archives are in buckets of their own cloud
            region = self._region if night.region == self._region.name else Region(night.region, self._clock)
            stack = NightStack(region, name, self._clock).described()
            if stack is not None:
                found.add(parameters_of(stack)["CodeKey"].rpartition("/")[2])
        return found

    # -- the function ------------------------------------------------------------------------------------------------

    def _call(self, name: str, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """
        Raises:
            CloudError: it is not there, or it failed: with what it said.
        """
        patient = Region(self._region.name, self._clock, _PATIENT)
        called = partial(patient.functions.invoke, FunctionName=name_of(name), Payload=json.dumps(event).encode())
        try:
            answer = ask(self._region, f"call the function {name_of(name)}", called)
        except NotThere as error:
            hint = f"see `spotrun night ls`, or install it: spotrun night install JOB.yaml --name {name}"
            raise CloudError(f"there is no function {name_of(name)} in {self._region.name}", hint=hint) from error
        told: Mapping[str, Any] = json.loads(answer["Payload"].read() or b"{}") or {}
        if "FunctionError" in answer:
            message = str(told.get("errorMessage", "it says no more")).partition("\n  try: ")[0]  # for who runs it
            said = f"{told.get('errorType', 'error')}: {message}"
            where = f"aws logs tail /aws/lambda/{name_of(name)} --region {self._region.name}"
            raise CloudError(f"the function {name_of(name)} failed: {said}", hint=where)
        return told
