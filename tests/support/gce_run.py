"""A run on Compute Engine for tests of the runner: the test plays its agents, and makes as many runners as it likes."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from spotrun.clouds.gcp.driver import GcpDriver
from spotrun.instance import VOLUME_GIB
from spotrun.run.billing import gcp_rule
from spotrun.runner.runner import Runner
from tests.support.decisions import spec
from tests.support.gce_launches import CONFIG, REGION
from tests.support.gce_server import GceServer
from tests.support.manual_clock import ManualClock
from tests.support.memory_run import UID, MemoryRun, nothing
from tests.support.world.faults import Watched

URI = f"gs://bucket/runs/r-{UID}"


class GceRun(MemoryRun):
    """Its instances are in a project on this machine."""

    def __init__(self, gce: GceServer) -> None:
        super().__init__(cast(ManualClock, gce.project.clock), uid=UID, billing=gcp_rule(VOLUME_GIB, [REGION]))
        self.project = gce.project

    def runner(self, after: Callable[[str], None] = nothing) -> Runner:
        """A new runner. It calls `after` with the name of each call to its cloud that has been answered."""
        cloud = Watched(GcpDriver(CONFIG, self.clock), nothing, after)
        wanted = spec(resources={"cloud": "gcp"}, checkpoint={"uri": "gs://bucket/runs"})
        return self.runner_in(cloud, wanted, URI)

    def ticks(self, runner: Runner) -> None:
        list(runner.ticks())
        self.clock.advance(5)

    @property
    def instances(self) -> list[str]:
        """The names of those that the project has, whatever their state."""
        self.project.settle()
        return [vm.name for vm in self.project.vms.values()]
