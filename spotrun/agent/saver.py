"""
Turns snapshots in arenas into commits (protocol 20 to 22).

A worker thread uploads one snapshot at a time, and puts a letter about the result into the inbox. At most one other
snapshot waits for its turn. If a newer snapshot comes, it replaces the waiting one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from spotrun.agent.files.commit_files import CommitFiles, FilesTorn, StateRefused, StoredFiles
from spotrun.agent.gang_state import MemberSilent, OthersState
from spotrun.agent.inbox import (
    CommonPartSent,
    Inbox,
    MemberUnheard,
    SaveAbandoned,
    Saved,
    SaveFailed,
    SaveGivenUp,
    SaveRefused,
    SaveTorn,
)
from spotrun.agent.machine.cpu_priority import CpuPriority
from spotrun.agent.recorder import Recorder, unless
from spotrun.agent.snapshots.snapshot import Snapshot, Stalls
from spotrun.agent.status import Status, Upload
from spotrun.checkpoint import layout, retention
from spotrun.checkpoint.manifest import FORMAT, Manifest
from spotrun.checkpoint.unchanged import Unchanged, digest
from spotrun.checkpoint.upload import Abandoned, First, UploadControl, Uploaded, discard, upload
from spotrun.clock import Clock
from spotrun.errors import CheckpointDamaged, SpotrunError, StoreError, WritesRefused
from spotrun.run.events import CheckpointCommitted, CheckpointFailed, CheckpointRetired
from spotrun.run.gang import Layout, Shard
from spotrun.run.reasons import in_one_line, shortened
from spotrun.spec.model import CheckpointSpec
from spotrun.store.port import Store

METRICS_MAX = 50
DETAIL_MAX = 1000
TRY_AGAIN_S = 2.0
"""Seconds of system time until the next try to save a snapshot that a full store has refused."""
LARGE_BYTES = 32 << 20
"""
Minimum size, in bytes, of an upload that yields to training. A smaller upload uses the processor for only a few
hundredths of a second, which does not slow training down noticeably.
"""


@dataclass(frozen=True)
class _Sent:
    """A finished upload. `image_digest` is the digest of the whole image if only its changed parts were sent."""

    uploaded: Uploaded
    versions: dict[str, str]
    image_digest: bytes | None


_NO_IMAGE = _Sent(
    Uploaded(manifest=Manifest(format=FORMAT, size_bytes=0, parts=()), manifest_blake3="", objects=0, sent_bytes=0),
    versions={},
    image_digest=None,
)
"""Result for a command's snapshot, for which no image is uploaded because it consists only of files."""


