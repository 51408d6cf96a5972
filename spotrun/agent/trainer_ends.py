"""Handles the end of a trainer: the attempt is over, or another trainer begins."""

from __future__ import annotations

from spotrun.agent import decisions
from spotrun.agent.attempt_parts import OfAttempt, Parts
from spotrun.agent.beginnings import Beginnings
from spotrun.agent.inbox import Exited
from spotrun.agent.leaving import Leaving
from spotrun.agent.resumption import still_here
from spotrun.run.events import Cause, TrainerExited

RETIRED_WITHIN_S = 10.0
"""Maximum system seconds in which a complete run deletes the checkpoints that it need not keep."""


class TrainerEnds(OfAttempt):
    def __init__(self, parts: Parts, beginnings: Beginnings, leaving: Leaving) -> None:
        super().__init__(parts)
        self._beginnings = beginnings
        self._leaving = leaving

    def settle(self) -> None:
        """Judge the end of a trainer, after its last snapshot was saved."""
        trainer = self._trainer
        if trainer.exited is None or not self._saver.idle or self._keeper.awaits_the_last(self._now_s):
            return
        if trainer.refused is not None:
            self._ending.failed(Cause.USER_ERROR, f"{trainer.refused.reason}; try: {trainer.refused.hint}")
        if trainer.terminated:
            # With any exit code: a command that saves on SIGTERM ends well, and is not done.
            self._leaving.terminated()
        if self._is_done(trainer.exited):
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
        Follow the others of a gang: a missing member ends the attempt, and a trainer that has ended elsewhere ends this
        one.
        """
        if self._gang is None or self._trainer.exited is not None or self._drain.draining_s is not None:
            return
        self._end_without_missing()
        if (ended := self._gang.ended_elsewhere(self._trainer)) is not None:
            self._node.note(f"the trainer of {ended.name} has ended, and this one stands still without it")
            self._trainer.kill()

    def _end_without_missing(self) -> None:
        missing = None if self._gang is None else self._gang.missing(self._trainer, self._pace.step_s)
        if missing is not None:
            self._ending.without(missing.names, missing.why)

    def _is_done(self, exited: Exited) -> bool:
        """
        Return True if the script is done: the final checkpoint of its last fit() is durable, and it ended well or hung
        in its teardown.

        A command that never trained and left no checkpoint is done when it ends well.
        """
        trainer = self._trainer
        if trainer.finished is not None:
            return trainer.final is not None and (exited.exit_code == 0 or trainer.hung)
        never_trained = trainer.progress is None and not any(commit.event.has_image for commit in self._state.commits)
        return never_trained and exited.exit_code == 0 and not trainer.hung

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
        reason = self._why_give_up(event)
        if reason is not None:
            self._ending.failed(cause, words.but(reason))
        self._node.note(f"the trainer ended ({words.how}); it is started again")
        newest = trainer.take_newest()
        trainer.close()
        commit = self._state.latest_commit()
        if commit is not None and not commit.event.has_image:
            failures = decisions.failures_in_a_row(self._state)
            choice = decisions.beginning_after(event, failures, alone=self._gang is None)
            if first is not None and first.damaged:
                choice = decisions.StateChoice.ONE_BEFORE
            self._beginnings.command(trainer.number + 1, choice)
            return
        self._node.status.change(phase="restore")
        self._beginnings.training(
            trainer.number + 1, lambda: None if newest is None else still_here(self._node, newest)
        )

    def _own_end(self, exited: Exited) -> tuple[int, Cause, decisions.ExitWords]:
        """Return the exit code, the cause and the words of this member's own trainer."""
        trainer = self._trainer
        code = decisions.FAILED if trainer.trained_again else exited.exit_code
        cause = decisions.exit_cause(code, hung=trainer.hung)
        return code, cause, decisions.exit_words(code, cause, trainer.last_output())

    def _why_give_up(self, exited: TrainerExited) -> str | None:
        max_restarts = self._node.spec.retry.max_restarts
        if self._keeper.is_keeping and self._state.latest_commit() is not None:
            return decisions.why_give_up_command(self._state, exited, max_restarts)
        return decisions.why_give_up(self._state, exited, max_restarts)
