"""A run on an AWS account that is plain objects."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from botocore.exceptions import ReadTimeoutError

from spotrun.clock import Clock
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.cloud import CLOUD
from spotrun.clouds.aws.config import AwsConfig
from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.aws.guard import AwsGuards
from spotrun.clouds.aws.run_role import RunRoles
from tests.support.histories import AWS_RULE
from tests.support.plain_aws import CONFIG, REGION, PlainAws
from tests.support.plain_run import BEGAN_AT, Fault, LivedClock, Outfit, PlainRun

Error = Callable[[], Exception]


class PlainAwsRun(PlainRun):
    provider = "AWS"
    first_looks = needed_to_end = frozenset({"describe_instances"})
    launch_call, end_call = "run_instances", "terminate_instances"
    launches_per_s = 2.0
    """https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html"""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        ahead: timedelta | None = None,
        spot_policy: str = "auto",
        config: AwsConfig = CONFIG,
    ) -> None:
        clock = LivedClock(BEGAN_AT)
        self.aws = PlainAws(clock)
        self.aws.tells_time = ahead is not None
        self.aws.reach(monkeypatch)
        self._config = config
        super().__init__(clock, self.aws, "aws", "s3://bucket/runs", AWS_RULE, ahead, spot_policy)

    def outfit(self, clock: Clock) -> Outfit:
        guards, identities = AwsGuards([REGION], clock), RunRoles(Region(REGION, clock), clock)
        return Outfit(AwsDriver(self._config, clock), guards, identities, CLOUD)

    def fails(self, call: str, error: Error, seconds: float) -> Fault:
        """What hangs takes the caller's time."""
        fault = Fault(self.clock, call, seconds)

        def answer(operation: str) -> None:
            if not fault.holds(operation):
                return
            if isinstance(made := error(), ReadTimeoutError):
                self.clock.advance(self.aws.calls[-1][1].read_s)
            raise made

        self.aws.fault = answer
        return fault

    def is_made_to(self, call: str, *, at_first: bool = False) -> None:
        """A runner looks quotas up when EC2 names one."""
        if call == "get_service_quota":
            self.aws.full_zone = "us-east-1a" if at_first else "us-east-1b"
