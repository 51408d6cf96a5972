"""
Makes AWS call a night's function until the night's run has ended. A schedule calls it each minute, and a rule calls it
when EC2 sends an event about one of the run's instances. The function itself enables and disables this schedule and
this rule, so neither calls it between nights.

https://docs.aws.amazon.com/scheduler/latest/APIReference/API_UpdateSchedule.html
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from spotrun.clouds.aws.calls import Region
from spotrun.clouds.error_kinds import NotThere

TICK = "tick"
"""The name of the schedule in the night's own group."""
BEGIN, BEGIN_AGAIN = "begin", "begin-again"
"""The names of the schedules that call the function when a night is due."""
EACH_MINUTE = "rate(1 minute)"
"""The times of that schedule, as in night.yaml."""
WARNING = "EC2 Spot Instance Interruption Warning"
NEWS = (WARNING, "EC2 Instance Rebalance Recommendation", "EC2 Instance State-change Notification")
_NOBODY = "i-00000000000000000"
_OF_A_SCHEDULE = (
    *("Name", "GroupName", "ScheduleExpression", "ScheduleExpressionTimezone", "FlexibleTimeWindow", "Target"),
    *("Description", "StartDate", "EndDate", "KmsKeyArn", "ActionAfterCompletion"),
)
"""Fields of a schedule. UpdateSchedule replaces all of them, and resets missing fields to their defaults."""
INSTANCES_MAX = 50
"""
Maximum number of instances whose events a rule passes on to the runner. The rule's pattern names these instances, and
may have at most 2,048 characters. The runner learns about events of other instances when the schedule next calls
it, up to a minute later.
"""


def name_of(night: str) -> str:
    """Return the name of a night's stack, which is also the name of its function, rule, schedule group and role."""
    return f"spotrun-night-{night}"


def pattern(instance_ids: Collection[str]) -> str:
    """Return the pattern for EC2's events about these instances. Events have no tags, so a rule can match only ids."""
    wanted = sorted(instance_ids)[:INSTANCES_MAX] or [_NOBODY]
    return json.dumps({"source": ["aws.ec2"], "detail-type": [*NEWS], "detail": {"instance-id": wanted}})


class AwsAlarm:
    """An Alarm that consists of an EventBridge schedule and an EventBridge rule."""

    def __init__(self, region: Region, night: str) -> None:
        self._region = region
        self._name = name_of(night)
        self._is_on: bool | None = None
        self._heard: frozenset[str] | None = None

    def on(self, *, again: bool = False) -> None:
        if again or self._is_on is not True:
            self._switch("ENABLED")
            self._is_on = True

    def off(self) -> None:
        """
        Disable the rule first, then the schedule. If the function dies between these two steps, the schedule calls the
        function again, and the function then disables the schedule, too.
        """
        self.hear(())
        self._switch("DISABLED")
        self._is_on = False

    def hear(self, instance_ids: Collection[str]) -> None:
        wanted = frozenset(instance_ids)
        if wanted == self._heard:
            return
        rule = partial(
            self._region.events.put_rule,
            Name=self._name,
            Description="What EC2 tells of the instances of a run, for its runner",
            EventPattern=pattern(wanted),
            State="ENABLED" if wanted else "DISABLED",
        )
        self._region.ask(f"change the rule {self._name}", rule)
        self._heard = wanted

    def wrong(self) -> str:
        for name in (BEGIN, BEGIN_AGAIN):
            try:
                found = self._schedule(name)
            except NotThere:
                return f"the schedule {self._name}/{name} is gone"
            if found["State"] == "DISABLED":
                return f"the schedule {self._name}/{name} is disabled"
        return ""

    def _schedule(self, name: str) -> Mapping[str, Any]:
        look = partial(self._region.scheduler.get_schedule, Name=name, GroupName=self._name)
        found: Mapping[str, Any] = self._region.ask(f"read the schedule {self._name}/{name}", look)
        return found

    def _switch(self, state: str) -> None:
        what = f"schedule {self._name}/{TICK}"
        found = self._schedule(TICK)
        if found["State"] != state:
            same = {key: found[key] for key in _OF_A_SCHEDULE if found.get(key) is not None}
            self._region.ask(
                f"change the {what}", lambda: self._region.scheduler.update_schedule(**{**same, "State": state})
            )
