"""A run for tests of the runner: its store, cloud and agents are objects in this process."""

from __future__ import annotations

from collections.abc import Callable

from spotrun.folder.ledger import EntryRefused, Ledger, key_of
from spotrun.folder.market_record import MarketRecord
from spotrun.folder.status_objects import AgentStatus, agent_key, write_status
from spotrun.instance import EndedBy, Instance, InstanceState
from spotrun.run import events as ev
from spotrun.run.state import Attempt, RunState
from spotrun.runner.runner import Runner
from spotrun.runner.tick import Tick
from spotrun.store.port import Store
from tests.support.checkpoint_entries import committed
from tests.support.decisions import spec
from tests.support.histories import START, History
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.world.cloud import SimulatedCloud
from tests.support.world.faults import Watched
from tests.support.world.market import CalmMarket
from tests.support.world.timings import Timings
from tests.support.worlds import MARKET

STEPS = 60


def nothing(_: str) -> None:
    """Let a call pass."""


class Agent:
    """Plays the agent of one instance: at each turn it reads the ledger, trains ten steps and commits."""

    def __init__(self, played: PlayedRun, instance: Instance) -> None:
        self._run = played
        self._instance = instance
        self._ledger = played.ledger(f"agent:{instance.launch}")
        self._step = 0
        self._turns = 0

    def act(self) -> None:
        state = self._ledger.refresh()
        launch = state.launches[self._instance.launch]
        self._write_status("standby" if launch.attempt is None else "train")
        try:
            if launch.attempt is not None and launch.attempt == state.current_attempt:
                self._train(state, state.attempts[launch.attempt])
            elif not launch.pending or state.terminal is not None:
                self._power_off()
            elif state.current is None:
                instance_id, booted_at = self._instance.instance_id, self._instance.launched_at
                self._write(ev.AttemptStarted(launch=launch.number, instance_id=instance_id, booted_at=booted_at))
        except EntryRefused:
            self._power_off()

    def _train(self, state: RunState, attempt: Attempt) -> None:
        number = attempt.number
        seen = self._run.cloud.describe(self._instance.instance_id)
        if not attempt.trainers:
            newest = state.latest_commit()
            self._step = 0 if newest is None else newest.event.step
            commit = None if newest is None else newest.number
            self._write(ev.ResumedFrom(attempt=number, incarnation=0, commit=commit, epoch=0, step=self._step))
        elif seen.notice_deadline is not None and attempt.notice is None:
            self._write(ev.NoticeSeen(attempt=number, kind="termination", deadline_at=seen.notice_deadline))
        elif attempt.leaving or state.stop_requested:
            final = self._commit(number)
            now = self._run.clock.now()
            self._write(ev.AttemptDrained(attempt=number, final_commit=final, stopped_at=now, reason="told to go"))
            self._power_off()
        elif self._step >= self._run.steps:
            self._write(ev.RunCompleted(attempt=number, final_commit=self._commit(number), step=self._step))
            self._power_off()
        else:
            self._step += 10
            self._commit(number)

    def _commit(self, attempt: int) -> int:
        self._turns += 1
        return self._write(
            committed(attempt, f"checkpoints/{attempt}-{self._turns}", self._step, self._run.clock.now())
        )

    def _write(self, event: ev.AnyEvent) -> int:
        entry = self._ledger.append(lambda _: event)
        assert entry is not None
        return entry.number

    def _write_status(self, phase: str) -> None:
        launch, now = self._instance.launch, self._run.clock.now()
        status = AgentStatus(launch=launch, phase=phase, at=now, sequence=self._turns, step=self._step)
        write_status(self._run.store, agent_key(launch), status)

    def _power_off(self) -> None:
        self._run.cloud.end(self._instance.instance_id, EndedBy.ITSELF)


class PlayedRun:
    """
    A run, its store, its cloud and the agents on its instances. A test makes as many runners for it as it likes.

    `before` is an earlier run on the same cloud, with the same `beside`, which is the store of all runs.
    """

    def __init__(self, before: PlayedRun | None = None, steps: int = STEPS, **created: object) -> None:
        self.clock = ManualClock(START) if before is None else before.clock
        self.market = CalmMarket(MARKET) if before is None else before.market
        timings = Timings(pending_s=(30.0, 30.0))
        self.cloud = SimulatedCloud(self.clock, self.market, timings) if before is None else before.cloud
        self.beside: Store = MemoryStore(self.clock) if before is None else before.beside
        self.store = MemoryStore(self.clock)
        self.steps = steps
        history = History(**created)
        self.uid = history.uid
        self.store.put(key_of(0), ev.encode_entry(history.entries[0]))
        self.calls = 0
        self.most_alive = 0
        self._agents: dict[str, Agent] = {}
        self._watching = self.ledger()

    def ledger(self, writer: str = "test", store: object = None) -> Ledger:
        return Ledger(store or self.store, self.uid, writer, self.clock, retry_for_s=0)

    def runner(
        self, before: Callable[[str], None] = nothing, after: Callable[[str], None] = nothing, **wanted: object
    ) -> Runner:
        """A new runner. It calls `before` and `after` with the name of each call to its cloud or its store."""
        store, cloud = Watched(self.store, before, after), Watched(self.cloud, before, after)
        wanted.setdefault("policy", {"on_demand_after": "1m"})
        market = MarketRecord(self.beside)
        return Runner(self.ledger("runner", store), store, cloud, self.clock, spec(**wanted), "memory", market)

    def state(self) -> RunState:
        return self._watching.refresh()

    def kinds(self) -> list[str]:
        ledger = self.ledger()
        ledger.refresh()
        return [ev.kind(entry.event) for entry in ledger.entries]

    def settle(self, runner: Runner, ticks: int = 3) -> Tick:
        """Let the runner tick while the clock stands still and no agent acts. Returns the last tick."""
        return [runner.tick() for _ in range(ticks)][-1]

    def turn(self) -> None:
        """Ten seconds pass: the cloud takes the instances that it announced, then each agent acts."""
        self.clock.advance(10)
        for instance in self.cloud.alive:
            if instance.state is InstanceState.RUNNING and instance.run_uid == self.uid:
                agent = self._agents.setdefault(instance.instance_id, Agent(self, instance))
                agent.act()
        self.most_alive = max(self.most_alive, len(self.cloud.alive))

    def training_on(self) -> Instance | None:
        state = self.state()
        launch = None if state.current is None else state.current.launch
        return next((found for found in self.cloud.alive if found.launch == launch), None)
