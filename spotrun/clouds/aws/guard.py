"""
Guards on EC2 (protocol 11). For each launch, a one-time EventBridge schedule ends the instance when its time-to-live
expires, even if the instance hangs and no runner is left.

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
from spotrun.clouds.error_kinds import AlreadyThere, NotThere
from spotrun.clouds.guards import Guard
from spotrun.clouds.patience import ASIDE
from spotrun.errors import CloudError

GROUP, ROLE = "spotrun", "spotrun-guard"
"""The schedule group and the role of all guards, which infra/aws makes."""
_NOBODYS = "spotrun-doctor"
_FAR_AHEAD = timedelta(days=365)
"""
Time until the test guard that `doctor` makes would fire. Normally `doctor` deletes the test guard itself. If `doctor`
dies before that, the next `doctor` deletes it. If `doctor` is never run again, the guard fires, finds nothing to end,
and disappears.
"""
LATER = timedelta(minutes=5)
"""
Time from the end of the time-to-live until the guard fires. The instance's timer counts from its boot, and so fires
before the guard.
"""


def missing(region: Region, clock: Clock) -> str | None:
    """
    Check that runs can use guards: create a guard for an instance that does not exist, and delete it. Return None if
    both steps work, or else the reason why a guard cannot be created or deleted.
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
    """
    Return True if the schedule group is missing. Delete the test guard that an interrupted `doctor` may have left, and
    read from AWS's answer whether the group exists.
    """
    try:
        _delete(region, _NOBODYS)
    except NotThere as error:
        return f"group {GROUP}" in error.message.lower()  # only the message says which of the two is missing
    return False


def _make(region: Region, guard: Guard, account: str) -> None:
    schedule = _schedule(guard, region.partition, account)
    region.ask(f"arm the guard of {guard.instance_id}", lambda: region.scheduler.create_schedule(**schedule))


def _delete(region: Region, token: str) -> None:
    named = {"GroupName": GROUP, "Name": token}
    region.ask(f"delete the guard {token}", lambda: region.scheduler.delete_schedule(**named))


class AwsGuards:
    """
    Creates and deletes guards, which are EventBridge schedules. A guard that this object has created is not created
    again. If AWS reports that a guard's schedule exists already, the guard counts as created.
    """

    def __init__(self, regions: Sequence[str], clock: Clock) -> None:
        self._regions = {name: Region(name, clock, ASIDE) for name in regions}
        self._account = ""
        self._armed: set[str] = set()

    def arm(self, guard: Guard) -> None:
        if guard.token in self._armed:
            return
        region = self._regions[guard.region]
        with contextlib.suppress(AlreadyThere):  # an earlier call for the same launch made the guard
            _make(region, guard, self._account_of(region))
        self._armed.add(guard.token)

    def disarm(self, token: str, region_name: str) -> None:
        with contextlib.suppress(NotThere):  # the guard has fired, or was never made
            _delete(self._regions[region_name], token)

    def _account_of(self, region: Region) -> str:
        if not self._account:
            self._account = account_checks.caller(region).account
        return self._account


def _schedule(guard: Guard, partition: str, account: str) -> dict[str, Any]:
    """Return the parameters of a guard's schedule. EventBridge deletes the schedule after it has fired."""
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
