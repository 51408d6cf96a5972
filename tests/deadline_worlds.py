"""
A run with a deadline under the real runner, in a world where training goes on between the looks of everybody.

One tick of the world is a small part of the runner's. Instances boot, set up and restore for `changeover_s`, train a
step a second, commit now and then, tell of their step in a hint, and are lost without notice whenever their pool has
no spot.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from spotrun import events as ev
from spotrun.clock import ManualClock
from spotrun.hints import AgentHint, agent_key, write_hint
from spotrun.instance import EndedBy, Instance, InstanceState
from spotrun.ledger import EntryRefused, Ledger, key_of
from spotrun.runner import Runner
from spotrun.spec import RunSpec
from spotrun.state import Attempt, RunState
from tests.commits import committed
from tests.histories import START, History
from tests.worlds import MARKET, SPOT, FakeCloud, MemoryStore

Weather = Callable[[float, str], bool]
"""Whether a zone has spot so many seconds after the launch."""
EPOCHS = 4


class Trainee:
    """The agent and the trainer of one instance."""

    def __init__(self, world: DeadlineWorld, instance: Instance) -> None:
        self._world = world
        self._launch = instance.launch
        self._instance_id = instance.instance_id
        self._ledger = Ledger(world.store, world.uid, f"agent:{instance.launch}", world.clock, retry_for_s=0)
        self._trains_at: float | None = None
        self._began_s = 0.0
        self._first = 0
        self._committed_s = 0.0
        self._beats = 0

    def act(self) -> None:
        state = self._ledger.refresh()
        launch, now_s = state.launches[self._launch], self._world.clock.monotonic()
        try:
            if launch.attempt is not None and launch.attempt == state.current_attempt:
                self._train(state, state.attempts[launch.attempt], now_s)
            elif not launch.pending or state.terminal is not None:
                self._world.cloud.end(self._instance_id, EndedBy.ITSELF)
            elif state.current is None:
                booted_at = self._world.clock.now()
                self._write(ev.AttemptStarted(launch=self._launch, instance_id=self._instance_id, booted_at=booted_at))
                self._trains_at = now_s + self._world.changeover_s / 2
            else:
                self._tell("standby", None, 0)
        except EntryRefused:
            self._world.cloud.end(self._instance_id, EndedBy.ITSELF)

    def _train(self, state: RunState, attempt: Attempt, now_s: float) -> None:
        assert self._trains_at is not None
        if now_s < self._trains_at:
            return
        if not attempt.trainers:
            self._begin(state, attempt.number, now_s)
        step = min(self._world.steps, self._first + int(now_s - self._began_s))
        self._tell("train", attempt.number, step)
        if step >= self._world.steps:
            final = self._commit(attempt.number, step)
            self._write(ev.RunCompleted(attempt=attempt.number, final_commit=final, step=step))
        elif attempt.leaving:
            final, at = self._commit(attempt.number, step), self._world.clock.now()
            self._write(ev.AttemptDrained(attempt=attempt.number, final_commit=final, stopped_at=at, reason="told"))
        elif now_s - self._committed_s >= self._world.every_s:
            self._commit(attempt.number, step)

    def _begin(self, state: RunState, attempt: int, now_s: float) -> None:
        newest = state.latest_commit()
        self._first = 0 if newest is None else newest.event.step
        self._began_s = self._committed_s = now_s
        commit = None if newest is None else newest.number
        self._write(ev.ResumedFrom(attempt=attempt, incarnation=0, commit=commit, epoch=0, step=self._first))
        self._write(ev.TrainingStarted(attempt=attempt, incarnation=0, step=self._first + 1))

    def _commit(self, attempt: int, step: int) -> int:
        self._committed_s = self._world.clock.monotonic()
        return self._write(
            committed(attempt, f"checkpoints/{attempt}-{step}-{self._committed_s}", step, self._world.clock.now())
        )

    def _write(self, event: ev.AnyEvent) -> int:
        entry = self._ledger.append(lambda _: event)
        assert entry is not None
        return entry.number

    def _tell(self, phase: str, attempt: int | None, step: int) -> None:
        self._beats += 1
        per_epoch = self._world.steps / EPOCHS
        hint = AgentHint(
            launch=self._launch,
            phase=phase,
            at=self._world.clock.now(),
            sequence=self._beats,
            attempt=attempt,
            epoch=int(step / per_epoch),
            epochs=EPOCHS,
            batch=int(step % per_epoch * 1000),
            batches=int(per_epoch * 1000),
            step=step,
        )
        write_hint(self._world.store, agent_key(self._launch), hint)


class DeadlineWorld:
    """One run of so many steps of a second each, with whatever deadline, in whatever weather."""

    def __init__(
        self, steps: int, changeover_s: float, tick_s: float, weather: Weather, deadline_s: float, **policy: object
    ) -> None:
        self.steps, self.changeover_s, self.tick_s = steps, changeover_s, tick_s
        self.every_s = max(30.0, steps / 10)
        self.clock = ManualClock(START)
        self.cloud = FakeCloud(self.clock, boot_s=changeover_s / 2)
        self.store = MemoryStore(self.clock)
        self._weather = weather
        deadline = timedelta(seconds=deadline_s)
        history = History(time_scale=tick_s / 0.1, deadline_at=START + deadline)
        self.uid = history.uid
        self.store.put(key_of(0), ev.encode_entry(history.entries[0]))
        self._ledger = Ledger(self.store, self.uid, "runner", self.clock, retry_for_s=0)
        wanted = RunSpec.model_validate(
            {
                "name": "demo",
                "workdir": "/tmp",
                "train": {"run": "true"},
                "policy": {"deadline": deadline, **policy},
                "checkpoint": {"every": f"{self.every_s:.3f}s"},
            }
        )
        self._runner = Runner(self._ledger, self.store, self.cloud, self.clock, wanted, "memory")
        self._trainees: dict[str, Trainee] = {}

    def finished_s(self, within_s: float) -> float | None:
        """When the training was completed, in seconds after the launch; None where it was not."""
        step_s, next_look_s = min(self.tick_s, self.changeover_s) / 4, 0.0
        while self.clock.monotonic() < within_s:
            self._blow()
            if self.clock.monotonic() >= next_look_s:
                next_look_s += self.tick_s
                self._runner.tick()
            if self.state.terminal is not None:
                return (self.state.terminal.at - START).total_seconds()
            self.clock.advance(step_s)
            for instance in self.cloud.alive:
                if instance.state is InstanceState.RUNNING:
                    self._trainees.setdefault(instance.instance_id, Trainee(self, instance)).act()
        return None

    def _blow(self) -> None:
        now_s = self.clock.monotonic()
        gone = {each.pool for each in MARKET if each.capacity_type is SPOT and not self._weather(now_s, each.zone)}
        self.cloud.empty = gone
        for instance in self.cloud.alive:
            if instance.offering.pool in gone:
                self.cloud.end(instance.instance_id, EndedBy.CLOUD)

    @property
    def state(self) -> RunState:
        return self._ledger.refresh()

    @property
    def bought(self) -> list[str]:
        """The capacity type of each attempt."""
        state = self.state
        return [str(state.launch_of(each).intent.offering.capacity_type) for each in state.attempts.values()]


def calm(_: float, __: str) -> bool:
    return True


def no_spot(_: float, __: str) -> bool:
    return False
