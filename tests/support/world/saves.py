"""The checkpoints of a simulated attempt: when one is due, what it costs, and what goes into the ledger."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import inf

import msgspec
from msgspec.structs import replace

from spotrun.agent.pace import Pace
from spotrun.agent.recorder import unless
from spotrun.checkpoint import retention
from spotrun.intervals import COMMIT_GAP
from spotrun.run.events import CheckpointCommitted, CheckpointRetired
from spotrun.run.gang import Layout, Shard
from spotrun.spec.model import CheckpointSpec
from spotrun.units import Steps
from tests.support.world.journal import SimulatedRecorder
from tests.support.world.timings import Training
from tests.support.world.trainer import SimulatedTrainer

AFTER = 1e-6
"""Seconds: what is due at a moment is asked for just behind it, where rounding cannot say that it is not."""


class Save(msgspec.Struct, frozen=True):
    """A snapshot, taken at `taken_s` (the end of its stall), that is durable at `durable_s`."""

    sequence: int
    step: int
    taken_s: float
    durable_s: float
    why: str
    final: bool


class Saves:
    """The saves of one attempt: one upload at a time, snapshots between steps, retention after each commit."""

    def __init__(
        self, recorder: SimulatedRecorder, training: Training, rule: CheckpointSpec, pace: Pace, began_at: datetime
    ) -> None:
        self._recorder = recorder
        self._training = training
        self._rule = rule
        self._pace = pace
        self._began_at = began_at
        self._taken = 0
        self._snapshot_s: float | None = None
        self._pressing = False
        self._waiting: list[Save] = []

    @property
    def in_flight(self) -> Save | None:
        return self._waiting[0] if self._waiting else None

    def abandon(self) -> None:
        """Call off what is not durable yet: the line is wanted for something newer."""
        self._waiting.clear()

    def epoch_ended(self, step: int) -> None:
        self._pace.epoch_ended(step)
        self.press()

    def press(self) -> None:
        """The next snapshot need not wait for its interval."""
        self._pressing = True

    def due_s(self, trainer: SimulatedTrainer, committed_s: float, now_s: float) -> float:
        """When the next snapshot is to be taken: between two steps, one upload at a time, commits 30 s apart."""
        if self.in_flight is not None:
            return inf
        earliest_s = max(committed_s + COMMIT_GAP.total_seconds() + AFTER, now_s)
        if isinstance(self._rule.every, Steps) and self._snapshot_s is not None and not self._pressing:
            count = self._rule.every.count
            return max(trainer.done_s((trainer.step_at(now_s) // count + 1) * count), earliest_s)
        interval_s = self._pace.interval_s(now_s)
        if self._snapshot_s is not None and not self._pressing and interval_s is not None:
            earliest_s = max(earliest_s, self._snapshot_s + interval_s + AFTER)
        return trainer.between_steps_s(earliest_s)

    def take(self, trainer: SimulatedTrainer, at_s: float, why: str, *, final: bool = False) -> None:
        """A snapshot at that moment: training stands still, then the upload begins, behind one that is under way."""
        stall_s = self._training.stall_s
        taken_s = at_s + stall_s
        step = trainer.step_at(at_s)
        trainer.stand_still(at_s, stall_s)
        self._pace.snapshot(step, stall_s, taken_s)
        self._snapshot_s, self._pressing = taken_s, False
        self._taken += 1
        begins_s = max([taken_s, *(save.durable_s for save in self._waiting)])
        self._waiting.append(Save(self._taken, step, taken_s, begins_s + self._training.upload_s, why, final))

    def commit(self, attempt: int, now_s: float) -> int:
        """The upload in flight is durable: write the commit. Returns the number of its entry."""
        save = self._waiting[0]
        prefix = f"{retention.FOLDER}{attempt}-0-{save.sequence}"
        event = CheckpointCommitted(
            attempt=attempt,
            incarnation=0,
            prefix=prefix,
            manifest_blake3="0" * 64,
            size_bytes=self._training.size_bytes,
            objects=1,
            epoch=int(save.step / self._training.steps_per_epoch),
            batch=0,
            step=save.step,
            taken_at=self._began_at + timedelta(seconds=save.taken_s),
            stall_s=self._training.stall_s,
            durable_s=now_s - save.taken_s,
            why=save.why,
            final=save.final,
        )
        event = self._of_gang(event, save)
        self._recorder.append(unless(lambda state: state.commit_at(prefix), event))
        commit = self._recorder.state.commit_at(prefix)
        assert commit is not None
        self._pace.committed(now_s - save.taken_s, now_s)
        self._waiting.pop(0)
        return commit.number

    def _of_gang(self, event: CheckpointCommitted, save: Save) -> CheckpointCommitted:
        """The same as the lead of a gang tells it, whose members all have the same state."""
        gang = self._recorder.state.attempts[event.attempt].gang
        if gang is None:
            return event
        shard = Shard(
            rank=0,
            attempt=event.attempt,
            incarnation=event.incarnation,
            snapshot=save.sequence,
            step=event.step,
            world=gang.world,
            blake3=event.manifest_blake3,
            size_bytes=event.size_bytes,
            objects=event.objects,
        )
        return replace(event, shards=(shard,), layout=Layout.REPLICATED)

    def retire(self, attempt: int, resume_source: int | None) -> None:
        for number in retention.to_retire(self._recorder.state, self._rule, resume_source):
            self._retire_one(attempt, number)

    def _retire_one(self, attempt: int, number: int) -> None:
        event = CheckpointRetired(attempt=attempt, commit=number)
        self._recorder.append(unless(lambda state: state.is_retired(number), event))
