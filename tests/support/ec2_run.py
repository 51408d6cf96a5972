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
from spotrun.folder.ledger import Ledger, key_of
from spotrun.run import events as ev
from spotrun.run.state import RunState
from spotrun.runner.runner import Runner
from spotrun.store.port import Store
from tests.support.aws_launches import CONFIG
from tests.support.decisions import spec
from tests.support.ec2_server import REGION
from tests.support.guarded_account import GuardedAccount
from tests.support.histories import AWS_RULE, History
from tests.support.manual_clock import AheadClock, ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.played_agent import Agent
from tests.support.world.faults import Watched

UID = "fedcba9876"
URI = f"s3://bucket/runs/r-{UID}"


class Ec2Run:
    """A run with its ledger in memory, its instances in an account on this machine, and no agents of its own."""

    def __init__(self, account: GuardedAccount) -> None:
        self._account = account
        self.clock = ManualClock(datetime.now(UTC))
        self._store = MemoryStore(self.clock)
        created = History(uid=UID, billing=AWS_RULE, clock_epoch=self.clock.now()).entries[0]
        self._store.put(key_of(0), ev.encode_entry(created))
        assert isinstance(created.event, ev.RunCreated)
        self._uid = created.event.uid
        self.store_says: StoreError | None = None

    def runner(self, before: Callable[[str], None] = lambda _: None, ahead: timedelta = timedelta()) -> Runner:
        """
        A new runner. It calls `before` with the name of each call to its cloud, its guards and its identities. While
        `store_says` is set, each call to its store raises that. The clock of its machine is `ahead`.
        """
        clock = AheadClock(self.clock, ahead)
        store = Watched(self._store, self._answer, lambda _: None)
        cloud = Watched(AwsDriver(CONFIG, clock), before, lambda _: None)
        guards = Watched(AwsGuards([REGION], clock), before, lambda _: None)
        roles = Watched(RunRoles(Region(REGION, clock), clock), before, lambda _: None)
        wanted = spec(resources={"cloud": "aws"}, checkpoint={"uri": "s3://bucket/runs"})
        ledger = Ledger(store, self._uid, "runner", clock, retry_for_s=0)
        last_words = LastWords(CLOUD, store)
        return Runner(ledger, store, cloud, clock, wanted, URI, guards=guards, identities=roles, last_words=last_words)

    def ticks(self, runner: Runner) -> None:
        list(runner.ticks())
        self.clock.advance(5)

    def _answer(self, _: str) -> None:
        if self.store_says is not None:
            raise self.store_says

    def agent(self) -> Agent:
        """A played agent that takes over on the newest recorded instance."""
        return Agent(self.ledger(), self._store, self.clock)

    def ledger(self, store: Store | None = None) -> Ledger:
        return Ledger(store or self._store, self._uid, "test", self.clock, retry_for_s=0)

    @property
    def state(self) -> RunState:
        return self.ledger().refresh()

    def entries(self) -> list[ev.Entry]:
        ledger = self.ledger()
        ledger.refresh()
        return ledger.entries

    def instances(self) -> list[str]:
        """The ids of the instances that live."""
        with self._account.as_administrator():
            return [each.instance_id for each in AwsDriver(CONFIG, self.clock).instances(UID) if each.alive]

    def schedules(self) -> list[str]:
        with self._account.as_administrator():
            found = boto3.client("scheduler", region_name=REGION).list_schedules(GroupName="spotrun")
        return [each["Name"] for each in found["Schedules"]]
