"""
The guard beside an instance's own time-to-live (protocol 11): a one-shot schedule in the cloud, which ends the instance
when that has passed, whatever became of the instance, its runner, or the machine that the runner was on.

https://docs.aws.amazon.com/scheduler/latest/UserGuide/managing-targets-universal.html
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.refusals import AlreadyThere, NotThere
from spotrun.errors import CloudError
from spotrun.instance import LaunchRequest

GROUP, ROLE = "spotrun", "spotrun-guard"
"""Both are made by infra/aws."""
_NOBODYS = "spotrun-doctor"
LATER = timedelta(minutes=5)
"""The instance's own timer counts from its boot, and comes first."""


def missing(region: Region) -> str | None:
    """Why launches would have no guard; None: they would."""
    try:
        region.ask("look for a guard", lambda: region.scheduler.get_schedule(GroupName=GROUP, Name=_NOBODYS))
    except NotThere as error:
        # its words alone tell which of the two is not there
        return f"there is no schedule group {GROUP}" if f"group {GROUP}" in error.message.lower() else None
    except CloudError as error:
        return error.message
    return None


def arm(region: Region, request: LaunchRequest, instance_id: str, account: str, launched_at: datetime) -> None:
    """
    Make the schedule; harmless to repeat. It deletes itself once it was done.

    Raises:
        CloudError: the account does not allow it, or has no such group.
    """
    at = launched_at + request.time_to_live + LATER
    schedule: dict[str, Any] = {
        "Name": request.token,
        "GroupName": GROUP,
        "ScheduleExpression": f"at({at:%Y-%m-%dT%H:%M:%S})",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "DELETE",
        "Target": {
            "Arn": f"arn:{region.partition}:scheduler:::aws-sdk:ec2:terminateInstances",
            "RoleArn": f"arn:{region.partition}:iam::{account}:role/{ROLE}",
            "Input": json.dumps({"InstanceIds": [instance_id]}),
        },
    }
    try:
        region.ask(f"arm the guard of {instance_id}", lambda: region.scheduler.create_schedule(**schedule))
    except AlreadyThere:
        return  # by an earlier call of the same launch
