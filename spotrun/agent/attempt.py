"""
One attempt: its main loop. Threads put letters into the inbox; everything is decided and done here, in one thread.

    take over -> restore -> train (snapshots become commits) -> drained | ended | completed -> power off

Each end is an event of the ledger, written before the instance goes.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import NoReturn

from spotrun.agent import decisions, groups
from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.commit_files import CommitFiles
from spotrun.agent.conversation import Conversation
from spotrun.agent.cpu_priority import CpuPriority
from spotrun.agent.decisions import StateChoice
from spotrun.agent.drain import Drain, Stage
from spotrun.agent.ending import Ending
from spotrun.agent.fits import Start, afresh_after, told_to_trainer
from spotrun.agent.inbox import (
    CameTooLate,
    CommonPartSent,
    EntryUnwritten,
    Exited,
    LedgerLost,
    LedgerRead,
    Letter,
    NoticeHeard,
    NoticesLost,
    PowerOff,
    Said,
    SaveAbandoned,
    Saved,
    SaveFailed,
    SaveGivenUp,
    SaveRefused,
    SaveTorn,
    StateFrozen,
    Stranger,
)
from spotrun.agent.node import Node
from spotrun.agent.outputs import OutputKeeper
from spotrun.agent.pace import Pace
from spotrun.agent.pieces import Pieces
from spotrun.agent.put_back import tidy
from spotrun.agent.recorder import ROOM_WITHIN_S
from spotrun.agent.refusal import Refusal
from spotrun.agent.resumption import NothingToResumeFrom, newest_checkpoint, put_state_back, starts, still_here
from spotrun.agent.saver import Saver, Worker
from spotrun.agent.state_keeper import StateKeeper
from spotrun.agent.state_watch import StateWatch
from spotrun.agent.trainer import Trainer
from spotrun.agent.trainer_process import TrainerProcess
from spotrun.agent.trainers import Trainers
from spotrun.checkpoint.restore import Image
from spotrun.market.hazard import observed_hazard
from spotrun.run.events import Cause, TrainerExited
from spotrun.run.state import RunState

TURN_S = 0.1
"""System time: how long the loop waits for a letter at most."""
SAVES_FAILED_MAX = 5
RETIRED_WITHIN_S = 10.0
"""System time that a run which is complete has for deleting the checkpoints that it need not keep."""
FILES_STOP_BEFORE_S = 3.0
"""System time before a noticed attempt's last snapshot, in which files of the script that are being sent arrive."""


