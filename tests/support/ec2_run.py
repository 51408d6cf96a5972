"""A run on EC2 for tests of the runner: the test plays its agents, and makes as many runners as it likes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import boto3

from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.cloud import CLOUD
from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.aws.guard import AwsGuards
from spotrun.clouds.aws.run_role import RunRoles
from spotrun.clouds.last_words import LastWords
from spotrun.errors import StoreError
from spotrun.runner.runner import Runner
from tests.support.aws_launches import CONFIG
from tests.support.decisions import spec
from tests.support.ec2_server import REGION
from tests.support.guarded_account import GuardedAccount
from tests.support.histories import AWS_RULE
from tests.support.manual_clock import AheadClock, ManualClock
from tests.support.memory_run import UID, MemoryRun, nothing
from tests.support.world.faults import Watched

URI = f"s3://bucket/runs/r-{UID}"


class Ec2Run(MemoryRun):
    """Its instances are in an account on this machine."""

    def __init__(self, account: GuardedAccount) -> None:
        super().__init__(ManualClock(datetime.now(UTC)), uid=UID, billing=AWS_RULE)
        self._account = account
        self.store_says: StoreError | None = None

    def runner(self, before: Callable[[str], None] = nothing, ahead: timedelta = timedelta()) -> Runner:
        """
        A new runner. It calls `before` with the name of each call to its cloud, its guards and its identities. While
        `store_says` is set, each call to its store raises that. The clock of its machine is `ahead`.
        """
        clock = AheadClock(self.clock, ahead)
        return self.runner_in(
            Watched(AwsDriver(CONFIG, clock), before, nothing),
            spec(resources={"cloud": "aws"}, checkpoint={"uri": "s3://bucket/runs"}),
            URI,
            before=self._answer,
            clock=clock,
            guards=Watched(AwsGuards([REGION], clock), before, nothing),
            identities=Watched(RunRoles(Region(REGION, clock), clock), before, nothing),
            last_words=LastWords(CLOUD, self.store),
        )

    def ticks(self, runner: Runner) -> None:
        list(runner.ticks())
        self.clock.advance(5)

    def _answer(self, _: str) -> None:
        if self.store_says is not None:
            raise self.store_says

    def instances(self) -> list[str]:
        """The ids of the instances that live."""
        with self._account.as_administrator():
            return [each.instance_id for each in AwsDriver(CONFIG, self.clock).instances(UID) if each.alive]

    def schedules(self) -> list[str]:
        with self._account.as_administrator():
            found = boto3.client("scheduler", region_name=REGION).list_schedules(GroupName="spotrun")
        return [each["Name"] for each in found["Schedules"]]
