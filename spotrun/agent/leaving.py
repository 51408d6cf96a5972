"""Takes an attempt from a notice, or a request to stop, over its last snapshot to its last entry."""

from __future__ import annotations

from typing import NoReturn

from msgspec import UNSET

from spotrun.agent.attempt_parts import OfAttempt
from spotrun.agent.drain import Stage
from spotrun.agent.inbox import NoticeHeard
from spotrun.run.state import RunState

FILES_STOP_BEFORE_S = 3.0
"""System seconds before a noticed attempt's last snapshot, in which files of the script that are being sent arrive."""


class Leaving(OfAttempt):
    @property
    def until_next_s(self) -> float:
        """System seconds until there may be something to do."""
        return self._drain.until_next_s(self._pace, uploading=self._saver.uploading, plain=self._is_plain)

    def notice(self, notice: NoticeHeard) -> None:
        self._node.note(f"{notice.kind} notice" + (f" for {notice.deadline_at}" if notice.deadline_at else ""))
        if notice.kind == "rebalance":
            self._pace.rebalance()
        else:
            self._leave_by(notice)
        self._journal.notice_seen(notice)

    def read(self, state: RunState) -> None:
        """Read the notice of another member, which ends the attempt of its gang (protocol 47)."""
        notice = state.attempts[self._journal.attempt].notice
        if notice is None or notice.member is UNSET or self._drain.deadline_s is not None:
            return
        left_s = 0.0 if notice.deadline_at is None else (notice.deadline_at - self._node.clock.now()).total_seconds()
        self._node.note(f"the cloud takes {notice.member} of this gang in {left_s:.0f} s")
        self._leave_by(NoticeHeard("termination", notice.deadline_at, self._now_s + left_s))

    def _leave_by(self, notice: NoticeHeard) -> None:
        self._drain.notice(notice)
        self._saver.hurry()
        self._outputs.hurry()

    def follow(self) -> None:
        stage = self._drain.stage(self._pace, uploading=self._saver.uploading, plain=self._is_plain)
        if stage is Stage.NOTICED and self._drain.until_next_s(self._pace) < FILES_STOP_BEFORE_S:
            self._hold_files()
        if stage is Stage.DRAINING and self._drain.draining_s is None:
            self._begin()
        if stage is Stage.TOO_LATE:
            if self._trainer.terminated:
                self.terminated()
            if self._trainer.final is not None:  # only the script's end after fit() is missing
                self.drained(self._trainer.final)
            self._ending.drained_short("the final snapshot was not durable in time")

    def _hold_files(self) -> None:
        """Stop sending files: the network is for the last snapshot, if there will be one."""
        if not self._is_plain:
            self._outputs.hold()

    def drained(self, final: int | None) -> NoReturn:
        commit = None if final is None else self._state.commit(final)
        mine = commit is not None and commit.event.attempt == self._journal.attempt
        self._ending.drained(final, commit.event.taken_at if commit is not None and mine else self._node.clock.now())

    def terminated(self) -> NoReturn:
        """End the attempt of a command that is done with its work after SIGTERM, or whose time is over."""
        if self._trainer.final is not None:
            self.drained(self._trainer.final)
        stopped_at = self._node.clock.now()
        self._trainer.kill()
        self._ending.drained(None, stopped_at)

    def _begin(self) -> None:
        """
        Train no further step. A trainer that has done none is ended as it is; a command that makes no snapshots is
        terminated, and has a while to end.
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