class AttemptLoop:
    """
    Runs the trainers of one attempt. `spare` is a trainer that was started before the takeover and waits in its set-up.
    """

    def __init__(self, node: Node, spare: TrainerProcess | None = None) -> None:
        self._node = node
        self._trainers = Trainers(node, spare)
        self._pieces = Pieces(node)
        self._files = CommitFiles(node, self._pieces)
        worker = Worker(
            node.store, node.recorder, node.clock, node.status, node.inbox, node.spec.checkpoint, self._files
        )
        self._saver = Saver(worker, self._trainers.release, self._trainers.spend, CpuPriority())
        self._watch = StateWatch(node, self._files)
        self._drain = Drain(node.clock)
        assignment = node.assignment
        self._journal = AttemptJournal(
            node.recorder, assignment.launch, assignment.instance_id, node.booted_at, node.setup
        )
        self._outputs = OutputKeeper(node, self._pieces)
        self._ending = Ending(node, self._journal, self._drain, self._trainers, self._outputs)
        self._refusal = Refusal(node, self._journal)
        self._torn = False
        """A snapshot was torn by its files: another one is wanted at once."""

    # -- from the beginning to the end ---------------------------------------------------------------------------

    def run(self, ready: Image | None = None) -> NoReturn:
        """
        Until the attempt is over. `ready` is a prefetched checkpoint.

        Raises:
            PowerOff: always, with the reason.
        """
        attempt = self._journal.take_over()
        self._node.status.change(phase="restore", attempt=attempt.number)
        hazard = observed_hazard(self._state, self._node.clock.now())
        commit = self._state.latest_commit()
        committed_s = None if commit is None else self._now_s - (self._node.clock.now() - commit.at).total_seconds()
        self._pace = Pace(self._node.spec.checkpoint.every, committed_s, hazard, self._now_s)
        self._drain.read(self._state, attempt.number)
        self._pieces.begin(attempt.number)
        self._outputs.start(attempt.number)
        self._keeper = StateKeeper(self._node, self._watch, self._journal, self._pace, self._saver, self._drain)
        self._begin_newest(len(attempt.trainers), lambda: ready)
        while True:
            self._turn()

    def fail_setup(self, detail: str) -> NoReturn:
        """Take over only to say why there will be no training."""
        self._journal.take_over()
        self._ending.failed(Cause.USER_ERROR, detail)

    def close(self) -> None:
        """End the trainers, with all that they started, daemons too."""
        self._outputs.close()
        self._watch.close()
        self._trainers.close()
        groups.end_left_over(self._node.assignment.trainer_mark, self._node.assignment.instance_id)

    def _begin_newest(self, incarnation: int, ready: Callable[[], Image | None]) -> None:
        newest = self._state.latest_commit()
        if newest is None or newest.event.has_image:
            self._begin(incarnation, ready)
        else:
            self._begin_command(incarnation, StateChoice.NEWEST)

    def _begin_command(self, incarnation: int, choice: StateChoice) -> None:
        """Put the state of a command in its place, and start it."""
        self._keeper.rest()
        self._node.status.change(phase="restore")
        try:
            found = put_state_back(self._node, self._journal.attempt, self._files, choice)
        except NothingToResumeFrom as reason:
            self._ending.failed(reason.cause, reason.detail)
        self._journal.resumed(incarnation, found.event(self._journal.attempt, incarnation))
        self._saver.resume_source = found.commit.number
        trainer = self._started(incarnation)
        self._node.status.change(phase="train")
        trainer.begin_at(Start(told_to_trainer(self._node, None)))
        self._keeper.begins(trainer, put_back=not found.in_place)

    def _started(self, incarnation: int) -> Trainer:
        trainer = self._trainers.start(incarnation)
        self._conversation = Conversation(self._node, trainer, self._journal, self._pace, self._saver, self._drain)
        self._pace.new_trainer()
        self._torn = False
        return trainer

    def _begin(self, incarnation: int, ready: Callable[[], Image | None]) -> None:
        """Start a trainer, and fetch what it resumes from beside its imports; what is `ready` need not be fetched."""
        tidy(self._node, self._journal.attempt)
        self._keeper.rest()
        trainer = self._started(incarnation)
        try:
            beginning = newest_checkpoint(self._node, ready(), trainer, self._files.known)
        except NothingToResumeFrom as reason:
            self._ending.failed(reason.cause, reason.detail)
        resumed = beginning.event(self._journal.attempt, incarnation)
        self._journal.resumed(incarnation, resumed)
        self._saver.resume_source = resumed.commit
        phase = "restore" if resumed.commit is not None else "start" if self._node.spec.train.run is None else "train"
        self._node.status.change(phase=phase, epoch=resumed.epoch, step=resumed.step, batch=0)
        self._files.begin(self._journal.attempt, {})
        trainer.begin_at(*starts(self._node, beginning, self._files))
        self._keeper.begins(trainer, put_back=False)

    # -- one turn ------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        for letter in self._letters():
            self._take(letter)
        if self._trainer.final is not None and not self._trainer.finished and self._drain.draining_s is not None:
            self._end_drained(self._trainer.final)
        self._settle_exit()
        self._follow_fits()
        self._follow_drain()
        self._trainer.watch(self._pace.step_s, draining=self._drain.draining_s is not None)
        self._follow_refusal()
        self._keeper.turn(self._now_s)
        self._conversation.ask_for_snapshot(self._now_s, at_once=self._refusal.goes_on or self._torn)
        self._torn = self._torn and self._trainer.asked is None
        hold = not self._is_last_chance and self._pace.too_soon(self._now_s)
        if hold:
            self._conversation.let_a_newer_one_in(self._now_s, TURN_S * self._node.clock.scale)
        self._saver.turn(hold=hold, overdue=self._pace.snapshot_due(self._now_s) is not None)

    @property
    def _is_last_chance(self) -> bool:
        """No newer snapshot can follow the one that is there."""
        return self._trainer.exited is not None or self._drain.draining_s is not None

    def _letters(self) -> Iterator[Letter]:
        """The letters that have come; waits a little for the first."""
        due_s = self._drain.until_next_s(self._pace, uploading=self._saver.uploading, plain=self._is_plain)
        wait_s = min(TURN_S, max(0.0, due_s))
        try:
            yield self._node.inbox.get(timeout=wait_s)
            while True:
                yield self._node.inbox.get_nowait()
        except queue.Empty:
            return

    def _take(self, letter: Letter) -> None:
        match letter:
            case Said() if letter.incarnation == self._trainer.number:
                self._conversation.hear(letter)
            case Exited() if letter.incarnation == self._trainer.number:
                self._trainer.exited = letter
                self._saver.turn(hold=False, overdue=True)
            case Stranger(why=why):
                self._node.note(f"turned away: {why}")
            case CameTooLate() if letter.incarnation == self._trainer.number:
                self._trainer.another_came(letter)
            case NoticeHeard():
                self._notice(letter)
            case NoticesLost():
                self._pace.unwarned()
                self._journal.notices_lost(letter)
            case LedgerRead():
                self._read(self._state)
            case LedgerLost():
                raise PowerOff(letter.reason)
            case Saved():
                self._saved(letter)
            case SaveFailed():
                self._save_failed(letter)
            case SaveTorn(paths=paths):
                self._saver.settled()
                self._trainer.torn(paths)
                self._torn = True
            case SaveRefused():
                self._saver.refused()
                self._refusal.begins(letter.detail, letter)
            case EntryUnwritten() if self._trainer.makes_snapshots:
                self._refusal.begins(letter.detail)
            case EntryUnwritten():
                self._node.note(f"the ledger waits: {letter.detail}")
            case SaveAbandoned():
                self._saver.settled()
            case SaveGivenUp(reason=reason):
                self._saver.settled()
                self._keeper.given_up(reason)
            case StateFrozen():
                self._keeper.frozen(letter)
            case CommonPartSent():
                self._saver.common_part_sent(letter.sequence)
            case _:
                pass  # of a trainer that is gone

    def _read(self, state: RunState) -> None:
        if decisions.is_fenced(state, self._journal.attempt):
            raise PowerOff("the run goes on elsewhere, or has ended")
        self._drain.read(state, self._journal.attempt)

    # -- saving --------------------------------------------------------------------------------------------------

    def _saved(self, letter: Saved) -> None:
        snapshot = self._saver.settled()
        assert snapshot is not None
        self._trainer.committed(snapshot, letter.commit, letter.digest)
        self._keeper.saved(snapshot)
        self._pace.committed(letter.took_s, self._now_s)
        self._node.status.facts["commit_s"] = self._pace.commit_s
        self._refusal.ends()
        self._trainer.go_on()
        self._conversation.tell_figures()

    def _save_failed(self, letter: SaveFailed) -> None:
        self._saver.settled(failed=True, retry=self._is_last_chance)
        self._node.note(f"a checkpoint could not be saved ({letter.in_a_row} in a row): {letter.detail}")
        if letter.in_a_row >= SAVES_FAILED_MAX:
            self._ending.failed(Cause.SAVES_FAILED, letter.detail)

    def _follow_refusal(self) -> None:
        """
        A training whose newest snapshot the store refuses stands still, and bills, for a while only. A drain wakes it:
        its last snapshot may yet be saved.
        """
        if not self._refusal.goes_on:
            return
        if self._refusal.is_too_long:
            self._give_up_waiting()
        if not self._saver.idle and self._drain.draining_s is None and not self._trainer.finished:
            self._trainer.pause()

    def _give_up_waiting(self) -> NoReturn:
        detail = f"nobody made room in the store within {ROOM_WITHIN_S / 60:.0f} min: {self._refusal.detail}"
        if self._refusal.is_in_ledger:
            self._ending.failed(Cause.STORE_FULL, detail, lossy=True)
        self._trainers.close()
        raise PowerOff(detail)

    # -- the next fit() ---------------------------------------------------------------------------------------------

    def _follow_fits(self) -> None:
        """
        The next fit() begins when the last snapshot of the one before is durable: so each fit() that has begun has an
        end of all before it. In a drain no other begins.
        """
        trainer = self._trainer
        if trainer.fit_wanted is None or trainer.exited or (trainer.final is None and not trainer.is_behind):
            return
        if self._drain.draining_s is not None:
            self._end_drained(trainer.final)
        start = trainer.take_later()
        if start is None:
            last = self._state.commit(trainer.final or 0)
            assert last is not None
            start = afresh_after(self._node, last)
        trainer.begin_fit(start)
        self._pace.new_trainer()

    # -- draining ------------------------------------------------------------------------------------------------

    def _notice(self, notice: NoticeHeard) -> None:
        self._node.note(f"{notice.kind} notice" + (f" for {notice.deadline_at}" if notice.deadline_at else ""))
        if notice.kind == "rebalance":
            self._pace.rebalance()
        else:
            self._drain.notice(notice)
            self._saver.hurry()
            self._outputs.hurry()
        self._journal.notice_seen(notice)

    @property
    def _is_plain(self) -> bool:
        """Whether there is nothing to save: the callback has not reported yet, or the command has none."""
        return not self._trainer.makes_snapshots

    def _follow_drain(self) -> None:
        stage = self._drain.stage(self._pace, uploading=self._saver.uploading, plain=self._is_plain)
        if stage is Stage.NOTICED and self._drain.until_next_s(self._pace) < FILES_STOP_BEFORE_S:
            self._hold_files()
        if stage is Stage.DRAINING and self._drain.draining_s is None:
            self._begin_drain()
        if stage is Stage.TOO_LATE:
            if self._trainer.terminated:
                self._end_terminated()
            if self._trainer.final is not None:  # only the script's end after fit() is missing
                self._end_drained(self._trainer.final)
            self._ending.drained_short("the final snapshot was not durable in time")

    def _hold_files(self) -> None:
        """The line belongs to the last snapshot, if there will be one."""
        if not self._is_plain:
            self._outputs.hold()

    def _end_drained(self, final: int | None) -> NoReturn:
        commit = None if final is None else self._state.commit(final)
        mine = commit is not None and commit.event.attempt == self._journal.attempt
        self._ending.drained(final, commit.event.taken_at if commit is not None and mine else self._node.clock.now())

    def _end_terminated(self) -> NoReturn:
        """The command is done with what it does after SIGTERM, or its time is over."""
        if self._trainer.final is not None:
            self._end_drained(self._trainer.final)
        stopped_at = self._node.clock.now()
        self._trainer.kill()
        self._ending.drained(None, stopped_at)

    def _begin_drain(self) -> None:
        """
        Train no further step. A trainer that has done none is ended as it is; a command that makes no snapshots is
        asked to end, and has a while for that.
        """
        self._drain.begin(self._pace, uploading=self._saver.uploading, plain=self._is_plain)
        self._hold_files()
        trainer = self._trainer
        trainer.go_on()
        if trainer.finished or trainer.exited:
            return  # it ends by itself, as soon as its last snapshot is saved
        self._node.status.change(phase="drain")
        if trainer.makes_snapshots and trainer.progress is not None:
            self._saver.drop_waiting()
            if self._drain.too_short:
                trainer.kill()  # the upload in flight has the machine for itself; when it is done, so is the attempt
            else:
                trainer.drain(self._drain.reason)
            return
        if self._is_plain:
            self._keeper.terminated(self._now_s)
            trainer.terminate()
            return
        stopped_at = self._node.clock.now()
        trainer.kill()
        self._ending.drained(None, stopped_at)

    # -- the end of a trainer ------------------------------------------------------------------------------------

    def _settle_exit(self) -> None:
        """What an exited trainer left is saved before its end is judged."""
        trainer = self._trainer
        if trainer.exited is None or not self._saver.idle or self._keeper.awaits_the_last(self._now_s):
            return
        if trainer.refused is not None:
            self._ending.failed(Cause.USER_ERROR, f"{trainer.refused.reason}; try: {trainer.refused.hint}")
        if trainer.terminated:
            self._end_terminated()  # whatever its exit code: a command that saves on SIGTERM ends well, and is not done
        if self._is_done(trainer.exited):
            step = trainer.last_step if trainer.finished is None else trainer.finished.step
            if self._drain.deadline_s is None:
                self._saver.finish(RETIRED_WITHIN_S)
            self._ending.completed(trainer.final, step)
        if self._drain.draining_s is not None:
            self._ending.drained_short("the trainer ended before its final snapshot")
        self._restart_or_give_up(trainer.exited)

    def _is_done(self, exited: Exited) -> bool:
        """
        With the final checkpoint of its last fit() durable, a script that then ended well or hung in its teardown is
        done.

        A command that never trained and left no checkpoint is done when it ends well.
        """
        trainer = self._trainer
        if trainer.finished is not None:
            return trainer.final is not None and (exited.exit_code == 0 or trainer.hung)
        never_trained = trainer.progress is None and not any(commit.event.has_image for commit in self._state.commits)
        return never_trained and exited.exit_code == 0 and not trainer.hung

    def _restart_or_give_up(self, exited: Exited) -> None:
        trainer = self._trainer
        code = decisions.FAILED if trainer.trained_again else exited.exit_code
        cause = decisions.exit_cause(code, hung=trainer.hung)
        words = decisions.exit_words(code, cause, trainer.last_output())
        event = self._journal.trainer_exited(trainer.number, cause, code, trainer.last_step, str(words))
        reason = self._why_give_up(event)
        if reason is not None:
            self._ending.failed(cause, words.but(reason))
        self._node.note(f"the trainer ended ({words.how}); it is started again")
        newest = trainer.take_newest()
        trainer.close()
        commit = self._state.latest_commit()
        if commit is not None and not commit.event.has_image:
            failures = decisions.failures_in_a_row(self._state)
            self._begin_command(trainer.number + 1, decisions.beginning_after(event, failures))
            return
        self._node.status.change(phase="restore")
        self._begin(trainer.number + 1, lambda: None if newest is None else still_here(self._node, newest))

    def _why_give_up(self, exited: TrainerExited) -> str | None:
        max_restarts = self._node.spec.retry.max_restarts
        if self._keeper.is_keeping and self._state.latest_commit() is not None:
            return decisions.why_give_up_command(self._state, exited, max_restarts)
        return decisions.why_give_up(self._state, exited, max_restarts)

    # -- small things --------------------------------------------------------------------------------------------

    @property
    def _trainer(self) -> Trainer:
        return self._trainers.current

    @property
    def _state(self) -> RunState:
        return self._node.recorder.state

    @property
    def _now_s(self) -> float:
        return self._node.clock.monotonic()
