"""
Saves the state of a command that keeps its state in files. The files are saved as a checkpoint at regular intervals;
each time, the agent waits until they are at rest. They are also saved after a notice and after the command has ended.

This does not apply to scripts that report their steps: commit_files.py includes their files in their checkpoints.
"""

from __future__ import annotations

import os

from spotrun.agent import decisions
from spotrun.agent.agent_context import AgentContext
from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.files.quiescence import in_words
from spotrun.agent.grace_period import GracePeriod, SigtermTimes, StateTimes, Times
from spotrun.agent.inbox import Exited, StateFrozen
from spotrun.agent.pace import Pace
from spotrun.agent.processes.trainer import Trainer
from spotrun.agent.saver import Saver
from spotrun.agent.snapshots.snapshot import Snapshot
from spotrun.agent.trainees.command import Command
from spotrun.agent.trainees.state_watch import CopyRequest, StateWatch
from spotrun.intervals import INTERVAL_MAX
from spotrun.run.events import TrainerExited
from spotrun.trainer_link import SnapshotTaken

PATHS = "the paths of the command's state"
BEGUN_AFTER_S = float(os.environ.get("SPOTRUN_BEGUN_AFTER_S", "60"))
"""
Seconds of system time after which a command counts as not using spotrun's callback, if the callback has not said hello
(sent its first message to the agent).
"""
IMPORTS_SHARE, IMPORTS_AT_MOST = 0.5, 5
"""
Limits for a longer wait for the hello of a Python process. Importing torch and a framework takes 10 to 20 s of
processor time, so on a busy machine the process may still be importing after BEGUN_AFTER_S. The agent continues to wait
while the process has used less processor time than IMPORTS_SHARE of BEGUN_AFTER_S. The total wait is at most
IMPORTS_AT_MOST times BEGUN_AFTER_S.
"""


class StateCommand(Command):
    """
    A command whose state spotrun saves. The state consists of the files at the paths that the job names, and the files
    in $SPOTRUN_STATE_DIR.
    """

    def __init__(
        self,
        context: AgentContext,
        trainer: Trainer,
        journal: AttemptJournal,
        watch: StateWatch,
        pace: Pace,
        saver: Saver,
        drain: GracePeriod,
    ) -> None:
        super().__init__(context, trainer, journal)
        self._watch = watch
        self._pace = pace
        self._saver = saver
        self._drain = drain
        self._began_s = self._due_since_s = context.clock.monotonic()
        self._sequence = 0
        self._takes_s: float | None = None
        self._terminated_s: float | None = None
        self._ended_s = 0.0
        self._last_wanted = self._last_here = self._told_missing = False

    @property
    def _has_state(self) -> bool:
        return super()._has_state or self._watch.stored is not None

    # -- what can be saved now

    def turn(self, now_s: float) -> None:
        if self.trainer.exited is not None:
            return
        if self._drain.draining_s is not None:
            self._watch.drop()
            return
        self._takes_s = decisions.leaving_s(self._state, self._pace.commit_s)
        self._follow_its_begin(now_s)
        noticed = self._drain.deadline_s is not None
        if not (noticed or self._pace.snapshot_due(now_s)) or not self._saver.idle:
            self._due_since_s = now_s
            return
        self._watch.want(CopyRequest(self.trainer.number, is_last=False))
        self._tell_if_restless(now_s)

    def _follow_its_begin(self, now_s: float) -> None:
        silent_s, after_s = now_s - self._began_s, max(BEGUN_AFTER_S, BEGUN_AFTER_S * self._context.clock.scale)
        if silent_s < after_s or self._has_begun:
            return
        unprotected = not self._has_state and self.trainer.runs_python()
        may_import = self.trainer.cpu_s() < IMPORTS_SHARE * BEGUN_AFTER_S and silent_s < IMPORTS_AT_MOST * after_s
        if not (unprotected and may_import):
            self._say_that_it_began(unprotected=unprotected)

    def _tell_if_restless(self, now_s: float) -> None:
        trouble = self._watch.trouble
        interval_s = self._pace.interval_s(now_s) or INTERVAL_MAX.total_seconds()
        if trouble is None:
            self._due_since_s = now_s
            if self._watch.is_missing and now_s - self._began_s >= interval_s:
                self._tell_that_it_is_missing()
            return
        if decisions.is_restless(now_s - self._due_since_s, interval_s):
            what, advice = in_words(trouble)
            intervals = decisions.RESTLESS_INTERVALS
            self._tell(f"no checkpoint of the state for {intervals} intervals, as {what}; try: {advice}", what)

    def _tell_that_it_is_missing(self) -> None:
        if self._told_missing:
            return
        self._told_missing = True
        named = [path for path in self._context.spec.train.state if not path.startswith("!")]
        missing = f"nothing exists at {', '.join(named)}: the state is empty"
        self._context.note(f"{missing}; try: name the files that the command writes, by train: {{state: […]}}")
        self._journal.not_carried(0, [(PATHS, missing)])

    def becomes_training(self) -> None:
        super().becomes_training()
        self._watch.drop()

    def frozen(self, letter: StateFrozen) -> None:
        if letter.incarnation != self.trainer.number:
            self.discard(letter)
            return
        if letter.is_last:
            self._last_here = True
            if letter.state is None and self._watch.trouble is not None:
                self._context.note(f"the command's final state could not be stored: {self._watch.trouble}")
        if letter.state is not None:
            self._say_that_it_began()
            self._pace.frozen(letter.at_s)
            self._saver.offer(self._snapshot(letter))

    def _snapshot(self, letter: StateFrozen) -> Snapshot:
        sequence, self._sequence = self._sequence, self._sequence + 1
        stalled_s = 0.0
        if letter.is_last and self._terminated_s is not None:
            stalled_s = max(0.0, self._ended_s - self._terminated_s)
        return Snapshot(
            attempt=self._journal.attempt,
            incarnation=self.trainer.number,
            sequence=sequence,
            arena=None,
            taken=_taken(final=letter.is_last),
            taken_at=letter.at,
            taken_s=letter.at_s,
            stalled_s=stalled_s,
            why=self._drain.reason or ("end of the command" if letter.is_last else "interval"),
            frozen=letter.state,
        )

    # -- what a notice means

    @property
    def times(self) -> Times:
        if not self._has_state and not self._last_wanted:
            return SigtermTimes()
        return StateTimes(self._takes_s, ended=self._last_wanted)

    def leave(self, now_s: float) -> None:
        self._terminated_s = now_s
        self._watch.drop()
        super().leave(now_s)

    # -- what follows the end

    def awaits_the_last(self, now_s: float) -> bool:
        super().awaits_the_last(now_s)
        exited = self.trainer.exited
        if exited is None or not exited.ended_well or self._last_here:
            return False  # a command that failed leaves no checkpoint at its end
        if not self._last_wanted:
            self._last_wanted = True
            self._ended_s = now_s
            self._watch.want(CopyRequest(self.trainer.number, is_last=True))
        return True

    def why_give_up(self, exited: TrainerExited) -> str | None:
        if self._state.latest_commit() is None:
            return super().why_give_up(exited)
        return decisions.why_give_up_command(self._state, exited, self._context.spec.retry.max_restarts)

    def is_done(self, exited: Exited) -> bool:
        return exited.exit_code == 0 and not self.trainer.hung


def _taken(*, final: bool) -> SnapshotTaken:
    return SnapshotTaken(
        arena=-1, size_bytes=0, epoch=0, batch=0, step=0, stall_s=0.0, finite=True, final=final, epoch_ended=False
    )
