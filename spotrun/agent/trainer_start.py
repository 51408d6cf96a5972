"""
Starts the trainers of an attempt. A script with spotrun's callback (a *training*) resumes from the state in a
checkpoint. Any other program (a *command*) resumes from the files in a checkpoint. Without a checkpoint, both start
from scratch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.attempt_end import AttemptEnd
from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.decisions import StateChoice
from spotrun.agent.files.commit_files import CommitFiles
from spotrun.agent.files.restore import tidy
from spotrun.agent.fits import Start, told_to_trainer
from spotrun.agent.gang_watch import GangWatch
from spotrun.agent.pace import Pace
from spotrun.agent.processes.trainer import Trainer
from spotrun.agent.processes.trainers import Trainers
from spotrun.agent.resumption import NothingToResumeFrom, newest_checkpoint, put_state_back, starts
from spotrun.agent.saver import Saver
from spotrun.agent.trainees.state_watch import StateWatch
from spotrun.agent.trainees.trainee import Trainee
from spotrun.agent.trainees.training import Training
from spotrun.checkpoint.restore import Image


@dataclass(eq=False)
class TrainerStart:
    """
    Starts trainers. If the run has checkpoints but none of them can be read, ends the attempt instead.

    `training` is the newest trainer as a Training, and `training.command` is the same trainer as a command. `trainee`
    is whichever of the two applies.
    """

    _context: AgentContext
    _journal: AttemptJournal
    _trainers: Trainers
    _files: CommitFiles
    _watch: StateWatch
    _saver: Saver
    _pace: Pace
    _ending: AttemptEnd
    _gang: GangWatch | None
    _as_training: Callable[[Trainer], Training]
    training: Training = field(init=False)

    @property
    def trainee(self) -> Trainee:
        """
        The newest trainer, as a command or as a training. Every trainer starts as a command. It becomes a training when
        spotrun's callback in it connects to the agent.
        """
        return self.training if self._trainers.current.is_training else self.training.command

    def newest(self, incarnation: int, ready: Callable[[], Image | None]) -> None:
        newest = self._context.recorder.state.latest_commit()
        if newest is None or newest.event.has_image:
            self.with_image(incarnation, ready)
        else:
            self.with_state(incarnation, StateChoice.NEWEST)

    def with_state(self, incarnation: int, choice: StateChoice) -> None:
        self._watch.rest()
        self._context.status.change(phase="restore")
        try:
            found = put_state_back(self._context, self._journal.attempt, self._files, choice)
        except NothingToResumeFrom as reason:
            self._ending.failed(reason.cause, reason.detail)
        self._journal.resumed(incarnation, found.event(self._journal.attempt, incarnation), self._trainers.arrange())
        self._saver.resume_source = found.commit.number
        if not found.in_place:
            self._watch.put_back()
        trainer = self._started(incarnation)
        self._context.status.change(phase="train")
        trainer.begin_at(Start(told_to_trainer(self._context, None)))

    def with_image(self, incarnation: int, ready: Callable[[], Image | None]) -> None:
        """
        Start a trainer, and restore the newest checkpoint. If `ready` returns the checkpoint's image, use it. Otherwise
        fetch the checkpoint while the trainer imports its modules.
        """
        tidy(self._context, self._journal.attempt)
        self._watch.rest()
        meet = self._trainers.arrange()
        trainer = self._started(incarnation)
        try:
            beginning = newest_checkpoint(self._context, ready(), trainer, self._files.known)
        except NothingToResumeFrom as reason:
            self._ending.failed(reason.cause, reason.detail)
        resumed = beginning.event(self._journal.attempt, incarnation)
        self._journal.resumed(incarnation, resumed, meet)
        self._saver.resume_source = resumed.commit
        phase = (
            "restore" if resumed.commit is not None else "start" if self._context.spec.train.run is None else "train"
        )
        self._context.status.change(phase=phase, epoch=resumed.epoch, step=resumed.step, batch=0, batches=0)
        self._files.begin(self._journal.attempt, {})
        trainer.begin_at(*starts(self._context, beginning, self._files))

    def _started(self, incarnation: int) -> Trainer:
        trainer = self._trainers.start(incarnation)
        self.training = self._as_training(trainer)
        self._pace.new_trainer()
        if self._gang is not None:
            self._gang.begins()
        return trainer
