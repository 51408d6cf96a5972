"""Handles the end of a trainer: ends the attempt, or starts another trainer."""

from __future__ import annotations

from dataclasses import dataclass

from spotrun.agent import decisions
from spotrun.agent.agent_context import AgentContext
from spotrun.agent.attempt_end import AttemptEnd
from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.gang_watch import GangWatch
from spotrun.agent.grace_period import GracePeriod
from spotrun.agent.inbox import Exited
from spotrun.agent.pace import Pace
from spotrun.agent.preemption import Preemption
from spotrun.agent.processes.trainer import Trainer
from spotrun.agent.processes.trainers import Trainers
from spotrun.agent.resumption import still_here
from spotrun.agent.saver import Saver
from spotrun.agent.trainer_start import TrainerStart
from spotrun.run.events import Cause
from spotrun.run.reasons import exit_code_in

RETIRED_WITHIN_S = 10.0
"""
Maximum seconds of system time that the agent of a completed run waits for the deletion of checkpoints that the run does
not need to keep.
"""


@dataclass(frozen=True, eq=False)
class TrainerExit:
    _context: AgentContext
    _journal: AttemptJournal
    _trainers: Trainers
    _start: TrainerStart
    _preemption: Preemption
    _saver: Saver
    _pace: Pace
    _drain: GracePeriod
    _ending: AttemptEnd
    _gang: GangWatch | None

    @property
    def _trainer(self) -> Trainer:
        return self._trainers.current

    def settle(self) -> None:
        """
        Decide what to do after a trainer has ended. Do nothing while the trainer runs, or while its last snapshot is
        still being saved.
        """
        trainer, trainee = self._trainer, self._start.trainee
        if trainer.exited is None or not self._saver.idle or trainee.awaits_the_last(self._context.clock.monotonic()):
            return
        if trainer.refused is not None:
            self._ending.failed(Cause.USER_ERROR, f"{trainer.refused.reason}; try: {trainer.refused.hint}")
        if trainer.terminated:
            # Exit code 0 does not mean that the run is complete: a command that saves its work on SIGTERM may exit
            # with 0 before it is done.
            self._preemption.terminated()
        if trainee.is_done(trainer.exited):
            step = trainer.last_step if trainer.finished is None else trainer.finished.step
            if self._drain.deadline_s is None:
                self._saver.finish(RETIRED_WITHIN_S)
            self._ending.completed(trainer.final, step)
        if self._drain.draining_s is not None:
            self._ending.drained_short("the trainer ended before its final snapshot")
        if self._gang is not None and not self._gang.knows_why(trainer, str(self._own_end(trainer.exited)[2])):
            return
        self._end_without_missing()
        self._restart_or_give_up(trainer.exited)

    def follow_others(self) -> None:
        """
        React to the state of the gang's other members. If a member is missing, end the attempt. If the trainer of
        another member failed, end this member's trainer.
        """
        if self._gang is None or self._trainer.exited is not None or self._drain.draining_s is not None:
            return
        self._end_without_missing()
        if (ended := self._gang.ended_elsewhere(self._trainer)) is not None:
            self._context.note(
                f"the trainer of member {ended.name} has ended; the trainer on this instance cannot continue without it"
            )
            self._trainer.kill()

    def _end_without_missing(self) -> None:
        missing = None if self._gang is None else self._gang.missing(self._trainer, self._pace.step_s)
        if missing is not None:
            self._ending.without(missing.names, missing.why)

    def _restart_or_give_up(self, exited: Exited) -> None:
        trainer = self._trainer
        code, cause, words = self._own_end(exited)
        first = None
        if self._gang is not None:
            first = self._gang.reason_of_other(exited, trainer, str(words))
            if first is not None:
                code, cause = first.exit_code, decisions.exit_cause(first.exit_code, hung=False)
                words = decisions.ExitWords(f"on {first.name}", first.reason)
        event = self._journal.trainer_exited(trainer.number, cause, code, trainer.last_step, str(words))
        reason = self._start.trainee.why_give_up(event)
        if reason is not None:
            self._ending.failed(cause, words.but(reason))
        self._context.note(f"the trainer ended ({words.how}); the agent starts it again")
        newest = trainer.take_newest()
        trainer.close()
        state = self._context.recorder.state
        commit = state.latest_commit()
        if commit is not None and not commit.event.has_image:
            failures = decisions.failures_in_a_row(state)
            choice = decisions.beginning_after(event, failures, alone=self._gang is None)
            if first is not None and first.damaged:
                choice = decisions.StateChoice.ONE_BEFORE
            self._start.with_state(trainer.number + 1, choice)
            return
        self._context.status.change(phase="restore")
        self._start.with_image(
            trainer.number + 1, lambda: None if newest is None else still_here(self._context, newest)
        )

    def _own_end(self, exited: Exited) -> tuple[int, Cause, decisions.ExitWords]:
        """Return the exit code of this instance's trainer, the cause of its end, and a description for the user."""
        trainer = self._trainer
        output = trainer.last_output()
        code = decisions.FAILED if trainer.trained_again else exit_code_in(output, exited.exit_code)
        cause = decisions.exit_cause(code, hung=trainer.hung)
        return code, cause, decisions.exit_words(code, cause, output)
