"""
One attempt: its main loop. Threads put letters into the inbox; everything is decided and done here, in one thread.

    take over -> restore -> train (snapshots become commits) -> drained | ended | completed -> power off

The agent's ends are events of the ledger, written before the instance goes: nobody has to guess.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterator

from spotrun import trainer_link
from spotrun.agent import decisions
from spotrun.agent.arenas import Arenas
from spotrun.agent.inbox import (
    Exited,
    LedgerLost,
    LedgerRead,
    Letter,
    NoticeHeard,
    PowerOff,
    Said,
    SaveAbandoned,
    Saved,
    SaveFailed,
)
from spotrun.agent.leave import Leave, Stage
from spotrun.agent.node import Node
from spotrun.agent.pace import Pace
from spotrun.agent.recorder import unless
from spotrun.agent.saver import DETAIL_MAX, Saver, Snapshot, finite
from spotrun.agent.trainer import Trainer, training_command, user_environment
from spotrun.checkpoint.restore import Found, Image, newest_readable
from spotrun.errors import CheckpointDamaged, SpotrunError, StoreError, StoreUnavailable
from spotrun.events import (
    AnyEvent,
    AttemptDrained,
    AttemptEnded,
    AttemptStarted,
    Cause,
    EpochCompleted,
    NoticeSeen,
    ResumedFrom,
    RunCompleted,
    TrainerExited,
    TrainingStarted,
)
from spotrun.ledger import Decide
from spotrun.state import Attempt, RunState
from spotrun.state import Trainer as TrainerRecord
from spotrun.trainer_link import (
    ArenaFree,
    ArenasWanted,
    Committed,
    DrainWanted,
    EpochEnded,
    Finished,
    Hello,
    Progress,
    Refused,
    Resume,
    SnapshotTaken,
    SnapshotWanted,
)
from spotrun.units import Steps

SEED = 0
"""Of the data order, the same in every run: a job trains alike on spot and on demand; scripts vary it by their seed."""
TURN_S = 0.1
"""System time: how long the loop waits for a letter at most."""
APPEND_WITHIN_S = 3700.0
"""System time; longer than the recorder's own patience."""
SAVES_FAILED_MAX = 5
HANG_FLOOR_S = float(os.environ.get("SPOTRUN_HANG_FLOOR_S", "30"))
"""System time; tests have less of it."""
ABORT_GRACE_S = 5.0
"""System time that a hung trainer has to write down its stacks."""
KILL_WITHIN_S = 30.0


