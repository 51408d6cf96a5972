"""
Starts the trainers of an attempt: a training with a checkpoint, a command with the files of one, or either from the
start.
"""

from __future__ import annotations

from collections.abc import Callable

from spotrun.agent.attempt_parts import OfAttempt
from spotrun.agent.conversation import Conversation
from spotrun.agent.decisions import StateChoice
from spotrun.agent.files.restore import tidy
from spotrun.agent.fits import Start, told_to_trainer
from spotrun.agent.resumption import NothingToResumeFrom, newest_checkpoint, put_state_back, starts
from spotrun.agent.trainer import Trainer
from spotrun.checkpoint.restore import Image


class Beginnings(OfAttempt):
    """
    Starts trainers. `conversation` is that with the newest trainer. If there is nothing to begin with, the attempt
    ends.
    """

    conversation: Conversation

    def newest(self, incarnation: int, ready: Callable[[], Image | None]) -> None:
        newest = self._state.latest_commit()
        if newest is None or newest.event.has_image:
            self.training(incarnation, ready)
        else:
            self.command(incarnation, StateChoice.NEWEST)

    def command(self, incarnation: int, choice: StateChoice) -> None:
        """Put the state of a command in its place, and start the command."""
        self._keeper.rest()
        self._node.status.change(phase="restore")
        try:
            found = put_state_back(self._node, self._journal.attempt, self._files, choice)
        except NothingToResumeFrom as reason:
            self._ending.failed(reason.cause, reason.detail)
        self._journal.resumed(incarnation, found.event(self._journal.attempt, incarnation), self._trainers.arrange())
        self._saver.resume_source = found.commit.number
        if not found.in_place:
            self._keeper.put_back()
        trainer = self._started(incarnation)
        self._node.status.change(phase="train")
        trainer.begin_at(Start(told_to_trainer(self._node, None)))
        self._keeper.begins(trainer)

    def _started(self, incarnation: int) -> Trainer:
        trainer = self._trainers.start(incarnation)
        self.conversation = Conversation(self._node, trainer, self._journal, self._pace, self._saver, self._drain)
        self._pace.new_trainer()
        if self._gang is not None:
            self._gang.begins()
        return trainer

    def training(self, incarnation: int, ready: Callable[[], Image | None]) -> None:
        """Start a trainer, and fetch its checkpoint while it does its imports; a `ready` one need not be fetched."""
        tidy(self._node, self._journal.attempt)
        self._keeper.rest()
        meet = self._trainers.arrange()
        trainer = self._started(incarnation)
        try:
            beginning = newest_checkpoint(self._node, ready(), trainer, self._files.known)
        except NothingToResumeFrom as reason:
            self._ending.failed(reason.cause, reason.detail)
        resumed = beginning.event(self._journal.attempt, incarnation)
        self._journal.resumed(incarnation, resumed, meet)
        self._saver.resume_source = resumed.commit
        phase = "restore" if resumed.commit is not None else "start" if self._node.spec.train.run is None else "train"
        self._node.status.change(phase=phase, epoch=resumed.epoch, step=resumed.step, batch=0)
        self._files.begin(self._journal.attempt, {})
        trainer.begin_at(*starts(self._node, beginning, self._files))
        self._keeper.begins(trainer)
