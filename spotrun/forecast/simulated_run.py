"""
Simulates one lifetime of a run, tick by tick. The same policy as in real runs makes all decisions
(`spotrun.policy.decide`).

To choose between kinds of instances, the policy uses the speeds that it finds in the ledger. So each lifetime has a
ledger with real entries, in memory. This module simulates the cloud and the agents: an instance starts to train one
changeover after it was requested, trains at its kind's true speed, makes checkpoints at intervals, may get a notice,
and may be lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from math import ceil, floor, inf

import msgspec
import numpy as np
from msgspec.structs import replace

from spotrun.account.summary import summarise
from spotrun.account.timeline import Activity
from spotrun.forecast.lifetimes import Drawn
from spotrun.forecast.ticks import Outcome, Standby
from spotrun.instance import EndedBy, Instance, InstanceState, PriceSegment
from spotrun.market.world import StepSeen, World
from spotrun.offering import CapacityType, Offering
from spotrun.policy import Append, Execute, Terminate, decide
from spotrun.policy.assumptions import WARM_RESTORE
from spotrun.policy.patience import TICK_SYSTEM_MIN_S
from spotrun.policy.pools import name_of
from spotrun.run import events as ev
from spotrun.run import fold
from spotrun.run.events import Cause, Entry, RunCreated
from spotrun.run.state import RunState
from spotrun.spec.model import RunSpec

LOOKS_MAX = 30
"""
Maximum number of policy rounds at the same simulated time. If a round changed something, the next round follows at the
same simulated time.
"""
LAST_WORDS_S = 20.0
"""Seconds between the last checkpoint of an instance that has a notice and the loss of the instance."""
RESTORE_SHARE = 0.1
"""The share of a changeover that lies between the takeover and the first new step."""
IDLE_LOOK_S = 60.0
"""Maximum seconds between two policy rounds while nothing trains."""
OFTEN, SELDOM_S = 4, 900.0
"""
The first `OFTEN` checkpoints of an attempt are made at the job's interval, because the policy measures the pace from
them. Later checkpoints are at least `SELDOM_S` seconds apart, to make the simulation faster.
"""
ROUNDING_S = 1e-6


class Truth(msgspec.Struct, frozen=True):
    """
    The true figures of a lifetime, which the policy does not see. `work_s` contains the seconds that the whole work
    takes on each instance type. `changeover_s` is the duration of a changeover, and `interval_s` the time between two
    checkpoints. `standby` says which losses have a notice. If the run has not ended by `given_up_s`, the simulation
    stops.
    """

    work_s: Mapping[str, float]
    changeover_s: float
    interval_s: float
    standby: Standby
    checkpoint_bytes: int
    given_up_s: float


class LifeOutcome(msgspec.Struct, frozen=True):
    """The outcome of a lifetime, and the share of the work that each instance type did."""

    outcome: Outcome
    shares: dict[str, float]


class _Machine(msgspec.Struct):
    """An instance. All times are in seconds since the run's creation."""

    instance: Instance
    column: int | None
    billed_s: float
    ready_s: float
    told_s: float
    taken_s: float
    ended_s: float = inf


class _Trainer(msgspec.Struct):
    """The training on a machine. It begins with step `first` at `starts_s`, and each step takes `step_s`."""

    machine: _Machine
    attempt: int
    first: int
    starts_s: float
    step_s: float
    committed: int
    committed_s: float
    commits: int = 0
    started: bool = False

    def step_at(self, now_s: float) -> int:
        return self.first + max(0, floor((now_s - self.starts_s) / self.step_s + ROUNDING_S))

    def done_s(self, step: int) -> float:
        return self.starts_s + (step - self.first) * self.step_s


