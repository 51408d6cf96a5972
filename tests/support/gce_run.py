"""A run on Compute Engine for tests of the runner: the test plays its agents, and makes as many runners as it likes."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from spotrun.clouds.gcp.driver import GcpDriver
from spotrun.folder.ledger import Ledger, key_of
from spotrun.instance import VOLUME_GIB
from spotrun.run import events as ev
from spotrun.run.billing import gcp_rule
from spotrun.run.state import RunState
from spotrun.runner.runner import Runner
from tests.support.decisions import spec
from tests.support.gce_launches import CONFIG, REGION
from tests.support.google_server import GoogleServer
from tests.support.histories import History
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.played_agent import Agent
from tests.support.world.faults import Watched

UID = "fedcba9876"
URI = f"gs://bucket/runs/r-{UID}"


class GceRun:
    """A run with its ledger in memory, its instances in a project on this machine, and no agents of its own."""

    def __init__(self, gce: GoogleServer) -> None:
        self.project = gce.project
        self.clock = cast(ManualClock, gce.project.clock)
        self._store = MemoryStore(self.clock)
        rule = gcp_rule(VOLUME_GIB, [REGION])
        created = History(uid=UID, billing=rule, clock_epoch=self.clock.now()).entries[0]
        self._store.put(key_of(0), ev.encode_entry(created))

    def runner(self, after: Callable[[str], None] = lambda _: None) -> Runner:
        """A new runner. It calls `after` with the name of each call to its cloud that has been answered."""
        cloud = Watched(GcpDriver(CONFIG, self.clock), lambda _: None, after)
        wanted = spec(resources={"cloud": "gcp"}, checkpoint={"uri": "gs://bucket/runs"})
        ledger = Ledger(self._store, UID, "runner", self.clock, retry_for_s=0)
        return Runner(ledger, self._store, cloud, self.clock, wanted, URI)

    def ticks(self, runner: Runner) -> None:
        list(runner.ticks())
        self.clock.advance(5)

    def agent(self) -> Agent:
        """A played agent that takes over on the newest recorded instance."""
        return Agent(self.ledger(), self._store, self.clock)

    def ledger(self) -> Ledger:
        return Ledger(self._store, UID, "test", self.clock, retry_for_s=0)

    @property
    def state(self) -> RunState:
        return self.ledger().refresh()

    @property
    def instances(self) -> list[str]:
        """The names of those that the project has, whatever their state."""
        self.project.settle()
        return [vm.name for vm in self.project.vms.values()]