class AttemptLoop:
    """
    Runs the trainers of one attempt. `spare` is a trainer that was started before the takeover and waits in its set-up.
    """

    def __init__(self, node: Node, spare: Trainer | None = None) -> None:
        self._node = node
        self._trainer = spare
        self._saver = Saver(
            node.store,
            node.recorder,
            node.clock,
            node.status,
            node.inbox,
            node.spec.checkpoint.keep_last,
            self._release,
        )
        self._leave = Leave(node.clock)
        self._attempt = -1
        self._image: Image | None = None
        self._reset(0)

    def _reset(self, incarnation: int) -> None:
        """Everything that belongs to one trainer."""
        self._incarnation = incarnation
        self._arenas = Arenas()
        self._sequence = 0
        self._drop_image()
        self._resume: Resume | None = None
        self._resumed = False
        self._quiet_since_s = 0.0
        self._progress: Progress | None = None
        self._finished: Finished | None = None
        self._refused: Refused | None = None
        self._final: tuple[Snapshot, int] | None = None
        self._exited: Exited | None = None
        self._asked: str | None = None
        self._unkept_stall_s = 0.0
        self._abort_until: float | None = None
        self._hung = False
        self._log_start = self._node.console.size_bytes()

    # -- from the beginning to the end ---------------------------------------------------------------------------

    def run(self, ready: Image | None = None) -> None:
        """
        Until the attempt is over. `ready` is a prefetched checkpoint.

        Raises:
            PowerOff: always, with the reason.
        """
        attempt = self._take_over()
        self._attempt = attempt.number
        self._node.status.change(phase="restore", attempt=attempt.number)
        self._pace = Pace(self._node.spec.checkpoint.every, self._committed_s())
        self._leave.read(self._state, self._attempt)
        self._begin(len(attempt.trainers), ready)
        while True:
            self._turn()

    def _take_over(self) -> Attempt:
        launch = self._node.place.launch
        started = AttemptStarted(
            launch=launch, instance_id=self._node.place.instance_id, booted_at=self._node.booted_at
        )
        self._append(unless(lambda state: state.launches[launch].attempt is not None, started))
        number = self._state.launches[launch].attempt
        assert number is not None
        return self._state.attempts[number]

    def fail_setup(self, detail: str) -> None:
        """Take over only to say why there will be no training."""
        self._attempt = self._take_over().number
        self._end_with_error(Cause.USER_ERROR, detail)

    def _committed_s(self) -> float | None:
        commit = self._state.latest_commit()
        if commit is None:
            return None
        return self._node.clock.monotonic() - (self._node.clock.now() - commit.at).total_seconds()

    def _begin(self, incarnation: int, ready: Image | None = None) -> None:
        """Start a trainer, and fetch what it resumes from beside its imports."""
        spare = self._trainer if self._trainer is not None and self._trainer.incarnation == incarnation else None
        self._reset(incarnation)
        self._pace.new_trainer()
        self._trainer = spare or start_trainer(self._node, incarnation)
        found = self._restore(ready)
        commit = None if found is None else found.image.commit
        resumed = ResumedFrom(
            attempt=self._attempt,
            incarnation=incarnation,
            commit=None if commit is None else commit.number,
            epoch=0 if commit is None else commit.event.epoch,
            step=0 if commit is None else commit.event.step,
            skipped=() if found is None else found.skipped,
        )
        self._append(unless(lambda state: len(state.attempts[self._attempt].trainers) > incarnation, resumed))
        self._saver.resume_source = resumed.commit
        every = self._node.spec.checkpoint.every
        self._image = None if found is None else found.image
        self._resume = Resume(
            size_bytes=0 if self._image is None else self._image.size_bytes,
            epoch=resumed.epoch,
            step=resumed.step,
            every_steps=every.count if isinstance(every, Steps) else None,
            seed=SEED,
            fresh=commit is None,
        )
        self._node.status.change(phase="restore", epoch=resumed.epoch, step=resumed.step, batch=0)
        self._send_resume()

    def _restore(self, ready: Image | None) -> Found | None:
        """
        The newest checkpoint that is whole; None where there never was one.

        Raises:
            PowerOff: none can be read. Training never begins at zero in silence (promise I4).
        """
        candidates = self._state.restore_candidates()
        if not candidates:
            if self._state.commits:
                self._node.note("starts from zero: no checkpoint of this run may be resumed from (NaN, or given up)")
            return None
        try:
            return newest_readable(self._node.store, candidates, ready)
        except (CheckpointDamaged, StoreError) as error:
            passing = isinstance(error, StoreUnavailable)  # another instance may be luckier
            damaged = isinstance(error, CheckpointDamaged)
            cause = Cause.INTERRUPTED if passing else Cause.EXTERNAL if damaged else Cause.ACCESS
            self._end_with_error(cause, f"CheckpointDamaged: {error}" if cause is Cause.EXTERNAL else str(error))
            raise AssertionError from error

    # -- one turn ------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        for letter in self._letters():
            self._take(letter)
        if self._final is not None and not self._finished:
            self._end_drained(*self._final)
        self._settle_exit()
        self._follow_leave()
        self._watch_for_hang()
        self._ask_for_snapshot()
        final = self._exited is not None or self._leave.draining_s is not None
        self._saver.turn(hold=not final and self._pace.too_soon(self._now_s))

    def _letters(self) -> Iterator[Letter]:
        """What has come; the first is waited for a little."""
        wait_s = min(TURN_S, max(0.0, self._leave.until_next_s(self._pace)))
        try:
            yield self._node.inbox.get(timeout=wait_s)
            while True:
                yield self._node.inbox.get_nowait()
        except queue.Empty:
            return

    def _take(self, letter: Letter) -> None:
        match letter:
            case Said() if letter.incarnation == self._incarnation:
                self._hear(letter)
            case Exited() if letter.incarnation == self._incarnation:
                self._exited = letter
                self._saver.turn(hold=False)
            case NoticeHeard():
                self._notice(letter)
            case LedgerRead():
                self._read(letter.state)
            case LedgerLost():
                raise PowerOff(letter.reason)
            case Saved():
                self._saved(letter)
            case SaveFailed():
                self._save_failed(letter)
            case SaveAbandoned():
                self._saver.settled()
            case _:
                pass  # of a trainer that is gone

    def _read(self, state: RunState) -> None:
        if state.terminal is not None or state.current_attempt != self._attempt:
            raise PowerOff("the run goes on elsewhere, or has ended")
        self._leave.read(state, self._attempt)

    # -- what the trainer says -----------------------------------------------------------------------------------

    def _hear(self, said: Said) -> None:
        match said.message:
            case Hello() as hello:
                assert self._trainer is not None
                self._trainer.hello = hello
                self._quiet_since_s = said.at_s
                self._send_resume()
            case ArenasWanted(size_bytes=size_bytes):
                arenas = self._arenas.grant(size_bytes)
                granted = trainer_link.Arenas(size_bytes=size_bytes, count=len(arenas), first=arenas[0].number)
                assert self._trainer is not None
                self._trainer.send(granted, arenas)
            case Progress() as progress:
                self._progressed(progress, said.at_s)
            case SnapshotTaken() as taken:
                self._snapshot(taken, said)
            case EpochEnded() as ended:
                self._epoch_ended(ended, said)
            case Refused() as refused:
                self._refused = refused
                self._abort_until = time.monotonic() + ABORT_GRACE_S  # it is about to exit by itself
            case Finished() as finished:
                self._finished = finished
            case _:
                pass

    def _send_resume(self) -> None:
        """Once both sides are ready."""
        if self._resumed or self._resume is None or self._trainer is None or self._trainer.hello is None:
            return
        self._resumed = True
        self._quiet_since_s = self._now_s
        self._trainer.send(self._resume, fds=() if self._image is None else (self._image.fd,))
        self._drop_image()

    def _drop_image(self) -> None:
        if self._image is not None:
            self._image.close()
            self._image = None

    def _progressed(self, progress: Progress, at_s: float) -> None:
        if self._progress is None:
            started = TrainingStarted(attempt=self._attempt, incarnation=self._incarnation, step=progress.step)
            self._append_later(unless(lambda state: self._trainer_of(state).started_at is not None, started))
            self._node.status.change(phase="train")
        self._progress = progress
        self._quiet_since_s = at_s
        self._pace.progressed(progress, at_s)
        self._node.status.facts["step_s"] = self._pace.step_s
        self._node.status.progress(progress)

    def _trainer_of(self, state: RunState) -> TrainerRecord:
        return state.attempts[self._attempt].trainers[self._incarnation]

    def _epoch_ended(self, ended: EpochEnded, said: Said) -> None:
        self._pace.epoch_ended(ended.step)
        completed = EpochCompleted(
            attempt=self._attempt,
            epoch=ended.epoch,
            step=ended.step,
            ended_at=said.at,
            metrics=finite(ended.metrics),
        )
        self._append_later(
            unless(lambda state: state.epochs and state.epochs[-1].event.epoch >= ended.epoch, completed)
        )

    def _snapshot(self, taken: SnapshotTaken, said: Said) -> None:
        arena = self._arenas.fill(taken.arena)
        if arena is None or taken.size_bytes > arena.size_bytes:
            self._node.note(f"the trainer filled arena {taken.arena}, which is not its own: ignored")
            return
        stall_s = taken.stall_s * self._node.clock.scale
        self._pace.snapshot(taken.step, stall_s, said.at_s)
        self._unkept_stall_s += stall_s
        snapshot = Snapshot(
            attempt=self._attempt,
            incarnation=self._incarnation,
            sequence=self._sequence,
            arena=arena,
            taken=taken,
            taken_at=said.at,
            taken_s=said.at_s,
            stall_s=self._unkept_stall_s,
            why=self._why(taken),
        )
        self._sequence += 1
        self._asked = None
        self._node.status.facts["stall_s"] = self._pace.stall_s
        self._saver.offer(snapshot)
        if taken.final and self._leave.deadline_s is not None:
            self._saver.abandon()

    def _why(self, taken: SnapshotTaken) -> str:
        if taken.final:
            return self._leave.reason or "end of training"
        return self._asked or "steps"

    def _release(self, snapshot: Snapshot) -> None:
        """The saver is done with an arena."""
        if snapshot.incarnation == self._incarnation:
            self._arenas.free(snapshot.arena.number)
            if self._trainer is not None:
                self._trainer.send(ArenaFree(arena=snapshot.arena.number))
        else:
            snapshot.arena.close()

    # -- saving --------------------------------------------------------------------------------------------------

    def _saved(self, letter: Saved) -> None:
        snapshot = self._saver.settled()
        assert snapshot is not None
        self._unkept_stall_s -= snapshot.stall_s
        self._pace.committed(letter.durable_s, self._now_s)
        self._node.status.facts["commit_s"] = self._pace.commit_s
        if self._trainer is not None:
            self._trainer.send(Committed(step=snapshot.taken.step))
        if snapshot.taken.final:
            self._final = snapshot, letter.commit

    def _save_failed(self, letter: SaveFailed) -> None:
        last_chance = self._exited is not None or self._leave.draining_s is not None
        self._saver.settled(failed=True, retry=last_chance)
        self._node.note(f"a checkpoint could not be saved ({letter.in_a_row} in a row): {letter.detail}")
        if letter.in_a_row >= SAVES_FAILED_MAX:
            self._end_with_error(Cause.SAVES_FAILED, letter.detail)

    def _ask_for_snapshot(self) -> None:
        if self._asked or self._progress is None or self._finished or self._exited or not self._saver.idle:
            return
        if self._leave.draining_s is not None or not self._can_snapshot:
            return
        why = self._pace.snapshot_due(self._now_s)
        if why is not None and self._trainer is not None:
            self._asked = why
            self._trainer.send(SnapshotWanted(why=why))  # type: ignore[arg-type]

    @property
    def _can_snapshot(self) -> bool:
        return self._trainer is not None and self._trainer.hello is not None

    # -- leaving -------------------------------------------------------------------------------------------------

    def _notice(self, notice: NoticeHeard) -> None:
        self._node.note(f"{notice.kind} notice" + (f" for {notice.deadline_at}" if notice.deadline_at else ""))
        if notice.kind == "rebalance":
            self._pace.rebalance()
            seen = NoticeSeen(attempt=self._attempt, kind="rebalance", deadline_at=None)
            self._append_later(unless(lambda state: state.attempts[self._attempt].rebalance, seen))
            return
        self._leave.notice(notice)
        seen = NoticeSeen(attempt=self._attempt, kind="termination", deadline_at=notice.deadline_at)
        self._append_later(unless(lambda state: state.attempts[self._attempt].notice is not None, seen))

    def _follow_leave(self) -> None:
        stage = self._leave.stage(self._pace)
        if stage is Stage.DRAINING and self._leave.draining_s is None:
            self._drain()
        if stage is Stage.TOO_LATE:
            self._end_undrained()

    def _drain(self) -> None:
        """No step is wanted any more. A trainer that has done none, or makes no snapshots, is ended as it is."""
        self._leave.begin()
        if self._finished or self._exited:
            return  # it ends by itself, as soon as its last snapshot is saved
        self._node.status.change(phase="drain")
        if self._can_snapshot and self._progress is not None:
            self._saver.drop_waiting()
            assert self._trainer is not None
            self._trainer.send(DrainWanted(reason=self._leave.reason))
            return
        stopped_at = self._node.clock.now()
        if self._trainer is not None and not self._can_snapshot:
            self._trainer.terminate()
            self._trainer.wait(ABORT_GRACE_S if self._leave.deadline_s is None else 0.2)
        self._kill_trainer()
        self._end(
            AttemptDrained(
                attempt=self._attempt,
                final_commit=self._newest_commit(),
                stopped_at=stopped_at,
                reason=self._leave.reason,
            )
        )

    def _end_drained(self, final: Snapshot, commit: int) -> None:
        self._end(
            AttemptDrained(
                attempt=self._attempt,
                final_commit=self._newest_commit() if not final.taken.finite else commit,
                stopped_at=final.taken_at,
                reason=self._leave.reason,
            )
        )

    def _end_undrained(self) -> None:
        """Time is up. What was done since the newest commit is lost, and the ledger says so."""
        if self._final is not None:  # only the script's end after fit() is missing
            self._end_drained(*self._final)
        self._kill_trainer()
        self._end_attempt(self._leave.cause, f"{self._leave.reason}: the final snapshot was not durable in time")

    def _newest_commit(self) -> int | None:
        newest = self._state.latest_commit()
        return None if newest is None else newest.number

    # -- the end of a trainer ------------------------------------------------------------------------------------

    def _settle_exit(self) -> None:
        """First what it left is saved, then its end is looked at."""
        exited = self._exited
        if exited is None or not self._saver.idle:
            return
        if self._refused is not None:
            self._end_with_error(Cause.USER_ERROR, f"{self._refused.reason}; try: {self._refused.hint}")
        if exited.exit_code == 0 and not self._hung and (self._finished or self._never_trained()):
            self._complete()
        if self._leave.draining_s is not None:
            self._end_after_drain_exit()
        self._restart_or_give_up(exited)

    def _never_trained(self) -> bool:
        """A command that makes no checkpoints: its end is the run's. One that has some must say that it finished."""
        return self._progress is None and not self._state.commits

    def _complete(self) -> None:
        final = self._final
        commit = final[1] if final is not None and final[0].taken.finite else self._newest_commit()
        step = self._finished.step if self._finished is not None else self._last_step
        self._end(RunCompleted(attempt=self._attempt, final_commit=commit, step=step))

    def _end_after_drain_exit(self) -> None:
        """It died while it was asked to stop: what was snapshot is saved, and another instance goes on."""
        self._end_attempt(self._leave.cause, f"{self._leave.reason}: the trainer ended before its final snapshot")

    def _restart_or_give_up(self, exited: Exited) -> None:
        cause = decisions.exit_cause(exited.exit_code, hung=self._hung)
        words = decisions.exit_words(exited.exit_code, cause)
        tail = self._node.console.tail(since=self._log_start).strip()
        event = TrainerExited(
            attempt=self._attempt,
            incarnation=self._incarnation,
            cause=cause,
            exit_code=exited.exit_code,
            step=self._last_step,
            detail=f"{words}\n{tail[-DETAIL_MAX:]}",
        )
        self._append(unless(lambda state: self._trainer_of(state).exited is not None, event))
        reason = decisions.why_give_up(self._state, event, self._node.spec.retry.max_restarts)
        if reason is not None:
            self._end_attempt(cause, f"{words}; {reason}\n{tail[-DETAIL_MAX:]}")
        self._node.note(f"the trainer ended ({words}); it is started again")
        self._arenas.close()
        self._node.status.change(phase="restore")
        self._begin(self._incarnation + 1)

    def _watch_for_hang(self) -> None:
        if self._abort_until is not None and time.monotonic() >= self._abort_until and self._trainer is not None:
            self._abort_until = None
            self._trainer.kill()
        if not self._resumed or self._hung or self._exited or self._finished or self._leave.draining_s is not None:
            return
        limit_s = decisions.hang_limit_s(
            self._pace.step_s,
            self._node.spec.policy.hang_after,
            HANG_FLOOR_S * self._node.clock.scale,
            progressed=self._progress is not None,
        )
        if self._now_s - self._quiet_since_s >= limit_s and self._trainer is not None:
            self._hung = True
            self._node.note(f"no progress for {limit_s:.0f} s: the trainer is ended; its stacks follow")
            self._abort_until = time.monotonic() + ABORT_GRACE_S
            self._trainer.abort()

    # -- ends ----------------------------------------------------------------------------------------------------

    def _end_with_error(self, cause: Cause, detail: str) -> None:
        self._kill_trainer()
        self._end_attempt(cause, detail)

    def _end_attempt(self, cause: Cause, detail: str) -> None:
        step = self._last_step
        self._end(AttemptEnded(attempt=self._attempt, cause=cause, last_step=step, detail=detail[: 2 * DETAIL_MAX]))

    def _end(self, event: AnyEvent) -> None:
        """The attempt's last word, then power off."""
        self._append(unless(lambda state: state.attempts[self._attempt].end is not None, event))
        self._kill_trainer()
        raise PowerOff(type(event).__name__)

    def _kill_trainer(self) -> None:
        if self._trainer is not None:
            self._trainer.kill()
            self._trainer.wait(KILL_WITHIN_S)

    close = _kill_trainer

    # -- small things --------------------------------------------------------------------------------------------

    @property
    def _state(self) -> RunState:
        return self._node.recorder.state

    @property
    def _now_s(self) -> float:
        return self._node.clock.monotonic()

    @property
    def _last_step(self) -> int:
        if self._progress is not None:
            return self._progress.step
        return self._resume.step if self._resume is not None else 0

    def _append(self, decide: Decide) -> None:
        """
        Raises:
            PowerOff: this agent may not write any more.
        """
        try:
            self._node.recorder.append(decide).result(APPEND_WITHIN_S)
        except SpotrunError as error:
            raise PowerOff(error.message) from error

    def _append_later(self, decide: Decide) -> None:
        """Without waiting. If it is refused the inbox will say so."""
        self._node.recorder.append(decide)


def start_trainer(node: Node, incarnation: int) -> Trainer:
    trainer = Trainer(incarnation, node.inbox, node.clock)
    output = node.console.open()
    try:
        environment = user_environment(node.spec, node.place.folder, node.place.instance_id)
        command = training_command(node.spec)
        trainer.start(command, node.place.work, environment, output, node.place.trainer_mark)
    finally:
        os.close(output)
    return trainer
