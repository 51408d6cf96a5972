"""A run for tests of the runner: its store, cloud and agents are objects in this process."""

from __future__ import annotations

from collections.abc import Callable

from spotrun.folder.market_record import MarketRecord
from spotrun.instance import EndedBy, Instance, InstanceState
from spotrun.runner.runner import Runner
from spotrun.runner.tick import Tick
from spotrun.store.port import Store
from tests.support.decisions import spec
from tests.support.histories import START
from tests.support.manual_clock import ManualClock
from tests.support.memory_run import MemoryRun, nothing
from tests.support.memory_store import MemoryStore
from tests.support.played_agent import Agent, Script
from tests.support.world.cloud import SimulatedCloud
from tests.support.world.faults import Watched
from tests.support.world.market import CalmMarket
from tests.support.world.timings import Timings
from tests.support.worlds import MARKET

STEPS = 80


class PlayedRun(MemoryRun):
    """
    Its agents save at each turn. `before` is an earlier run on the same cloud, with the same `beside`, which is the
    store of all runs.
    """

    def __init__(self, before: PlayedRun | None = None, steps: int = STEPS, **created: object) -> None:
        super().__init__(ManualClock(START) if before is None else before.clock, **created)
        self.market = CalmMarket(MARKET) if before is None else before.market
        timings = Timings(pending_s=(30.0, 30.0))
        self.cloud = SimulatedCloud(self.clock, self.market, timings) if before is None else before.cloud
        self.beside: Store = MemoryStore(self.clock) if before is None else before.beside
        self.calls = 0
        self.most_alive = 0
        self._script = Script(steps=steps)
        self._agents: dict[str, Agent] = {}

    def runner(
        self, before: Callable[[str], None] = nothing, after: Callable[[str], None] = nothing, **wanted: object
    ) -> Runner:
        """A new runner. It calls `before` and `after` with the name of each call to its cloud or its store."""
        cloud, market = Watched(self.cloud, before, after), MarketRecord(self.beside)
        wanted.setdefault("policy", {"on_demand_after": "1m"})
        return self.runner_in(cloud, spec(**wanted), "memory", before=before, after=after, market=market)

    def settle(self, runner: Runner, ticks: int = 3) -> Tick:
        """Let the runner tick while the clock stands still and no agent acts. Returns the last tick."""
        return [runner.tick() for _ in range(ticks)][-1]

    def turn(self) -> None:
        """Ten seconds pass: the cloud takes the instances that it announced, then each agent acts."""
        self.clock.advance(10)
        for each in self.cloud.alive:
            if each.state is InstanceState.RUNNING and each.run_uid == self.uid:
                agent = self._agents.setdefault(each.instance_id, self._agent_of(each))
                if not agent.act(self.cloud.describe(each.instance_id).notice_deadline):
                    self.cloud.end(each.instance_id, EndedBy.ITSELF)
        self.most_alive = max(self.most_alive, len(self.cloud.alive))

    def _agent_of(self, instance: Instance) -> Agent:
        named = instance.launch, instance.instance_id
        return Agent(self.ledger(f"agent:{instance.launch}"), self.store, self.clock, self._script, named)

    def training_on(self) -> Instance | None:
        state = self.state
        launch = None if state.current is None else state.current.launch
        return next((found for found in self.cloud.alive if found.launch == launch), None)
