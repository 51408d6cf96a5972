"""
The guards of protocol 11 on EC2: each launch has a one-shot schedule. It ends the instance when its time-to-live has
passed, even if the instance hangs, and the runner or its machine is gone.

https://docs.aws.amazon.com/scheduler/latest/UserGuide/managing-targets-universal.html
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from spotrun.clock import Clock
from spotrun.clouds.aws import account_checks
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.error_codes import AlreadyThere, NotThere
from spotrun.clouds.guards import Guard
from spotrun.clouds.patience import ASIDE
from spotrun.errors import CloudError

GROUP, ROLE = "spotrun", "spotrun-guard"
"""infra/aws makes both."""
_NOBODYS = "spotrun-doctor"
_FAR_AHEAD = timedelta(days=365)
"""If the doctor dies before it deletes its guard, the next one does. Else the guard finds nothing to end, and goes."""
LATER = timedelta(minutes=5)
"""How long after the time-to-live it fires: the instance's own timer, which counts from its boot, comes first."""


def missing(region: Region, clock: Clock) -> str | None:
    """
    Why launches would have no guard, or could not take it away; None if all is well. What a run does is done once: a
    guard of an instance that does not exist is made, and deleted.
    """
    ends_at = clock.now() + _FAR_AHEAD
    nobodys = Guard(token=_NOBODYS, region=region.name, instance_id=account_checks.NO_INSTANCE, ends_at=ends_at)
    try:
        account = account_checks.caller(region).account
        if _lacks_group(region):
            return f"there is no schedule group {GROUP}"
        _make(region, nobodys, account)
        _delete(region, _NOBODYS)
    except CloudError as error:
        return error.message
    return None


def _lacks_group(region: Region) -> bool:
    """Whether all guards are without a place. A guard for nobody that an earlier doctor could not delete goes."""
    try:
        _delete(region, _NOBODYS)
    except NotThere as error:
        return f"group {GROUP}" in error.message.lower()  # only its message says which of the two is missing
    return False


def _make(region: Region, guard: Guard, account: str) -> None:
    schedule = _schedule(guard, region.partition, account)
    region.ask(f"arm the guard of {guard.instance_id}", lambda: region.scheduler.create_schedule(**schedule))


def _delete(region: Region, token: str) -> None:
    named = {"GroupName": GROUP, "Name": token}
    region.ask(f"delete the guard {token}", lambda: region.scheduler.delete_schedule(**named))


class AwsGuards:
    """See Guards. An object arms each guard once. If another object has armed it before, EC2 says that it exists."""

    def __init__(self, regions: Sequence[str], clock: Clock) -> None:
        self._regions = {name: Region(name, clock, ASIDE) for name in regions}
        self._account = ""
        self._armed: set[str] = set()

    def arm(self, guard: Guard) -> None:
        if guard.token in self._armed:
            return
        region = self._regions[guard.region]
        with contextlib.suppress(AlreadyThere):  # an earlier call for the same launch made it
            _make(region, guard, self._account_of(region))
        self._armed.add(guard.token)

    def disarm(self, token: str, region_name: str) -> None:
        with contextlib.suppress(NotThere):  # it has fired, or was never made
            _delete(self._regions[region_name], token)

    def _account_of(self, region: Region) -> str:
        if not self._account:
            self._account = account_checks.caller(region).account
        return self._account


def _schedule(guard: Guard, partition: str, account: str) -> dict[str, Any]:
    """It deletes itself after it has fired."""
    at = guard.ends_at + LATER
    return {
        "Name": guard.token,
        "GroupName": GROUP,
        "ScheduleExpression": f"at({at:%Y-%m-%dT%H:%M:%S})",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "DELETE",
        "Target": {
            "Arn": f"arn:{partition}:scheduler:::aws-sdk:ec2:terminateInstances",
            "RoleArn": f"arn:{partition}:iam::{account}:role/{ROLE}",
            "Input": json.dumps({"InstanceIds": [guard.instance_id]}),
        },
    }
