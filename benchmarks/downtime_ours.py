"""
Ours in that market: the production runner with its decisions, over a virtual clock, a ledger in memory and a cloud that
is a dictionary. The agents here only pass time; when to commit, when to leave and when a standby takes over is
asked of the production agent's own functions. What it came to is read from the ledger by the production account.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from math import ceil
from pathlib import Path

from msgspec.structs import replace

from benchmarks.downtime_market import REGION_OF, ZONES, Market
from spotrun import events as ev
from spotrun.agent.decisions import Leaving, Standing, leaving_window_s, standby_verdict
from spotrun.agent.inbox import NoticeHeard
from spotrun.agent.leave import Leave, Stage
from spotrun.agent.notices import POLL_S
from spotrun.agent.pace import Pace
from spotrun.agent.recorder import TAIL_S
from spotrun.clock import ManualClock
from spotrun.hints import AgentHint, agent_key, write_hint
from spotrun.instance import EndedBy, Instance, InstanceState, LaunchRequest
from spotrun.ledger import EntryRefused, Ledger, key_of
from spotrun.policy.patience import TICK_S
from spotrun.runner import Runner
from spotrun.spec import RunSpec
from spotrun.state import RunState
from spotrun.timeline import Span, timeline
from tests.commits import committed
from tests.histories import START, History
from tests.worlds import FakeCloud, MemoryStore, offer

LOOK_S = 1.0
"""How finely time passes while anything happens."""
OFFERS = tuple(
    replace(offer(zone, price=f"{1 + number / 100:.2f}"), region=REGION_OF[zone]) for number, zone in enumerate(ZONES)
)


class Cloud(FakeCloud):
    """Instances take as long to boot as the market says."""

    def __init__(self, clock: ManualClock, market: Market) -> None:
        super().__init__(clock, OFFERS)
        self._market = market
        self._boots: dict[str, timedelta] = {}
        self.setups: dict[str, float] = {}

    def _start(self, request: LaunchRequest) -> Instance:
        instance = super()._start(request)
        boot_s, self.setups[instance.instance_id] = self._market.start_s(len(self._boots))
        self._boots[instance.instance_id] = timedelta(seconds=boot_s)
        return instance

    def _now(self, instance: Instance) -> Instance:
        self._boot = self._boots[instance.instance_id]
        return super()._now(instance)


@dataclass
class Upload:
    """A snapshot on its way."""

    step: int
    taken_s: float
    final: bool = False


class Agent:
    """The agent and the trainer of one instance. A step takes a second."""

    def __init__(self, world: OurWorld, instance: Instance) -> None:
        assert instance.billed_from is not None
        self._world, self._clock, self._setting = world, world.clock, world.market.setting
        self._launch, self.instance_id = instance.launch, instance.instance_id
        self.zone = instance.offering.zone
        self._booted_at = instance.billed_from
        self._booted_s = (instance.billed_from - START).total_seconds()
        self._ready_s = self._booted_s + world.cloud.setups[self.instance_id]
        self._ledger = Ledger(world.store, world.uid, f"agent:{self._launch}", world.clock, retry_for_s=0)
        self._read_s = self._booted_s
        self._leaving: Leaving | None = None
        self._leave = Leave(world.clock)
        self._attempt: int | None = None
        self._resumes_s = 0.0
        self._first: int | None = None
        self._began_s = 0.0
        self._upload: Upload | None = None
        self._next_s = 0.0

    def act(self) -> None:
        now_s = self._clock.monotonic()
        self._tell("train" if self._first is not None else "standby" if now_s >= self._ready_s else "setup")
        try:
            self._read(now_s)
            if self._attempt is not None:
                self._attend(self._attempt, now_s)
            elif now_s >= self._ready_s:
                self._stand_by(now_s)
        except EntryRefused:
            self._power_off()

    def _read(self, now_s: float) -> None:
        if now_s >= self._read_s:
            self._read_s = now_s + TAIL_S
            self._ledger.refresh()

    def _stand_by(self, now_s: float) -> None:
        state = self._ledger.state
        window_s = leaving_window_s(state)
        if self._leaving is None and window_s is not None:
            self._leaving = Leaving(now_s, window_s)
        verdict = standby_verdict(state, self._launch, self._leaving, self._ready_s, now_s)
        if verdict is Standing.START:
            self._take_over(now_s)
        elif verdict is Standing.LEAVE:
            self._power_off()

    def _take_over(self, now_s: float) -> None:
        """The checkpoint is fetched beside the imports of the script; a standby has done those while it waited."""
        imports_s = max(0.0, self._setting.imports_s - (now_s - self._ready_s))
        self._attempt = self._write(
            ev.AttemptStarted(launch=self._launch, instance_id=self.instance_id, booted_at=self._booted_at)
        )
        fetch_s = 0.0 if self._ledger.state.latest_commit() is None else self._setting.fetch_s
        self._resumes_s = now_s + max(imports_s, fetch_s)

    # -- training ----------------------------------------------------------------------------------------------------

    def _attend(self, attempt: int, now_s: float) -> None:
        self._hear_notice(attempt, now_s)
        if self._first is None:
            if now_s >= self._resumes_s:
                self._begin(attempt, now_s)
            return
        self._finish_upload(attempt, now_s)
        stage = self._leave.stage(self._pace)
        if stage is Stage.DRAINING and self._leave.draining_s is None:
            self._leave.begin(self._pace, uploading=self._upload is not None)
            if not self._leave.too_short:
                self._upload = Upload(self._step(now_s), now_s, final=True)
        elif self._leave.draining_s is None and self._upload is None and self._pace.snapshot_due(now_s):
            self._pace.snapshot(self._step(now_s), 0.0, now_s)  # copied while the next step is computed
            self._upload = Upload(self._step(now_s), now_s)
            self._next_s = now_s + self._setting.every_s

    def _hear_notice(self, attempt: int, now_s: float) -> None:
        told_s = self._told_s(now_s)
        if self._leave.deadline_s is not None or told_s is None or now_s < told_s:
            return
        loss = self._world.market.loss_after(self.zone, now_s)
        assert loss is not None
        deadline_at = START + timedelta(seconds=loss.at_s)
        self._leave.notice(NoticeHeard("termination", deadline_at, loss.at_s))
        self._write(ev.NoticeSeen(attempt=attempt, kind="termination", deadline_at=deadline_at))

    def _told_s(self, now_s: float) -> float | None:
        """At which of its looks at the metadata the agent sees that its instance will be taken."""
        loss = self._world.market.loss_after(self.zone, now_s)
        if loss is None or loss.told_s is None:
            return None
        return self._booted_s + POLL_S * max(0, ceil((loss.told_s - self._booted_s) / POLL_S))

    def _begin(self, attempt: int, now_s: float) -> None:
        newest = self._ledger.state.latest_commit()
        commit, self._first = (None, 0) if newest is None else (newest.number, newest.event.step)
        self._began_s = now_s
        self._pace = Pace(timedelta(seconds=self._setting.every_s), self._committed_s())
        self._write(ev.ResumedFrom(attempt=attempt, incarnation=0, commit=commit, epoch=0, step=self._first))
        self._write(ev.TrainingStarted(attempt=attempt, incarnation=0, step=self._first + 1))

    def _committed_s(self) -> float | None:
        newest = self._ledger.state.latest_commit()
        return None if newest is None else (newest.at - START).total_seconds()

    def _step(self, now_s: float) -> int:
        assert self._first is not None
        return self._first + int(now_s - self._began_s)

    def _finish_upload(self, attempt: int, now_s: float) -> None:
        done = self._upload
        if done is None or now_s < done.taken_s + self._setting.commit_s:
            return
        self._upload, took_s = None, now_s - done.taken_s
        prefix, taken_at = f"checkpoints/{attempt}-{done.step}", START + timedelta(seconds=done.taken_s)
        commit = self._write(committed(attempt, prefix, done.step, taken_at, durable_s=took_s, final=done.final))
        self._pace.committed(took_s, now_s)
        if done.final:
            reason = self._leave.reason
            self._write(ev.AttemptDrained(attempt=attempt, final_commit=commit, stopped_at=taken_at, reason=reason))
            self._power_off()

    def busy_until_s(self, now_s: float) -> float:
        """Until when nothing will happen here but steps; now, where it should be looked at closely."""
        if self._leave.deadline_s is not None:
            return now_s
        next_s = self._next_s if self._upload is None else self._upload.taken_s + self._setting.commit_s
        told_s = self._told_s(now_s)
        return next_s if told_s is None else min(next_s, told_s)

    # -- words -------------------------------------------------------------------------------------------------------

    def _write(self, event: ev.AnyEvent) -> int:
        entry = self._ledger.append(lambda _: event)
        assert entry is not None
        return entry.number

    def _tell(self, phase: str) -> None:
        now = self._clock.now()
        hint = AgentHint(launch=self._launch, phase=phase, at=now, sequence=int(self._clock.monotonic()))
        write_hint(self._world.store, agent_key(self._launch), hint)

    def _power_off(self) -> None:
        self._world.cloud.end(self.instance_id, EndedBy.ITSELF)


class OurWorld:
    """One job in one market."""

    def __init__(self, seed: int, market: Market) -> None:
        self.market = market
        self.clock = ManualClock(START)
        self.cloud = Cloud(self.clock, market)
        self.store = MemoryStore(self.clock)
        history = History()
        self.uid = history.uid
        self.store.put(key_of(0), ev.encode_entry(history.entries[0]))
        self._ledger = Ledger(self.store, self.uid, "runner", self.clock, retry_for_s=0)
        self._runner = Runner(self._ledger, self.store, self.cloud, self.clock, _spec(market), "memory")
        self._pass_s = seed % 8 * TICK_S / 8
        self._did = False
        self._agents: dict[str, Agent] = {}

    def run(self) -> tuple[Span, ...]:
        """What each instant until the horizon was, by the production account."""
        while self.clock.monotonic() < self.market.setting.horizon_s:
            self._take_instances()
            for agent in self._alive():
                agent.act()
            self._pass_over()
            self.clock.advance(max(LOOK_S, self._quiet_until_s() - self.clock.monotonic()))
        return timeline(self.state, self.clock.now())

    @property
    def state(self) -> RunState:
        return self._ledger.refresh()

    def _take_instances(self) -> None:
        now_s = self.clock.monotonic()
        for instance in self.cloud.alive:
            asked_s = (instance.launched_at - START).total_seconds()
            loss = self.market.loss_after(instance.offering.zone, asked_s)
            if loss is not None and loss.at_s <= now_s:
                self.cloud.end(instance.instance_id, EndedBy.CLOUD)

    def _alive(self) -> list[Agent]:
        return [
            self._agents.setdefault(instance.instance_id, Agent(self, instance))
            for instance in self.cloud.alive
            if instance.state is InstanceState.RUNNING
        ]

    def _pass_over(self) -> None:
        """The runner looks every 2 s; what it would not have seen while nothing happened is left out."""
        now_s = self.clock.monotonic()
        if now_s < self._pass_s:
            return
        self._pass_s += TICK_S * (1 + (now_s - self._pass_s) // TICK_S)
        self.cloud.empty = {each.pool for each in OFFERS if not self.market.has(each.zone, now_s)}
        passes = list(self._runner.look())
        self._did = any(seen.actions for seen in passes)

    def _quiet_until_s(self) -> float:
        now_s, agents = self.clock.monotonic(), self._alive()
        if self._did or len(agents) != 1 or len(self.cloud.alive) != 1:
            return now_s
        loss = self.market.loss_after(agents[0].zone, now_s)
        until_s = agents[0].busy_until_s(now_s)
        return until_s if loss is None else min(until_s, loss.at_s)


def _spec(market: Market) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": "demo",
            "workdir": str(Path.cwd()),
            "train": {"run": "true"},
            "resources": {"spot_policy": "spot"},
            "checkpoint": {"every": f"{market.setting.every_s:.3f}s"},
        }
    )