class Saver:
    """
    Turns snapshots into commits for the agent's main loop.

    A snapshot is in one of two arenas, which share a part of their memory, the common part. The saver calls `spent` as
    soon as the trainer may overwrite the common part, and `released` as soon as it may overwrite the snapshot's whole
    arena.

    Two commits have to be at least 30 s apart. So the caller holds a snapshot that is taken too early (`hold`): it
    waits, although no other upload is in progress. A final snapshot is never held.
    """

    def __init__(
        self,
        worker: Worker,
        released: Callable[[Snapshot], None],
        spent: Callable[[Snapshot], None],
        cpu_priority: CpuPriority,
    ) -> None:
        self._worker = worker
        self._released = released
        self._spent = spent
        self._cpu_priority = cpu_priority
        self._waiting: Snapshot | None = None
        self._in_flight: Snapshot | None = None
        self._torn = False
        """
        True if `spent` was called for the snapshot in flight, so that the trainer may already have overwritten a part
        of it. If the upload then fails, the snapshot is lost.
        """
        self._control = UploadControl()
        self._hurried = False
        self._not_before_s = 0.0
        self.resume_source: int | None = None
        self._work: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        return self._waiting is None and self._in_flight is None

    @property
    def uploading(self) -> bool:
        return self._in_flight is not None

    @property
    def at_work(self) -> bool:
        """
        True while a thread sends a snapshot, or deletes the older checkpoints that are no longer needed. Before the
        thread ends, it puts its letter into the inbox.
        """
        return self._work is not None and self._work.is_alive()

    @property
    def held(self) -> Snapshot | None:
        """The snapshot that waits while no other snapshot is being uploaded; None if there is none."""
        return self._waiting if self._in_flight is None else None

    def offer(self, snapshot: Snapshot) -> None:
        self.drop_waiting()
        self._waiting = snapshot

    def drop_waiting(self) -> None:
        """
        Drop the waiting snapshot, because a newer one replaces it. A final snapshot is kept: no newer one follows it.
        """
        if self._waiting is not None and not self._waiting.taken.final:
            self._released(self._waiting)
            self._waiting = None

    def turn(self, *, hold: bool, overdue: bool) -> None:
        """
        Begin the next upload if a snapshot waits and none is in flight.

        With `hold`, begin only the upload of a final snapshot.

        During an upload, training has priority on the processor. The priority ends when the next snapshot is waiting or
        is due (`overdue`), so that a training that always uses the whole processor cannot delay an upload forever.
        """
        self._begin_next(hold=hold)
        if overdue or self._waiting is not None:
            self._control.come_forward()
        large = self._in_flight is not None and self._in_flight.taken.size_bytes >= LARGE_BYTES
        self._cpu_priority.stand_behind(large and not self._control.forward)

    def _begin_next(self, *, hold: bool) -> None:
        waiting = self._waiting
        if self._in_flight is not None or waiting is None or (hold and not waiting.taken.final):
            return
        if time.monotonic() < self._not_before_s:
            return
        self._waiting, self._in_flight, self._torn = None, waiting, False
        self._control = UploadControl()
        if self._hurried:
            self._control.hurry()
        self._work = threading.Thread(
            target=self._worker.save, args=(waiting, self._control, self.resume_source), name="save", daemon=True
        )
        self._work.start()

    def finish(self, within_s: float) -> None:
        """
        Wait up to `within_s` seconds until the checkpoints that are no longer needed after the newest commit are
        deleted. After the run's end, no other process would delete them.
        """
        if self._work is not None:
            self._work.join(within_s)

    def close(self) -> None:
        """Stop saving. After this, no upload is in flight, and the memory of all snapshots is released."""
        self._control.cancel()
        if self._work is not None:
            self._work.join()
        left, self._in_flight, self._waiting = (self._in_flight, self._waiting), None, None
        for snapshot in left:
            if snapshot is not None:
                self._released(snapshot)

    def abandon(self) -> None:
        """Cancel the upload in flight, unless its snapshot is final."""
        if self._in_flight is not None and not self._in_flight.taken.final:
            self._control.cancel()
            self._spend(self._in_flight)

    def common_part_sent(self, sequence: int) -> None:
        """
        Record that the store has the part of snapshot `sequence` whose memory the two arenas share. The trainer is now
        allowed to overwrite this part, so it can use the other arena. For a final snapshot, do nothing, because no
        other snapshot follows.

        Each trainer numbers its snapshots from 0, so the numbers of two trainers overlap. Still, the number identifies
        the snapshot here: a new trainer starts only when all snapshots of the previous trainer are saved or dropped.
        """
        if self._in_flight is not None and self._in_flight.sequence == sequence and not self._in_flight.taken.final:
            self._spend(self._in_flight)

    def _spend(self, snapshot: Snapshot) -> None:
        if not self._torn:
            self._torn = True
            self._spent(snapshot)

    def hurry(self) -> None:
        """From now on, let uploads use the whole network and processor, because there is a deadline."""
        self._hurried = True
        self._control.hurry()
        self._cpu_priority.stand_behind(False)

    def refused(self) -> None:
        """
        Keep the snapshot that the store refused, and try to save it later. But drop it if a newer snapshot is waiting,
        or if the trainer may have overwritten a part of it.
        """
        self._not_before_s = time.monotonic() + TRY_AGAIN_S
        self.settled(retry=True)

    def settled(self, *, failed: bool = False, retry: bool = False) -> Snapshot | None:
        """
        Record that the upload in flight has ended, and return its snapshot.

        The snapshot is kept for another upload if `retry` is True, or if the upload `failed` and the snapshot is the
        final one. But it is dropped if a newer snapshot is waiting, or if the trainer may have overwritten a part of
        it.
        """
        snapshot, self._in_flight = self._in_flight, None
        if snapshot is None:
            return None
        if self._waiting is None and not self._torn and (retry or (failed and snapshot.taken.final)):
            self._waiting = snapshot
        else:
            self._released(snapshot)
        return snapshot


