"""
Handles the messages of a training that takes snapshots. Requests the last snapshot early enough before the instance is
lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from spotrun.account.summary import summarise
from spotrun.agent import decisions
from spotrun.agent.agent_context import AgentContext
from spotrun.agent.attempt_end import AttemptEnd
from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.backpressure import Backpressure
from spotrun.agent.decisions import HeldSnapshot, gives_way
from spotrun.agent.files.outputs import OutputKeeper
from spotrun.agent.grace_period import GracePeriod, SnapshotTimes, Times
from spotrun.agent.inbox import TURN_S, Exited, StateFrozen, TrainerMessage
from spotrun.agent.pace import Pace
from spotrun.agent.saver import Saver
from spotrun.agent.trainees.command import Command
from spotrun.run.events import TrainerExited
from spotrun.run.state import RunState
from spotrun.trainer_link import (
    ArenasWanted,
    EpochEnded,
    Figures,
    FilesFrozen,
    FilesWanted,
    Finished,
    FitBegins,
    Hello,
    MoreFiles,
    NotCarried,
    Progress,
    Refused,
    RoomWanted,
    SnapshotTaken,
)


class Training:
    """
    A training with spotrun's callback. The agent treats each script as a command until its callback connects; from then
    on, this class replaces that `command`.
    """

    def __init__(
        self,
        context: AgentContext,
        command: Command,
        journal: AttemptJournal,
        pace: Pace,
        saver: Saver,
        drain: GracePeriod,
        outputs: OutputKeeper,
        backpressure: Backpressure,
        ending: AttemptEnd,
    ) -> None:
        self.command = command
        self._context = context
        self._trainer = command.trainer
        self._journal = journal
        self._pace = pace
        self._saver = saver
        self._drain = drain
        self._outputs = outputs
        self._backpressure = backpressure
        self._ending = ending
        self._was_torn = False
        context.status.data_wait.new_trainer()

    # -- its messages

    def hear(self, said: TrainerMessage) -> None:
        match said.message:
            case Hello() as hello:
                self._trainer.hello(hello, said.at_s)
                self.command.becomes_training()
            case ArenasWanted(size_bytes=size_bytes):
                self._trainer.grant(size_bytes)
            case Progress() as progress:
                self._progressed(progress, said.at_s)
            case FilesWanted(open=opened):
                self._trainer.put_files_back(opened, self._journal.attempt)
            case FilesFrozen() as frozen:
                self._trainer.freezes(frozen, said.descriptors)
            case MoreFiles():
                self._trainer.freezes_more(said.descriptors)
            case SnapshotTaken() as taken:
                self._snapshot(taken, said)
            case NotCarried(step=step, places=places):
                clean = self._context.console.clean
                self._journal.not_carried(step, [(clean(place), clean(what)) for place, what in places])
            case RoomWanted():
                self._make_room()
            case EpochEnded() as ended:
                self._pace.epoch_ended(ended.step)
                self._journal.epoch_completed(ended, said)
                self.tell_figures(ended.epoch + 1)
            case Refused() as refused:
                self._trainer.refuse(refused)
            case Finished() as finished:
                self._trainer.finish(finished, said.at_s)
            case FitBegins(fit=fit):
                self._trainer.wants_fit(fit)
            case _:
                pass

    def _progressed(self, progress: Progress, at_s: float) -> None:
        if self._trainer.progress is None:
            self._journal.training_started(self._trainer.number, progress.step)
            self._context.status.change(phase="train")
            self.tell_figures()
        self._trainer.progressed(progress, at_s)
        self._pace.progressed(progress, at_s)
        self._context.status.facts["step_s"] = self._pace.step_s
        data_wait = self._context.status.data_wait
        data_wait.progressed(progress, at_s / self._context.clock.scale)
        self._context.status.facts["data_wait"] = data_wait.share
        if news := data_wait.news():
            self._context.note(news)
        self._context.status.progress(progress)

    def _snapshot(self, taken: SnapshotTaken, said: TrainerMessage) -> None:
        arena = self._trainer.filled(taken)
        if arena is None:
            return
        self._pace.snapshot(taken.step, taken.stall_s * self._context.clock.scale, said.at_s)
        self._context.status.facts["stall_s"] = self._pace.stall_s
        self._saver.offer(self._trainer.snapshot(self._journal.attempt, arena, said, taken, self._why(taken)))
        if taken.final and self._drain.deadline_s is not None:
            self._saver.abandon()

    def _why(self, taken: SnapshotTaken) -> str:
        if taken.final:
            return self._drain.reason or "end of training"
        return self._trainer.asked or "steps"

    def _make_room(self) -> None:
        """
        Make room for the trainer's next snapshot: drop the snapshot that waits for its upload. If there is a deadline,
        also cancel the upload in flight, because the trainer's last snapshot is more useful than an older one.
        """
        self._trainer.wants_room()
        self._saver.drop_waiting()
        if self._drain.deadline_s is not None:
            self._saver.abandon()

    def was_torn(self, paths: Sequence[str]) -> None:
        """
        Record that files of a snapshot were changed before they were stored. Another snapshot is then due immediately.
        """
        self._trainer.torn(paths)
        self._was_torn = True

    # -- what can be saved now

    def turn(self, now_s: float) -> None:
        """Request a snapshot if one is due or needed immediately, and both the trainer and the saver are free."""
        if self._trainer.exited is not None or self._drain.draining_s is not None:
            return
        self._ask(now_s, at_once=self._backpressure.goes_on or self._was_torn)
        self._was_torn = self._was_torn and self._trainer.asked is None
        if self._pace.too_soon(now_s):
            self._let_a_newer_one_in(now_s)

    def _ask(self, now_s: float, *, at_once: bool) -> None:
        trainer = self._trainer
        if trainer.asked or trainer.progress is None or trainer.finished or not self._saver.idle:
            return
        why = "interval" if at_once else self._pace.snapshot_due(now_s)
        if why is not None:
            trainer.ask(why)

    def _let_a_newer_one_in(self, now_s: float) -> None:
        """
        Drop the snapshot whose upload waits because the last commit was too recent, so that the trainer can use its
        arena for a newer one. Drop it as late as possible: if the trainer dies between the drop and the newer snapshot,
        all steps since the last commit are lost.
        """
        snapshot, at, pace = self._saver.held, self._trainer.progress, self._pace
        if snapshot is None or at is None:
            return
        steps, trains = at.step - snapshot.taken.step, at.phase == "train"
        held = HeldSnapshot(pace.held_s(now_s), steps, pace.step_s, pace.every_steps, trains, self._trainer.silent_s)
        if gives_way(held, TURN_S * self._context.clock.scale):
            self._saver.drop_waiting()

    def frozen(self, letter: StateFrozen) -> None:
        self.command.discard(letter)

    def given_up(self, reason: str) -> None:
        self.command.given_up(reason)

    def unwritten(self, detail: str) -> None:
        self._backpressure.begins(detail)

    # -- what a notice means

    @property
    def times(self) -> Times:
        return SnapshotTimes(self._pace, uploading=self._saver.uploading)

    def make_way(self) -> None:
        self._outputs.hold()

    def leave(self, now_s: float) -> None:
        """Stop training. If no step has been taken, kill the trainer, because there is nothing to save."""
        if self._trainer.progress is None:
            stopped_at = self._context.clock.now()
            self._trainer.kill()
            self._ending.drained(None, stopped_at)
        self._saver.drop_waiting()
        if self._drain.too_short:
            self._trainer.kill()  # the upload in flight gets the whole machine; then the attempt ends
        else:
            self._trainer.drain(self._drain.reason)

    # -- what follows the end

    def awaits_the_last(self, now_s: float) -> bool:
        return False

    def is_done(self, exited: Exited) -> bool:
        """
        Return True if the run is complete: the final checkpoint of the last fit() is durable, and the script has ended
        with exit code 0, or was ended because it hung. If the script has trained neither in this attempt nor in an
        earlier one, exit code 0 alone completes the run.
        """
        trainer = self._trainer
        if trainer.finished is not None:
            return trainer.final is not None and (exited.exit_code == 0 or trainer.hung)
        never_trained = trainer.progress is None and not self._context.recorder.state.has_trained
        return never_trained and exited.exit_code == 0 and not trainer.hung

    def why_give_up(self, exited: TrainerExited) -> str | None:
        return decisions.why_give_up(self._context.recorder.state, exited, self._context.spec.retry.max_restarts)

    # -- its figures

    def tell_figures(self, epochs_ended: int = 0) -> None:
        """
        Send the run's figures to the trainer, for the script's loggers. After a notice, send none, because the
        remaining seconds are needed for saving.
        """
        if self._drain.deadline_s is not None:
            return
        state = self._context.recorder.state
        known = state.epochs[-1].event.epoch + 1 if state.epochs else 0
        ended = max(known, epochs_ended)
        self._trainer.tell(figures(state, self._context.clock.now(), self._journal.attempt, ended))


def figures(state: RunState, now: datetime, attempt: int, epochs_ended: int) -> Figures:
    """
    Return the run's figures at `now`, for the script's loggers. `epochs_ended` is the number of epochs that the
    training has ended, including an epoch whose end no checkpoint contains yet. If such an epoch is lost, the figures
    that were logged for it disappear too, because a resume restores the loggers' files from the checkpoint.
    """
    total = summarise(state, now).total
    return Figures(
        cost_usd=float(total.cost_usd),
        usd_per_epoch=float(total.cost_usd / epochs_ended) if epochs_ended else None,
        lost_s=total.downtime.total_seconds(),
        attempt=state.ordinals()[attempt],
        epochs=epochs_ended,
    )
