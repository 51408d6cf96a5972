"""
Ends an attempt because of a notice or a request to stop: takes the last snapshot, and writes the attempt's last entry.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import NoReturn

from msgspec import UNSET

from spotrun.agent.agent_context import AgentContext
from spotrun.agent.attempt_end import AttemptEnd
from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.files.outputs import OutputKeeper
from spotrun.agent.grace_period import GracePeriod, Stage
from spotrun.agent.inbox import Exited, NoticeHeard
from spotrun.agent.pace import Pace
from spotrun.agent.processes.trainers import Trainers
from spotrun.agent.saver import Saver
from spotrun.agent.trainer_start import TrainerStart
from spotrun.run.state import RunState

FILES_STOP_BEFORE_S = 3.0
"""
Seconds of system time before the last snapshot at which the agent stops sending files. Uploads that are in progress can
then finish, and leave the network to the snapshot.
"""


@dataclass(frozen=True, eq=False)
class Preemption:
    _context: AgentContext
    _journal: AttemptJournal
    _trainers: Trainers
    _start: TrainerStart
    _saver: Saver
    _pace: Pace
    _drain: GracePeriod
    _outputs: OutputKeeper
    _ending: AttemptEnd

    @property
    def until_next_s(self) -> float:
        """
        Maximum seconds of system time until this object has to be called again, even if no letter comes.
        """
        return self._drain.until_next_s(self._start.trainee.times)

    def notice(self, notice: NoticeHeard) -> None:
        self._context.note(
            f"{notice.kind} notice" + (f"; its deadline is {notice.deadline_at}" if notice.deadline_at else "")
        )
        if notice.kind == "rebalance":
            self._pace.rebalance()
        else:
            self._leave_by(notice)
        self._journal.notice_seen(notice)

    def read(self, state: RunState) -> None:
        """
        If the ledger has a notice for another member of the gang, end the attempt before that notice expires. Without
        that member, the gang's attempt cannot continue (protocol 47).
        """
        notice = state.attempts[self._journal.attempt].notice
        if notice is None or notice.member is UNSET or self._drain.deadline_s is not None:
            return
        clock = self._context.clock
        left_s = 0.0 if notice.deadline_at is None else (notice.deadline_at - clock.now()).total_seconds()
        self._context.note(f"the cloud will take member {notice.member} of this gang in {left_s:.0f} s")
        self._leave_by(NoticeHeard("termination", notice.deadline_at, clock.monotonic() + left_s))

    def _leave_by(self, notice: NoticeHeard) -> None:
        self._drain.notice(notice)
        self._saver.hurry()
        self._outputs.hurry()

    def follow(self) -> None:
        trainer, times = self._trainers.current, self._start.trainee.times
        stage = self._drain.stage(times)
        if stage is Stage.NOTICED and self._drain.until_next_s(times) < FILES_STOP_BEFORE_S:
            self._start.trainee.make_way()
        if stage is Stage.DRAINING and self._drain.draining_s is None:
            self._begin()
        if stage is Stage.TOO_LATE:
            if trainer.terminated:
                self.terminated()
            if trainer.final is not None:  # everything is saved; only the script's code after fit() still runs
                self.drained(trainer.final)
            self._ending.drained_short("the final snapshot was not durable in time")

    def drained(self, final: int | None) -> NoReturn:
        commit = None if final is None else self._context.recorder.state.commit(final)
        mine = commit is not None and commit.event.attempt == self._journal.attempt
        self._ending.drained(final, commit.event.taken_at if commit is not None and mine else self._context.clock.now())

    def terminated(self) -> NoReturn:
        """End the attempt of a command that has ended after SIGTERM, or that has no time left."""
        trainer = self._trainers.current
        if trainer.final is not None:
            self.drained(trainer.final)
        stopped_at = self._context.clock.now()
        trainer.kill()
        self._ending.drained(None, stopped_at, _why_unsaved(trainer.exited))

    def _begin(self) -> None:
        """
        Begin the drain: from now on, the trainer must take no further step. If the trainer has already ended, only save
        its last snapshot.
        """
        trainer, trainee = self._trainers.current, self._start.trainee
        self._drain.begin(trainee.times)
        trainee.make_way()
        trainer.go_on()
        if trainer.finished or trainer.exited:
            return
        self._context.status.change(phase="drain")
        trainee.leave(self._context.clock.monotonic())


def _why_unsaved(exited: Exited | None) -> str:
    """Return the reason why the files that a command has left after SIGTERM are in no checkpoint; "" if unknown."""
    if exited is None:
        return "the command had not ended when its time after SIGTERM was over"
    if exited.ended_well:
        return ""
    if exited.exit_code in (-signal.SIGTERM, 128 + signal.SIGTERM):
        return "the command does not catch SIGTERM"
    return f"the command ended with code {exited.exit_code} after SIGTERM"