class Worker:
    """Saves snapshots in threads, one snapshot at a time."""

    def __init__(
        self,
        store: Store,
        recorder: Recorder,
        clock: Clock,
        status: Status,
        inbox: Inbox,
        rule: CheckpointSpec,
        files: CommitFiles,
        world: int | None = None,
        others: OthersState | None = None,
    ) -> None:
        """
        Create a worker. `world` is the number of ranks of a gang, and `others` are the gang's other members. Both are
        None in a run on one instance.
        """
        self._world = world
        self._others = others
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._status = status
        self._inbox = inbox
        self._rule = rule
        self._files = files
        self._unchanged = Unchanged()
        self._stalls = Stalls()
        self._tries = 0
        self._swept = False

    def save(self, snapshot: Snapshot, control: UploadControl, resume_source: int | None) -> None:
        self._tries += 1
        began_s = self._clock.monotonic()
        prefix = snapshot.prefix if self._tries == 1 else f"{snapshot.prefix}-{self._tries}"
        try:
            with self._files.stored(snapshot.frozen, control, final=snapshot.taken.final) as files:
                sent = self._upload(snapshot, prefix, control)
                self._tries = 0
                files = self._joined(snapshot, files, control)
                self._commit(snapshot, prefix, sent, files, began_s)
        except FilesTorn as torn:
            self._inbox.put(SaveTorn(snapshot.sequence, torn.paths))
            return
        except StateRefused as refused:
            self._inbox.put(SaveGivenUp(snapshot.sequence, str(refused)))
            return
        except Abandoned:
            discard(self._store, prefix)
            self._inbox.put(SaveAbandoned(snapshot.sequence))
            return
        except WritesRefused as error:
            discard(self._store, prefix)  # deleting it makes some room
            self._inbox.put(SaveRefused(snapshot.sequence, snapshot.taken.step, snapshot.unsent_bytes, error.one_line))
            return
        except MemberSilent as silent:
            self._inbox.put(MemberUnheard(snapshot.sequence, silent.name))
            return
        except (StoreError, CheckpointDamaged) as error:
            discard(self._store, prefix)
            self._tell_failure(snapshot, error)
            return
        finally:
            self._status.change(upload=None)
        self._retire(snapshot.attempt, resume_source)

    def _joined(self, snapshot: Snapshot, files: StoredFiles | None, control: UploadControl) -> StoredFiles | None:
        """Return `files` with the state files of the gang's other members. Raise the errors of `OthersState.join`."""
        if self._others is None or snapshot.state is None or files is None:
            return files
        return self._files.joined(files, self._others.join(snapshot, files.name, snapshot.state, control))

    def _upload(self, snapshot: Snapshot, prefix: str, control: UploadControl) -> _Sent:
        if snapshot.arena is None:
            return _NO_IMAGE
        size_bytes = snapshot.taken.size_bytes

        def sent(sent_bytes: int) -> None:
            self._status.change(upload=Upload(sent_bytes, size_bytes))

        with snapshot.arena.image(size_bytes) as image:
            header = layout.decode_header(image)
            borrowed = self._unchanged.in_store(image, header, self._lenders(snapshot.attempt))
            image_digest = digest(image) if borrowed.parts else None
            first = First(snapshot.arena.common, lambda: self._inbox.put(CommonPartSent(snapshot.sequence)))
            meta = header.meta
            uploaded = upload(
                self._store,
                prefix,
                image,
                meta,
                begin_bytes=layout.begin_bytes(header),
                borrowed=borrowed,
                first=first,
                sent=sent,
                control=control,
            )
        versions = {name: value for name, value in meta.items() if isinstance(value, str) and name != "work"}
        return _Sent(uploaded, versions, image_digest)

    def _lenders(self, attempt: int) -> set[str]:
        """
        Return the prefixes of the commits from which a new commit is allowed to borrow: it may refer to their objects
        instead of sending the same data again. These are the resumable commits of the same attempt, because their
        objects are not deleted while the new commit is being made.
        """
        commits = self._recorder.state.commits
        return {commit.event.prefix for commit in commits if commit.usable and commit.event.attempt == attempt}

    def _commit(self, snapshot: Snapshot, prefix: str, sent: _Sent, files: StoredFiles | None, began_s: float) -> None:
        taken, uploaded = snapshot.taken, sent.uploaded
        durable_s = self._clock.monotonic() - snapshot.taken_s
        event = CheckpointCommitted(
            attempt=snapshot.attempt,
            incarnation=snapshot.incarnation,
            prefix=prefix,
            manifest_blake3=uploaded.manifest_blake3,
            size_bytes=taken.size_bytes,
            objects=uploaded.objects,
            epoch=taken.epoch,
            batch=taken.batch,
            step=taken.step,
            taken_at=snapshot.taken_at,
            stall_s=self._stalls.since(snapshot),
            durable_s=durable_s,
            why=snapshot.why,
            final=taken.final,
            suspect=not taken.finite,
            versions=sent.versions,
            metrics=finite(taken.metrics),
            borrows=uploaded.manifest.borrows,
            sent_bytes=uploaded.sent_bytes if uploaded.manifest.borrows else None,
            files=None if files is None else files.name,
            fit=taken.fit,
        )
        if self._world is not None:
            event = of_gang(event, snapshot.sequence, self._world)
        try:
            self._recorder.append(unless(lambda state: state.commit_at(prefix), event)).result()
        except SpotrunError:
            return  # this agent is fenced, as a LedgerLost in the inbox says; the new objects are garbage, not damage
        commit = self._recorder.state.commit_at(prefix)
        assert commit is not None
        if snapshot.arena is not None:
            self._unchanged.committed(prefix, uploaded.manifest)
        if files is not None:
            self._files.committed(files)
        self._stalls.accounted(snapshot)
        took_s = self._clock.monotonic() - began_s
        self._inbox.put(Saved(snapshot.sequence, commit.number, took_s, sent.image_digest))

    def _tell_failure(self, snapshot: Snapshot, error: SpotrunError) -> None:
        detail = shortened(in_one_line(str(error)), DETAIL_MAX)
        event = CheckpointFailed(attempt=snapshot.attempt, step=snapshot.taken.step, detail=detail)
        try:
            self._recorder.append(lambda _: event).result()
        except SpotrunError:
            return
        in_a_row = self._recorder.state.attempts[snapshot.attempt].saves_failed_in_a_row
        self._inbox.put(SaveFailed(snapshot.sequence, in_a_row, detail))

    def _retire(self, attempt: int, resume_source: int | None) -> None:
        if self._recorder.state.current_attempt != attempt:
            return  # the next attempt will retire it
        try:
            for number in retention.to_retire(self._recorder.state, self._rule, resume_source):
                self._retire_one(attempt, number)
            self._sweep_once()
            self._files.sweep()
        except SpotrunError:
            return  # fenced: the current agent retires; store unavailable: the next save retires

    def _retire_one(self, attempt: int, number: int) -> None:
        event = CheckpointRetired(attempt=attempt, commit=number)
        self._recorder.append(unless(lambda state: state.is_retired(number), event)).result()
        commit = self._recorder.state.commit(number)
        assert commit is not None
        discard(self._store, commit.event.prefix)

    def _sweep_once(self) -> None:
        """Delete the unused objects of attempts that have ended. Each agent does this once."""
        if self._swept:
            return
        keys = [stored.key for stored in self._store.list(retention.FOLDER)]
        for key in retention.garbage(self._recorder.state, keys):
            self._store.delete(key)
        self._swept = True


def of_gang(event: CheckpointCommitted, snapshot: int, world: int) -> CheckpointCommitted:
    """
    Return the event, extended with the fields of a gang's commit. They show that only rank 0 has stored the state, on
    behalf of all `world` ranks, because the state is the same on all of them (protocol 41, 42).
    """
    shard = Shard(
        rank=0,
        attempt=event.attempt,
        incarnation=event.incarnation,
        snapshot=snapshot,
        step=event.step,
        world=world,
        blake3=event.manifest_blake3,
        size_bytes=event.size_bytes,
        objects=event.objects,
    )
    return replace(event, shards=(shard,), layout=Layout.REPLICATED)


def finite(metrics: dict[str, float]) -> dict[str, float]:
    """
    Return those metrics that are finite, because JSON has no NaN or Inf. Only the first METRICS_MAX metrics are
    considered.
    """
    return {name: value for name, value in list(metrics.items())[:METRICS_MAX] if math.isfinite(value)}
