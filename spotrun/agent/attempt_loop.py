"""
Runs the main loop of an attempt, after its takeover. It handles the letters in the inbox, and performs the actions that
are due. The loop ends when the attempt is drained, ended or completed.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from spotrun.agent import decisions
from spotrun.agent.agent_context import AgentContext
from spotrun.agent.attempt_end import AttemptEnd
from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.backpressure import Backpressure
from spotrun.agent.fits import afresh_after
from spotrun.agent.grace_period import GracePeriod
from spotrun.agent.inbox import (
    TURN_S,
    CameTooLate,
    CommonPartSent,
    EntryUnwritten,
    Exited,
    LedgerLost,
    LedgerRead,
    Letter,
    MemberUnheard,
    NoticeHeard,
    NoticesLost,
    PowerOff,
    SaveAbandoned,
    Saved,
    SaveFailed,
    SaveGivenUp,
    SaveRefused,
    SaveTorn,
    StateFrozen,
    Stranger,
    TrainerMessage,
)
from spotrun.agent.pace import Pace
from spotrun.agent.preemption import Preemption
from spotrun.agent.processes.trainer import Trainer
from spotrun.agent.processes.trainers import Trainers
from spotrun.agent.recorder import ROOM_WITHIN_S
from spotrun.agent.saver import Saver
from spotrun.agent.snapshots.snapshot import Snapshot
from spotrun.agent.trainees.state_watch import StateWatch
from spotrun.agent.trainees.training import Training
from spotrun.agent.trainer_exit import TrainerExit
from spotrun.agent.trainer_start import TrainerStart
from spotrun.checkpoint.restore import Image
from spotrun.run.events import Cause
from spotrun.run.gang import MemberName
from spotrun.run.state import RunState

SAVES_FAILED_MAX = 5


@dataclass(frozen=True, eq=False)
class AttemptLoop:
    _context: AgentContext
    _journal: AttemptJournal
    _trainers: Trainers
    _start: TrainerStart
    _preemption: Preemption
    _exit: TrainerExit
    _saver: Saver
    _watch: StateWatch
    _pace: Pace
    _drain: GracePeriod
    _ending: AttemptEnd
    _backpressure: Backpressure

    def run(self, incarnation: int, ready: Callable[[], Image | None]) -> NoReturn:
        """
        Run the attempt, starting with trainer `incarnation`. `ready` returns a checkpoint that is already on this
        instance, or None if there is none.

        Raises:
            PowerOff: the attempt has ended. The exception's text is the reason.
        """
        self._start.newest(incarnation, ready)
        while True:
            self._turn()

    def save_the_rest(self, goes_on: Callable[[], bool]) -> None:
        """
        Save the last snapshots after the attempt and its trainer have ended. Drop all letters except those about
        saving.
        """
        self._saver.hurry()
        while goes_on() and not self._saver.idle:
            is_at_work = self._saver.at_work
            for letter in self._letters():
                if isinstance(letter, Saved):
                    self._committed(letter)
            if not is_at_work and self._saver.uploading:  # its save has failed
                self._saver.settled()
            self._saver.turn(hold=False, overdue=True)

    @property
    def _trainer(self) -> Trainer:
        return self._trainers.current

    @property
    def _training(self) -> Training:
        return self._start.training

    @property
    def _is_last_chance(self) -> bool:
        """True if no newer snapshot can be taken, because the trainer has ended or a drain has begun."""
        return self._trainer.exited is not None or self._drain.draining_s is not None

    def _turn(self) -> None:
        for letter in self._letters():
            self._take(letter)
        if self._trainer.final is not None and not self._trainer.finished and self._drain.draining_s is not None:
            self._preemption.drained(self._trainer.final)
        self._exit.settle()
        self._follow_fits()
        self._preemption.follow()
        self._trainer.watch(self._pace.step_s, draining=self._drain.draining_s is not None)
        self._exit.follow_others()
        self._pause_if_refused()
        now_s = self._context.clock.monotonic()
        self._start.trainee.turn(now_s)
        hold = not self._is_last_chance and self._pace.too_soon(now_s)
        self._saver.turn(hold=hold, overdue=self._pace.snapshot_due(now_s) is not None)

    def _letters(self) -> Iterator[Letter]:
        """Yield the letters in the inbox. If it is empty, wait briefly for the first letter."""
        wait_s = min(TURN_S, max(0.0, self._preemption.until_next_s))
        try:
            yield self._context.inbox.get(timeout=wait_s)
            while True:
                yield self._context.inbox.get_nowait()
        except queue.Empty:
            return

    def _take(self, letter: Letter) -> None:
        match letter:
            case TrainerMessage() if letter.incarnation == self._trainer.number:
                self._training.hear(letter)
            case Exited() if letter.incarnation == self._trainer.number:
                self._trainer.ended(letter)
                self._saver.turn(hold=False, overdue=True)
            case Stranger(why=why):
                self._context.note(f"refused: {why}")
            case CameTooLate() if letter.incarnation == self._trainer.number:
                self._trainer.another_came(letter)
            case NoticeHeard():
                self._preemption.notice(letter)
            case NoticesLost():
                self._pace.unwarned()
                self._journal.notices_lost(letter)
            case LedgerRead():
                self._read(self._context.recorder.state)
            case LedgerLost():
                raise PowerOff(letter.reason)
            case Saved():
                self._saved(letter)
            case SaveFailed():
                self._save_failed(letter)
            case SaveTorn(paths=paths):
                self._saver.settled()
                self._training.was_torn(paths)
            case SaveRefused():
                self._saver.refused()
                self._backpressure.begins(letter.detail, letter)
            case EntryUnwritten(detail=detail):
                self._start.trainee.unwritten(detail)
            case SaveAbandoned():
                self._abandoned()
            case SaveGivenUp(reason=reason):
                self._saver.settled()
                self._start.trainee.given_up(reason)
            case MemberUnheard(name=name):
                self._unheard(name)
            case StateFrozen():
                self._start.trainee.frozen(letter)
            case CommonPartSent():
                self._saver.common_part_sent(letter.sequence)
            case _:
                pass  # from a trainer that is gone

    def _read(self, state: RunState) -> None:
        if decisions.is_fenced(state, self._journal.attempt):
            raise PowerOff("the run continues on another instance, or has ended")
        self._drain.read(state, self._journal.attempt)
        self._preemption.read(state)

    # -- saving --------------------------------------------------------------------------------------------------

    def _committed(self, letter: Saved) -> Snapshot:
        snapshot = self._saver.settled()
        assert snapshot is not None
        self._trainer.committed(snapshot, letter.commit, letter.digest)
        return snapshot

    def _saved(self, letter: Saved) -> None:
        snapshot = self._committed(letter)
        if snapshot.state is not None:
            self._watch.stored = snapshot.state.survey
        self._pace.committed(letter.took_s, self._context.clock.monotonic())
        self._context.status.facts["commit_s"] = self._pace.commit_s
        self._backpressure.ends()
        self._trainer.go_on()
        self._training.tell_figures()

    def _save_failed(self, letter: SaveFailed) -> None:
        self._saver.settled(failed=True, retry=self._is_last_chance)
        self._context.note(f"a checkpoint could not be saved (failures in a row: {letter.in_a_row}): {letter.detail}")
        if letter.in_a_row >= SAVES_FAILED_MAX:
            self._ending.failed(Cause.SAVES_FAILED, letter.detail)

    def _abandoned(self) -> None:
        """
        Drop a snapshot whose upload was abandoned. If it was a copy of a command's state, the next copy is due
        immediately.
        """
        snapshot = self._saver.settled()
        if snapshot is not None and snapshot.state is not None:
            self._pace.dropped()

    def _unheard(self, name: MemberName) -> None:
        """
        Abandon the checkpoint, because member `name` of the gang did not answer. If the command has already ended,
        there can be no later checkpoint, so end the attempt too.
        """
        self._abandoned()
        if self._trainer.exited is not None:
            self._ending.without((name,), "not reached")
        self._context.note(f"no checkpoint: {name} does not report whether it has state files that the lead lacks")

    def _pause_if_refused(self) -> None:
        """
        Pause the training as long as the store refuses its newest snapshot. The instance costs money during the pause,
        so end the attempt after ROOM_WITHIN_S. During a drain the training is not paused: the training is about to end
        anyway, and its last snapshot might still be saved.
        """
        if not self._backpressure.goes_on:
            return
        if self._backpressure.is_too_long:
            self._give_up_waiting()
        if not self._saver.idle and self._drain.draining_s is None and not self._trainer.finished:
            self._trainer.pause()

    def _give_up_waiting(self) -> NoReturn:
        detail = f"the store has had no room for {ROOM_WITHIN_S / 60:.0f} min: {self._backpressure.detail}"
        if self._backpressure.is_in_ledger:
            self._ending.failed(Cause.STORE_FULL, detail, lossy=True)
        self._trainers.close()
        raise PowerOff(detail)

    # -- the next fit() ---------------------------------------------------------------------------------------------

    def _follow_fits(self) -> None:
        """
        Begin the script's next fit(), if the script has called it and the final checkpoint of the previous fit() is
        durable. During a drain, end the attempt instead.
        """
        trainer = self._trainer
        if trainer.fit_wanted is None or trainer.exited or (trainer.final is None and not trainer.is_behind):
            return
        if self._drain.draining_s is not None:
            self._preemption.drained(trainer.final)
        start = trainer.take_later()
        if start is None:
            last = self._context.recorder.state.commit(trainer.final or 0)
            assert last is not None
            start = afresh_after(self._context, last)
        trainer.begin_fit(start)
        self._pace.new_trainer()
