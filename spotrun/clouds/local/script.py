"""
The script of a simulated market, which tells the local cloud what to do to a run's instances. (This is not the user's
training script.) It is a list of steps, such as "interrupt the instance at epoch 3". The steps happen in order. Each
step happens once in a run, when its trigger becomes true.

One file lists the steps that have happened. It is shared by a run's instances and by the processes that launch these
instances. Each of these processes checks the trigger of the next step. The process that first sees the trigger become
true appends the step to the file, under a lock. Each instance then reads the file and carries out the steps that affect
it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from spotrun.clouds.local.config import ScriptStep
from spotrun.clouds.local.records import try_flock
from spotrun.offering import CapacityType
from spotrun.run.bounds import Count, OutOfBounds, decode
from spotrun.spec.market_script import Action, After, EpochAt, Trigger, UploadAt
from spotrun.store.atomic_write import write_atomically


class StepFired(msgspec.Struct, frozen=True, kw_only=True):
    """
    A step that has happened. `at` is the time of its trigger. `instance_id` is the instance that detected the trigger;
    None if it was detected by a process that launches instances. If the step affects several members of a gang,
    `others` are the affected members other than `instance_id`.
    """

    at: datetime
    instance_id: str | None = None
    others: tuple[str, ...] = ()

    def met(self, instance_id: str) -> bool:
        return instance_id == self.instance_id or instance_id in self.others


class UploadStatus(msgspec.Struct, frozen=True):
    sent_bytes: float = 0
    size_bytes: float = 0


class NodeStatus(msgspec.Struct, frozen=True):
    """
    The part of an instance's status file that is needed to decide whether a trigger has become true. Epochs count from
    0.
    """

    phase: str = "boot"
    epoch: Count | None = None
    batch: Count | None = None
    batches: Count | None = None
    upload: UploadStatus | None = None


class Observer(msgspec.Struct, frozen=True):
    """
    The instance that checks whether a trigger has become true, with its capacity type and the progress of its training.

    Once an instance has a notice, the progress of its training no longer counts. A step that waits for progress then
    waits for the progress of the next attempt.
    """

    instance_id: str
    capacity_type: CapacityType
    under_notice: bool
    status: NodeStatus

    @property
    def can_be_taken(self) -> bool:
        trains = self.status.phase in ("train", "drain")
        return trains and self.capacity_type is CapacityType.SPOT and not self.under_notice


class Script:
    """One run's script, with the steps that have happened. `origin` is the beginning of run time."""

    def __init__(self, path: Path, steps: tuple[ScriptStep, ...], origin: datetime) -> None:
        self._path = path
        self._steps = steps
        self._triggers = [step.trigger for step in steps]
        self._origin = origin
        self._signature: tuple[int, int] | None = None
        self._happened: list[StepFired] = []

    def happened(self) -> list[tuple[ScriptStep, StepFired]]:
        self._refresh()
        return list(zip(self._steps, self._happened, strict=False))

    def spot_is_gone(self) -> bool:
        actions = [step.then for step, _ in self.happened() if not step.then.meets_one]
        return actions[-1:] == [Action.NO_SPOT]

    def waits_for_upload(self) -> bool:
        """
        Return whether the next step is triggered by the progress of an upload. If so, the caller has to check more
        often, because an upload may take only milliseconds.
        """
        return len(self._happened) < len(self._steps) and isinstance(self._next_trigger(), UploadAt)

    def advance(
        self, now: datetime, observer: Observer | None, others: Callable[[], Sequence[str]] = lambda: ()
    ) -> None:
        """
        Record the next step if its trigger has become true. If another process is recording the step, do nothing.

        If the step affects several instances, `others` is called to find the other instances that can be interrupted.
        """
        if self._came_true_at(now, observer) is None:
            return
        with self._lock() as locked:
            if locked and (at := self._came_true_at(now, observer)) is not None:
                wanted = self._steps[len(self._happened)].members - 1
                met = tuple(others()[:wanted]) if wanted else ()
                if len(met) == wanted:
                    instance_id = None if observer is None else observer.instance_id
                    self._append(StepFired(at=at, instance_id=instance_id, others=met))

    def _came_true_at(self, now: datetime, observer: Observer | None) -> datetime | None:
        self._refresh()
        if len(self._happened) >= len(self._steps):
            return None
        meets_one = self._steps[len(self._happened)].then.meets_one
        if meets_one and not (observer is not None and observer.can_be_taken):
            return None
        trigger = self._next_trigger()
        if isinstance(trigger, After):
            due_at = self._last_at() + trigger.duration
            return None if now < due_at else now if meets_one else due_at
        return now if observer is not None and has_come_true(trigger, observer) else None

    def _next_trigger(self) -> Trigger:
        return self._triggers[len(self._happened)]

    def _last_at(self) -> datetime:
        return self._happened[-1].at if self._happened else self._origin

    def _refresh(self) -> None:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return
        if (signature := (stat.st_ino, stat.st_mtime_ns)) != self._signature:
            self._happened = msgspec.json.decode(self._path.read_bytes(), type=list[StepFired])
            self._signature = signature

    def _append(self, fact: StepFired) -> None:
        self._happened = [*self._happened, fact]
        write_atomically(self._path, msgspec.json.encode(self._happened))

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """
        Try to take the lock, and yield whether that succeeded. If another process holds the lock, do not wait, because
        that process may be suspended and hold the lock for a long time.
        """
        descriptor = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield try_flock(descriptor)
        finally:
            os.close(descriptor)


class StatusFile:
    """The last status that an instance's agent wrote. The file is read again only after it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._signature: tuple[int, int] | None = None
        self._status = NodeStatus()

    def read(self) -> NodeStatus:
        try:
            stat = self._path.stat()
            if (signature := (stat.st_ino, stat.st_mtime_ns)) != self._signature:
                self._status = decode(self._path.read_bytes(), NodeStatus)
                self._signature = signature
        except (OSError, OutOfBounds):
            pass  # the file is absent, or something else wrote it: keep the last good status
        return self._status


def has_come_true(trigger: EpochAt | UploadAt, observer: Observer) -> bool:
    status = observer.status
    if observer.under_notice:
        return False
    if isinstance(trigger, UploadAt):
        upload = status.upload
        return upload is not None and 0 < upload.size_bytes * trigger.fraction <= upload.sent_bytes
    if status.phase != "train" or status.epoch is None:
        return False
    done = (status.batch or 0) / status.batches if status.batches else 0.0
    return (status.epoch + 1, done) >= (trigger.epoch, trigger.fraction)