class SimulatedRun:
    """
    A simulated run of `spec` on `offerings`. The market `drawn` has one column for each spot pool in `pools`. If
    the run lasts longer than the market, the market repeats from its beginning. The policy decides at least every
    `look_s` seconds, and after each event that requires a decision.
    """

    def __init__(
        self,
        spec: RunSpec,
        created: RunCreated,
        offerings: Sequence[Offering],
        pools: Sequence[str],
        drawn: Drawn,
        tick_s: float,
        truth: Truth,
        look_s: float,
    ) -> None:
        self._spec, self._offerings, self._truth, self._look_s = spec, offerings, truth, look_s
        self._columns = {name: column for column, name in enumerate(pools)}
        self._drawn, self._tick_s = drawn, tick_s
        scale = look_s / TICK_SYSTEM_MIN_S if created.deadline_at is not None else 1.0
        born = replace(created, time_scale=scale)
        self._began_at = born.clock_epoch
        entry = Entry(number=0, run=born.uid, nonce="", at=self._began_at, writer="", event=born)
        self._state: RunState = fold.begin(entry)
        self._now_s = self._looked_s = 0.0
        self._machines: dict[str, _Machine] = {}
        self._trainer: _Trainer | None = None
        self._steps = max(1000, round(max(truth.work_s.values())))
        self._done: dict[str, int] = {}
        self._losses = 0

    def live(self) -> LifeOutcome:
        """Simulate until the run ends or is given up."""
        self._look()
        while self._state.terminal is None and self._now_s < self._truth.given_up_s:
            self._now_s = max(self._now_s, min(self._next_s(), self._truth.given_up_s))
            happened = self._happens()
            if happened or self._now_s >= self._look_due_s() - ROUNDING_S:
                self._look()
        for machine in self._machines.values():
            self._end(machine, EndedBy.ITSELF)
        self._look()
        return self._lived()

    # -- the decisions of the policy -----------------------------------------------------------------------------------

    def _look(self) -> None:
        self._looked_s = self._now_s
        for _ in range(LOOKS_MAX):
            wrote = False
            for action in decide(self._state, self._spec, self._world(), self._at(self._now_s)):
                if isinstance(action, Append):
                    wrote = self._write(action.event) or wrote
                elif isinstance(action, Execute):
                    wrote = self._launch(action.launch) or wrote
                elif isinstance(action, Terminate):
                    self._end(self._machines[action.instance_id], EndedBy.USER)
                    wrote = True
            if not wrote:
                return

    def _world(self) -> World:
        trainer = self._trainer
        seen = None
        if trainer is not None and trainer.started:
            step = min(self._steps, trainer.step_at(self._now_s))
            seen = StepSeen(attempt=trainer.attempt, step=step, at=self._at(trainer.done_s(step)))
        return World(
            offerings=tuple(replace(each, price_usd_per_hour=self._price(each)) for each in self._offerings),
            instances=tuple(machine.instance for machine in self._machines.values()),
            ready=frozenset(
                machine.instance.launch
                for machine in self._machines.values()
                if machine.ready_s <= self._now_s < machine.ended_s
            ),
            step_seen=seen,
            steps_total=None if trainer is None and not self._state.commits else float(self._steps),
        )

    def _write(self, event: ev.AnyEvent) -> bool:
        entry = Entry(
            number=self._state.next_number,
            run=self._state.created.uid,
            nonce="",
            at=self._at(self._now_s),
            writer="",
            event=event,
        )
        if fold.refusal(self._state, entry) is not None:
            return False
        self._state = fold.apply(self._state, entry)
        return True

    def _launch(self, number: int) -> bool:
        intent = self._state.launches[number].intent
        column = self._column(intent.offering)
        if column is not None and not self._has(column, self._now_s):
            return self._write(ev.LaunchClosed(launch=number, cause=Cause.CAPACITY, refused=True))
        start_s = self._truth.changeover_s * (self._truth.standby.later_start if self._state.commits else 1.0)
        taken_s = inf if column is None else self._taken_s(column)
        warned = self._truth.standby.warned
        told = taken_s < inf and bool(warned) and warned[self._losses_by(taken_s) % len(warned)]
        name = f"i-{number}"
        instance = Instance(
            instance_id=name,
            token=f"{self._state.created.uid}-{number}",
            run_uid=self._state.created.uid,
            launch=number,
            offering=intent.offering,
            state=InstanceState.PENDING,
            launched_at=self._at(self._now_s),
        )
        self._machines[name] = _Machine(
            instance=instance,
            column=column,
            billed_s=self._now_s + min(self._truth.standby.unbilled_s, start_s),
            ready_s=self._now_s + (1 - RESTORE_SHARE) * start_s,
            told_s=taken_s - self._truth.standby.notice_s if told else inf,
            taken_s=taken_s,
        )
        return True

    def _losses_by(self, at_s: float) -> int:
        """
        Return the index in the cyclic list `warned` that decides whether a loss at `at_s` has a notice. The index
        depends only on the time, so all simulated runs of a lifetime have notices for the same losses.
        """
        return round(at_s / self._tick_s)

    # -- events --------------------------------------------------------------------------------------------------------

    def _look_due_s(self) -> float:
        return self._looked_s + (self._look_s if self._trainer is not None else min(self._look_s, IDLE_LOOK_S))

    def _next_s(self) -> float:
        moments = [self._look_due_s()]
        for machine in self._machines.values():
            if machine.ended_s == inf:
                moments += [machine.billed_s, machine.ready_s, machine.told_s, machine.taken_s]
        if (trainer := self._trainer) is not None:
            first_s = trainer.done_s(trainer.first + 1)
            moments += [trainer.done_s(self._steps), first_s, self._commit_due_s(trainer), self._stops_s(trainer)]
        return min((moment for moment in moments if moment > self._now_s), default=self._now_s + self._look_s)

    def _happens(self) -> bool:
        """Apply all events that are due. Return True if one of them requires the policy to decide immediately."""
        changed = [self._pass(machine) for machine in list(self._machines.values()) if machine.ended_s == inf]
        trains = self._train()
        return self._hand_over() or trains or any(changed)

    def _pass(self, machine: _Machine) -> bool:
        now_s, instance = self._now_s, machine.instance
        if instance.state is InstanceState.PENDING and machine.billed_s <= now_s < machine.taken_s:
            since = self._at(machine.billed_s)
            price = PriceSegment(since=since, usd_per_hour=self._price(instance.offering, machine.billed_s))
            machine.instance = replace(instance, state=InstanceState.RUNNING, billed_from=since, prices=(price,))
            return True
        if machine.taken_s <= now_s:
            if (trainer := self._trainer) is not None and trainer.machine is machine:
                self._losses += 1
                self._commit(trainer, now_s - self._truth.interval_s / 2)
            self._end(machine, EndedBy.CLOUD)
            return True
        if machine.told_s <= now_s and self._trainer is not None and self._trainer.machine is machine:
            machine.told_s = inf
            deadline_at = self._at(machine.taken_s)
            self._write(ev.NoticeSeen(attempt=self._trainer.attempt, kind="termination", deadline_at=deadline_at))
            return True
        return machine.ready_s <= now_s < machine.ready_s + ROUNDING_S

    def _end(self, machine: _Machine, by: EndedBy) -> None:
        if machine.ended_s < inf:
            return
        machine.ended_s = self._now_s
        instance = machine.instance
        prices = () if instance.billed_from is None else tuple(self._segments(machine))
        machine.instance = replace(
            instance, state=InstanceState.TERMINATED, ended_at=self._at(self._now_s), ended_by=by, prices=prices
        )
        if self._trainer is not None and self._trainer.machine is machine:
            self._trainer = None

    def _train(self) -> bool:
        """Advance the training to the current simulated time. Return True if the training has just begun or ended."""
        trainer, now_s = self._trainer, self._now_s
        if trainer is None:
            return False
        step = min(self._steps, trainer.step_at(now_s))
        if not trainer.started and step > trainer.first:
            trainer.started = self._write(
                ev.TrainingStarted(attempt=trainer.attempt, incarnation=0, step=trainer.first + 1)
            )
            return True
        if step >= self._steps:
            commit = self._commit(trainer, now_s, final=True)
            self._write(ev.RunCompleted(attempt=trainer.attempt, final_commit=commit, step=step))
            self._end(trainer.machine, EndedBy.ITSELF)
        elif self._stops_s(trainer) <= now_s:
            commit = self._commit(trainer, now_s, final=True)
            self._write(
                ev.AttemptDrained(
                    attempt=trainer.attempt, final_commit=commit, stopped_at=self._at(now_s), reason="it leaves"
                )
            )
            self._losses += self._state.attempts[trainer.attempt].notice is not None
            self._end(trainer.machine, EndedBy.ITSELF)
        else:
            if self._commit_due_s(trainer) <= now_s:
                self._commit(trainer, now_s)
            return False
        return True

    def _commit_due_s(self, trainer: _Trainer) -> float:
        every_s = self._truth.interval_s if trainer.commits < OFTEN else max(SELDOM_S, self._truth.interval_s)
        due_s = trainer.committed_s + every_s
        return due_s if trainer.started and trainer.step_at(due_s) > trainer.committed else inf

    def _stops_s(self, trainer: _Trainer) -> float:
        """
        Return the time at which the trainer stops and hands over. If the instance has a notice, the trainer stops
        `LAST_WORDS_S` seconds before the loss. If the policy has decided to move the training, the trainer stops now.
        Otherwise it does not stop (`inf`).
        """
        attempt = self._state.attempts[trainer.attempt]
        if attempt.notice is not None:
            return max(self._now_s, trainer.machine.taken_s - LAST_WORDS_S)
        return self._now_s if attempt.leaving else inf

    def _commit(self, trainer: _Trainer, taken_s: float, *, final: bool = False) -> int | None:
        """
        Commit the steps that were done by the time `taken_s`. Return the number of the newest commit; None before the
        first commit.
        """
        step, number = min(self._steps, trainer.step_at(taken_s)), self._state.next_number
        if step <= trainer.committed:
            newest = self._state.latest_commit()
            return None if newest is None else newest.number
        event = ev.CheckpointCommitted(
            attempt=trainer.attempt,
            incarnation=0,
            prefix=f"checkpoints/{number}",
            manifest_blake3="0" * 64,
            size_bytes=max(1, self._truth.checkpoint_bytes),
            objects=1,
            epoch=0,
            batch=step,
            step=step,
            taken_at=self._at(taken_s),
            stall_s=0.0,
            durable_s=0.0,
            why="interval",
            final=final,
        )
        self._done[trainer.machine.instance.offering.instance_type] = (
            self._done.get(trainer.machine.instance.offering.instance_type, 0) + step - trainer.committed
        )
        self._write(event)
        trainer.committed, trainer.committed_s, trainer.commits = step, self._now_s, trainer.commits + 1
        return number

    def _hand_over(self) -> bool:
        """Start an attempt on a machine that is ready, if there is one and no attempt trains."""
        state, launch = self._state, self._state.pending_launch
        if state.terminal is not None or state.current is not None or launch is None:
            return False
        machine = self._machines.get(f"i-{launch.number}")
        if machine is None or machine.ended_s < inf or self._now_s < machine.ready_s or launch.recorded is None:
            return False
        name, newest = machine.instance.instance_id, state.latest_commit()
        started = ev.AttemptStarted(launch=launch.number, instance_id=name, booted_at=self._at(machine.ready_s))
        attempt = state.next_number
        if not self._write(started):
            return False
        step = 0 if newest is None else newest.event.step
        resumed = ev.ResumedFrom(
            attempt=attempt, incarnation=0, commit=None if newest is None else newest.number, epoch=0, step=step
        )
        self._write(resumed)
        waited = self._now_s > machine.ready_s + ROUNDING_S
        restore_s = WARM_RESTORE.total_seconds() if waited else RESTORE_SHARE * self._truth.changeover_s
        self._trainer = _Trainer(
            machine=machine,
            attempt=attempt,
            first=step,
            starts_s=self._now_s + restore_s,
            step_s=self._truth.work_s[machine.instance.offering.instance_type] / self._steps,
            committed=step,
            committed_s=self._now_s + restore_s,
        )
        return True

    # -- the market ----------------------------------------------------------------------------------------------------

    def _column(self, offering: Offering) -> int | None:
        return self._columns[name_of(offering.pool)] if offering.capacity_type is CapacityType.SPOT else None

    def _tick(self, at_s: float) -> int:
        return floor(at_s / self._tick_s + ROUNDING_S)

    def _row(self, at_s: float) -> int:
        return self._tick(at_s) % len(self._drawn.up)

    def _has(self, column: int, at_s: float) -> bool:
        return bool(self._drawn.up[self._row(at_s), column])

    def _taken_s(self, column: int) -> float:
        """Return the start of the next tick in which the pool has no capacity; `inf` if there is no such tick."""
        from_now_on = np.roll(self._drawn.up[:, column], -self._row(self._now_s))
        away = (~from_now_on).nonzero()[0]
        return float((self._tick(self._now_s) + away[0]) * self._tick_s) if len(away) else inf

    def _price(self, offering: Offering, at_s: float | None = None) -> Decimal:
        column = self._column(offering)
        if column is None:
            return offering.price_usd_per_hour
        usd = self._drawn.usd
        moves = usd.ndim > 1
        found = usd[self._row(self._now_s if at_s is None else at_s), column] if moves else usd[column]
        return Decimal(f"{float(found):.6f}")

    def _segments(self, machine: _Machine) -> Sequence[PriceSegment]:
        """Return a machine's price segments. A new segment begins at each change of the price."""
        found = list(machine.instance.prices)
        if machine.column is None or self._drawn.usd.ndim == 1:
            return found
        for tick in range(ceil(machine.billed_s / self._tick_s), self._tick(self._now_s) + 1):
            price = self._price(machine.instance.offering, tick * self._tick_s)
            if price != found[-1].usd_per_hour:
                found.append(PriceSegment(since=self._at(tick * self._tick_s), usd_per_hour=price))
        return found

    def _at(self, moment_s: float) -> datetime:
        return self._began_at + timedelta(seconds=moment_s)

    # -- the outcome ---------------------------------------------------------------------------------------------------

    def _lived(self) -> LifeOutcome:
        total = summarise(self._state, self._at(self._now_s)).total
        seconds = {kind: time.total_seconds() for kind, time in total.times.items()}
        trained_s = sum(seconds.get(kind, 0.0) for kind in (Activity.PRODUCTIVE, Activity.REWORK, Activity.STALL))
        starts_s = sum(seconds.get(kind, 0.0) for kind in (Activity.BOOT, Activity.SETUP, Activity.RESTORE))
        terminal = self._state.terminal
        completed = terminal is not None and terminal.outcome == "completed"
        outcome = Outcome(
            cost_usd=float(total.spot_usd + total.on_demand_usd + total.egress_usd),
            finished_s=(terminal.at - self._began_at).total_seconds() if completed and terminal is not None else None,
            starts=len(self._state.launches),
            on_demand_progress_s=0.0,
            spot_progress_s=trained_s,
            losses=self._losses,
            changeover_s=starts_s,
            rework_s=seconds.get(Activity.REWORK, 0.0),
        )
        whole = sum(self._done.values()) or 1
        return LifeOutcome(outcome, {name: steps / whole for name, steps in self._done.items()})
