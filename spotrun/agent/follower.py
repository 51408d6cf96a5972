"""
Runs a gang member other than the lead. The member's trainers begin and end according to the ledger (protocol 38).

Within an attempt, the trainers of all members start together. If one of them fails, the lead's agent may have all of
them started again. Each of these starts has a number, the incarnation. The lead's agent restores, saves, and decides
what to do when a trainer ends. It writes each incarnation into the ledger, with the address at which the trainers
connect to each other.

This agent starts a trainer as soon as it reads an incarnation in the ledger. It ends the trainer when it reads the next
incarnation, or the end of the attempt. If the trainer ends by itself, this agent reports how.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn

from spotrun.agent import decisions
from spotrun.agent.agent_context import AgentContext
from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.files.commit_files import StateVersions, StoredFile
from spotrun.agent.files.restore import FilesOfCommit, as_uploaded, restore_state
from spotrun.agent.files.rules import StateFiles, TrainingFiles
from spotrun.agent.gang.connectivity import Connectivity, doors_of_others
from spotrun.agent.gang.rendezvous import Rendezvous
from spotrun.agent.gang.state_answers import StateAnswers
from spotrun.agent.inbox import Exited, LedgerLost, Letter, NoticeHeard, NoticesLost, PowerOff
from spotrun.agent.machine import process_groups
from spotrun.agent.processes.trainer import ABORT_GRACE_S, KILL_WITHIN_S, OUTPUT_BYTES
from spotrun.agent.processes.trainer_process import TrainerProcess, start_trainer
from spotrun.agent.resumption import NothingToResumeFrom, reasons
from spotrun.folder.status_objects import MembersTrainer
from spotrun.run.events import Cause
from spotrun.run.reasons import exit_code_in
from spotrun.run.state import Attempt
from spotrun.units import count_of

TURN_S = 0.1
"""Maximum seconds of system time for which the loop waits for a letter."""
ENDS_BY_ITSELF_WITHIN_S = 30.0
"""
Maximum seconds of system time for which the script is allowed to go on running after the run's completion. Then it is
killed.
"""
REASON_MAX = 500
ONLY_OF_LEAD = "only the lead's files are stored; let only rank 0 write files"
FILES_EVERY_S = 20.0
"""
Seconds of run time between two looks for files that this member's trainer has written. Only files that two looks in
succession find are reported: others are temporary.
"""


class Follower:
    """
    Runs this member's trainers in one attempt. `spare` is a trainer that was started before the attempt, and waits for
    its place in the gang.
    """

    def __init__(self, context: AgentContext, attempt: Attempt, spare: TrainerProcess | None = None) -> None:
        self._context = context
        self._spare = spare
        self._number = attempt.number
        self._place = Rendezvous.of(context, attempt)
        self._reach = Connectivity(
            context.clock, doors_of_others(context.recorder.state, attempt, context.assignment.name)
        )
        self._answers = StateAnswers(context, attempt.number, attempt.names[0])
        self._journal = AttemptJournal(
            context.recorder,
            context.assignment.launch,
            context.assignment.instance_id,
            context.booted_at,
            member=context.assignment.name,
        )
        self._journal.attempt = attempt.number
        self._trainer: TrainerProcess | None = None
        self._exited = False
        self._begun = -1
        self._known: Mapping[str, StoredFile] = {}
        self._of_others: StateVersions | None = None
        self._told_of_files = False
        self._files_seen: frozenset[str] = frozenset()
        self._files_seen_s = context.clock.monotonic()

    def run(self) -> NoReturn:
        """
        Follow the attempt until it ends.

        Raises:
            PowerOff: the attempt has ended, the agent can no longer write to the ledger, or it cannot restore its
                files.
        """
        self._context.status.change(phase="restore", attempt=self._number)
        self._reach.start()
        self._answers.start()
        while True:
            self._context.status.facts["unreached"] = self._reach.unreached
            self._follow()
            self._hear()
            self._look_for_files()

    def _follow(self) -> None:
        if self._is_over:
            self._tell_of_files(self._written() if self._trainer is not None else ())
            terminal = self._context.recorder.state.terminal
            if terminal is not None and terminal.outcome == "completed":
                self._await_the_end()
            raise PowerOff("the attempt is over")
        if self._newest > self._begun:
            self._begin(self._newest)

    @property
    def _is_over(self) -> bool:
        return decisions.is_fenced(self._context.recorder.state, self._number)

    @property
    def _newest(self) -> int:
        """
        The number of the attempt's newest incarnation: 0 when the lead first starts the attempt's trainers, and one
        more each time it starts them again. Before the first start, it is -1.
        """
        return len(self._context.recorder.state.attempts[self._number].trainers) - 1

    def _begin(self, incarnation: int) -> None:
        self._end()
        self._tell_of_files(self._written() if self._trainer is not None else ())
        self._trainer, self._begun = None, incarnation
        self._answers.rest()
        self._tell(MembersTrainer(attempt=self._number, incarnation=incarnation))  # may take long
        newest = self._context.recorder.state.attempts[self._number].trainers[incarnation]
        assert newest.meet is not None
        self._context.status.change(phase="restore")
        meets = self._place.variables(incarnation, newest.meet)
        spare, self._spare = self._spare, None
        if spare is not None and spare.become(incarnation):
            spare.meet(meets)
        else:
            if damage := self._put_files(newest.commit):
                self._tell_ended(incarnation, decisions.FAILED, self._context.clock.now(), damage, damaged=True)
                return
            if self._is_over or self._newest > incarnation:
                return
            self._context.assignment.training_mark.touch()
            spare = start_trainer(self._context, incarnation, meets)
        self._answers.begins(incarnation, self._of_others)
        self._trainer, self._exited = spare, False
        self._reach.begins()
        self._context.status.change(phase="train")

    def _put_files(self, number: int | None) -> str:
        """
        Restore the work folder for commit `number`: the files that the user uploaded and, if the commit holds a
        command's state, the state of this member's rank. If the commit is damaged in the store, return a description of
        the damage; otherwise return "".

        Raises:
            PowerOff: the files cannot be restored here. This agent has already written the attempt's end and the reason
                into the ledger.
        """
        process_groups.end_left_over(self._context.assignment.trainer_mark, self._context.assignment.instance_id)
        commit = None if number is None else self._context.recorder.state.commit(number)
        self._of_others = None
        if commit is None or commit.event.has_image:
            as_uploaded(self._context, self._number)
            return ""
        as_uploaded(self._context, self._number, stays=StateFiles(self._context).covers)
        try:
            with reasons():
                self._known, self._of_others = restore_state(
                    self._context, commit, self._known, self._number, self._place.at
                )
        except NothingToResumeFrom as reason:
            if reason.is_damage:
                return reason.detail
            self._journal.ended(reason.cause, 0, f"{reason.detail} (on {self._context.assignment.name})", missing=())
            raise PowerOff(reason.detail) from reason
        return ""

    def _look_for_files(self) -> None:
        now_s = self._context.clock.monotonic()
        if self._trainer is None or self._told_of_files or now_s - self._files_seen_s < FILES_EVERY_S:
            return
        written = self._written()
        if stay := [path for path in written if path in self._files_seen]:
            self._tell_of_files(stay)
        self._files_seen, self._files_seen_s = frozenset(written), now_s

    def _written(self) -> list[str]:
        """Return the paths of the files that this member's trainer has written, and that no checkpoint contains."""
        newest = self._context.recorder.state.latest_commit()
        has_image = newest is not None and newest.event.has_image
        stays = (lambda _: False) if has_image else StateFiles(self._context).covers
        return FilesOfCommit(self._context, None, {}, TrainingFiles(self._context, stays)).written()

    def _tell_of_files(self, written: Sequence[str]) -> None:
        """Report, in the log and in the ledger, that files of this member are lost. Do so only once."""
        if not written or self._told_of_files:
            return
        self._told_of_files = True
        others = f" and {count_of(len(written) - 1, 'other file')}" if len(written) > 1 else ""
        what = f"{written[0]}{others} of this member"
        self._context.note(f"{what} will be lost: only the lead's files are stored. Let only rank 0 write files")
        if self._is_over:  # nothing more is written about this attempt
            return
        newest = self._context.recorder.state.latest_commit()
        place = f"{written[0]}{others} on member {self._context.assignment.name}"
        self._journal.not_carried(0 if newest is None else newest.event.step, [(place, ONLY_OF_LEAD)])

    def _hear(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._take(self._context.inbox.get(timeout=TURN_S))

    def _take(self, letter: Letter) -> None:
        match letter:
            case NoticeHeard():
                self._context.note(
                    f"{letter.kind} notice" + (f"; its deadline is {letter.deadline_at}" if letter.deadline_at else "")
                )
                self._journal.notice_seen(letter)
            case NoticesLost():
                self._journal.notices_lost(letter)
            case Exited() if self._trainer is not None and letter.incarnation == self._trainer.incarnation:
                self._ended(letter)
            case LedgerLost(reason=reason):
                raise PowerOff(reason)
            case _:
                pass

    def _ended(self, exited: Exited) -> None:
        """
        Report to the lead how and why this member's trainer ended. The lead decides what to do next. It needs the
        reason, because this trainer's error may have made the trainers of all other members fail.
        """
        assert self._trainer is not None
        output = self._context.console.tail(OUTPUT_BYTES, since=self._trainer.log_start)
        code = exit_code_in(output, exited.exit_code)
        words = decisions.exit_words(code, decisions.exit_cause(code, hung=False), output)
        self._tell_ended(exited.incarnation, code, exited.at, str(words))

    def _tell_ended(
        self, incarnation: int, exit_code: int, at: datetime, reason: str, *, damaged: bool = False
    ) -> None:
        self._exited = True
        self._context.status.change(phase="exited")
        self._tell(
            MembersTrainer(
                attempt=self._number,
                incarnation=incarnation,
                exit_code=exit_code,
                at=at,
                reason=reason[:REASON_MAX],
                damaged=damaged,
            )
        )

    def _tell(self, trainer: MembersTrainer) -> None:
        self._context.status.facts["trainer"] = trainer
        self._context.heartbeat.beat_now()

    @property
    def _has_hung(self) -> bool:
        """True if the lead's agent has ended the trainers of the newest incarnation because rank 0 had been silent."""
        exited = self._context.recorder.state.attempts[self._number].trainers[self._begun].exited
        return exited is not None and exited.cause is Cause.HANG

    def _await_the_end(self) -> None:
        """Wait for this member's script to end. The lead's script has already completed."""
        if self._trainer is not None and not self._exited:
            self._trainer.wait(ENDS_BY_ITSELF_WITHIN_S)

    def _end(self) -> None:
        if self._trainer is not None:
            if self._has_hung and not self._exited:
                self._context.note("the training hangs: ending the trainer; its stack traces follow")
                self._trainer.abort(self._context.note)
                self._trainer.wait(ABORT_GRACE_S)
            self._trainer.kill()
            self._trainer.wait(KILL_WITHIN_S)

    def close(self) -> None:
        self._reach.close()
        self._answers.close()
        if self._spare is not None:
            self._spare.kill()
        self._end()
        process_groups.end_left_over(self._context.assignment.trainer_mark, self._context.assignment.instance_id)
