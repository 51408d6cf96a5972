"""Handles one trainer's messages and sends the replies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from spotrun.account.summary import summarise
from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.decisions import Held, gives_way
from spotrun.agent.drain import Drain
from spotrun.agent.inbox import Said
from spotrun.agent.node import Node
from spotrun.agent.pace import Pace
from spotrun.agent.saver import Saver
from spotrun.agent.trainer import Trainer
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


class Conversation:
    """Handles the messages of an attempt's current trainer."""

    def __init__(
        self, node: Node, trainer: Trainer, journal: AttemptJournal, pace: Pace, saver: Saver, drain: Drain
    ) -> None:
        self._node = node
        self._trainer = trainer
        self._journal = journal
        self._pace = pace
        self._saver = saver
        self._drain = drain
        node.status.data_wait.new_trainer()
        self._was_torn = False

    def hear(self, said: Said) -> None:
        match said.message:
            case Hello() as hello:
                self._trainer.hello(hello, said.at_s)
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
                clean = self._node.console.clean
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
            self._node.status.change(phase="train")
            self.tell_figures()
        self._trainer.progressed(progress, at_s)
        self._pace.progressed(progress, at_s)
        self._node.status.facts["step_s"] = self._pace.step_s
        data_wait = self._node.status.data_wait
        data_wait.progressed(progress, at_s / self._node.clock.scale)
        self._node.status.facts["data_wait"] = data_wait.share
        if news := data_wait.news():
            self._node.note(news)
        self._node.status.progress(progress)

    def _snapshot(self, taken: SnapshotTaken, said: Said) -> None:
        arena = self._trainer.filled(taken)
        if arena is None:
            return
        self._pace.snapshot(taken.step, taken.stall_s * self._node.clock.scale, said.at_s)
        self._node.status.facts["stall_s"] = self._pace.stall_s
        self._saver.offer(self._trainer.snapshot(self._journal.attempt, arena, said, taken, self._why(taken)))
        if taken.final and self._drain.deadline_s is not None:
            self._saver.abandon()

    def _why(self, taken: SnapshotTaken) -> str:
        if taken.final:
            return self._drain.reason or "end of training"
        return self._trainer.asked or "steps"

    def _make_room(self) -> None:
        """Make room for the last snapshot, which is worth more than any older one that is not durable before it."""
        self._trainer.wants_room()
        self._saver.drop_waiting()
        if self._drain.deadline_s is not None:
            self._saver.abandon()

    def snapshot_was_torn(self, paths: Sequence[str]) -> None:
        """Note that files of a snapshot were written to: another snapshot is due at once."""
        self._trainer.torn(paths)
        self._was_torn = True

    def ask_for_snapshot(self, now_s: float, *, at_once: bool = False) -> None:
        """Ask for a snapshot if one is due, or wanted `at_once`, and the trainer and the saver are free for it."""
        self._ask(now_s, at_once=at_once or self._was_torn)
        self._was_torn = self._was_torn and self._trainer.asked is None

    def _ask(self, now_s: float, *, at_once: bool) -> None:
        trainer = self._trainer
        if trainer.asked or trainer.progress is None or trainer.finished or trainer.exited or not self._saver.idle:
            return
        if self._drain.draining_s is not None or not trainer.makes_snapshots:
            return
        why = "interval" if at_once else self._pace.snapshot_due(now_s)
        if why is not None:
            trainer.ask(why)

    def let_a_newer_one_in(self, now_s: float, turn_s: float) -> None:
        """
        Give the arena of a snapshot that is held back to the trainer again, which wants to take another one: at the
        last moment, as until then it would be the only remains of a trainer that dies.
        """
        snapshot, at, pace = self._saver.held, self._trainer.progress, self._pace
        if snapshot is None or at is None:
            return
        steps, trains = at.step - snapshot.taken.step, at.phase == "train"
        held = Held(pace.held_s(now_s), steps, pace.step_s, pace.every_steps, trains, self._trainer.silent_s)
        if gives_way(held, turn_s):
            self._saver.drop_waiting()

    def tell_figures(self, epochs_ended: int = 0) -> None:
        """Send the run's figures for the script's loggers. After a notice no time is spent on them."""
        if self._drain.deadline_s is not None:
            return
        state = self._node.recorder.state
        known = state.epochs[-1].event.epoch + 1 if state.epochs else 0
        ended = max(known, epochs_ended)
        self._trainer.tell(figures(state, self._node.clock.now(), self._journal.attempt, ended))


def figures(state: RunState, now: datetime, attempt: int, epochs_ended: int) -> Figures:
    """
    Return the figures of the run so far by the ledger, as of `now`. `epochs_ended` counts epochs whose last step is
    done, durable or not: when a training resumes, the figures that the script's loggers show are rolled back to the
    checkpoint, and these with them.
    """
    total = summarise(state, now).total
    return Figures(
        cost_usd=float(total.cost_usd),
        usd_per_epoch=float(total.cost_usd / epochs_ended) if epochs_ended else None,
        lost_s=total.downtime.total_seconds(),
        attempt=state.ordinals()[attempt],
        epochs=epochs_ended,
    )
