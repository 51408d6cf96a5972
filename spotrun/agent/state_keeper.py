"""
Makes checkpoints of a command's state: when it is time for one and the state rests, at a notice, and after its end.

A training with our callback has its files in its own checkpoints (commit_files.py); then nothing of this applies.
"""

from __future__ import annotations

import os

from spotrun.agent import decisions
from spotrun.agent.attempt_journal import AttemptJournal
from spotrun.agent.drain import Drain
from spotrun.agent.inbox import StateFrozen
from spotrun.agent.node import Node
from spotrun.agent.pace import Pace
from spotrun.agent.rest import in_words
from spotrun.agent.saver import Saver
from spotrun.agent.snapshots import Snapshot
from spotrun.agent.state_watch import StateWatch, Wish
from spotrun.agent.trainer import Trainer
from spotrun.intervals import INTERVAL_MAX
from spotrun.run.protection import PROTECT, UNPROTECTED
from spotrun.trainer_link import SnapshotTaken

PLACE = "the state of the command"


BEGUN_AFTER_S = float(os.environ.get("SPOTRUN_BEGUN_AFTER_S", "60"))
"""System seconds of silence after which a command counts as training without us. Tests set fewer."""
IMPORTS_SHARE, IMPORTS_AT_MOST = 0.5, 5
"""
Share and factor for a Python that may still be importing on a busy machine: it has computed for less than this share of
that time, for at most this many times as long. Importing torch and a framework takes 10 to 20 s of a processor.
"""


class StateKeeper:
    """Keeps the state of one attempt's commands. `begins` comes before each of them."""

    def __init__(
        self, node: Node, watch: StateWatch, journal: AttemptJournal, pace: Pace, saver: Saver, drain: Drain
    ) -> None:
        self._node = node
        self._journal = journal
        self._pace = pace
        self._saver = saver
        self._drain = drain
        self._watch = watch
        self._trainer: Trainer | None = None
        self._began_at = node.clock.now()
        self._began_s = self._due_since_s = node.clock.monotonic()
        self._sequence = 0
        self._terminated_s: float | None = None
        self._ended_s = 0.0
        self._last_wanted = self._last_here = False
        self._told = self._unprotected = False

    def put_back(self) -> None:
        """Note that the state is that of the newest checkpoint. Only before the command starts: it may end at once."""
        self._watch.stored = self._watch.look().survey

    def begins(self, trainer: Trainer) -> None:
        """Note that a command has begun."""
        self._trainer = trainer
        self._began_at, self._began_s = self._node.clock.now(), self._node.clock.monotonic()
        self._due_since_s = self._began_s
        self._terminated_s, self._last_wanted, self._last_here = None, False, False
        self._unprotected = False

    def rest(self) -> None:
        """Copy nothing from here on until a command begins."""
        self._watch.rest()

    @property
    def is_keeping(self) -> bool:
        """True if the state of this command is checkpointed here."""
        trained = any(commit.event.has_image for commit in self._node.recorder.state.commits)
        return self._trainer is not None and not self._trainer.makes_snapshots and not trained

    # -- while it runs -----------------------------------------------------------------------------------------------

    def turn(self, now_s: float) -> None:
        assert self._trainer is not None
        self._drain.keeps_state = self.is_keeping and self._has_state
        if self._trainer.exited is not None:
            return
        if self._trainer.makes_snapshots:
            self._say_that_it_came()
        if not self.is_keeping or self._drain.draining_s is not None:
            self._watch.drop()
            return
        self._drain.leaving_s = decisions.leaving_s(self._node.recorder.state, self._pace.commit_s)
        self._follow_its_begin(now_s)
        noticed = self._drain.deadline_s is not None
        if not (noticed or self._pace.snapshot_due(now_s)) or not self._saver.idle:
            self._due_since_s = now_s
            return
        self._watch.want(Wish(self._trainer.number, is_last=False))
        self._tell_if_restless(now_s)

    def _follow_its_begin(self, now_s: float) -> None:
        assert self._trainer is not None
        silent_s, after_s = now_s - self._began_s, max(BEGUN_AFTER_S, BEGUN_AFTER_S * self._node.clock.scale)
        if silent_s < after_s or self._trainer.has_begun:
            return
        unprotected = not self._has_state and self._trainer.runs_python()
        may_import = self._trainer.cpu_s() < IMPORTS_SHARE * BEGUN_AFTER_S and silent_s < IMPORTS_AT_MOST * after_s
        if not (unprotected and may_import):
            self._say_that_it_began(unprotected=unprotected)

    @property
    def _has_state(self) -> bool:
        """True if a state was kept, or the job names one."""
        return bool(self._node.spec.train.state) or self._watch.stored is not None

    def _say_that_it_began(self, *, unprotected: bool = False) -> None:
        assert self._trainer is not None
        if self._trainer.has_begun or self._trainer.makes_snapshots:
            return
        self._trainer.has_begun = True
        self._unprotected = unprotected
        self._journal.command_began(self._trainer.number, self._began_at, unprotected=unprotected)
        if unprotected:
            self._node.note(f"UNPROTECTED: {UNPROTECTED}. {PROTECT}")

    def _say_that_it_came(self) -> None:
        if self._unprotected:
            self._unprotected = False
            self._node.note("the training has found its agent: it is protected from here on")

    def _tell_if_restless(self, now_s: float) -> None:
        trouble = self._watch.trouble
        if trouble is None:
            self._due_since_s = now_s
            return
        interval_s = self._pace.interval_s(now_s) or INTERVAL_MAX.total_seconds()
        if not self._told and decisions.is_restless(now_s - self._due_since_s, interval_s):
            self._tell(trouble)

    def _tell(self, trouble: str) -> None:
        self._told = True
        what, advice = in_words(trouble)
        self._node.note(
            f"no checkpoint of the state for {decisions.RESTLESS_INTERVALS} intervals, as {what}; try: {advice}"
        )
        self._journal.not_carried(0, [(PLACE, self._node.console.clean(what))])

    # -- its end -----------------------------------------------------------------------------------------------------

    def terminated(self, now_s: float) -> None:
        """Note that the command has to end."""
        self._terminated_s = now_s
        self._watch.drop()

    def awaits_the_last(self, now_s: float) -> bool:
        """
        Return True while a copy of the ended command's state is still being made. A command that has failed leaves
        none.
        """
        assert self._trainer is not None
        exited = self._trainer.exited
        if exited is None:
            return False
        if self._has_state or self._node.spec.train.run is not None:
            self._say_that_it_began()
        if not exited.ended_well or not self.is_keeping or self._last_here:
            return False
        if not self._last_wanted:
            self._last_wanted = True
            self._ended_s = now_s
            self._drain.command_ended()
            self._watch.want(Wish(self._trainer.number, is_last=True))
        return True

    # -- a copy ------------------------------------------------------------------------------------------------------

    def frozen(self, letter: StateFrozen) -> None:
        """Offer the copy to the saver, or close it if it comes too late."""
        assert self._trainer is not None
        if letter.is_last:
            self._last_here = True
            if letter.state is None and self._watch.trouble is not None:
                self._node.note(f"the state at the command's end could not be stored: {self._watch.trouble}")
        if letter.state is None:
            return
        if letter.incarnation != self._trainer.number or not self.is_keeping:
            letter.state.close()
            return
        self._say_that_it_began()
        self._pace.frozen(letter.at_s)
        self._saver.offer(self._snapshot(letter))

    def _snapshot(self, letter: StateFrozen) -> Snapshot:
        assert self._trainer is not None
        sequence, self._sequence = self._sequence, self._sequence + 1
        stalled_s = 0.0
        if letter.is_last and self._terminated_s is not None:
            stalled_s = max(0.0, self._ended_s - self._terminated_s)
        return Snapshot(
            attempt=self._journal.attempt,
            incarnation=self._trainer.number,
            sequence=sequence,
            arena=None,
            taken=_taken(final=letter.is_last),
            taken_at=letter.at,
            taken_s=letter.at_s,
            stalled_s=stalled_s,
            why=self._why(letter),
            frozen=letter.state,
        )

    def _why(self, letter: StateFrozen) -> str:
        if letter.is_last:
            return self._drain.reason or "end of the command"
        return self._drain.reason or "interval"

    def saved(self, snapshot: Snapshot) -> None:
        """Note that the snapshot is a commit."""
        if snapshot.state is not None:
            self._watch.stored = snapshot.state.survey

    def given_up(self, reason: str) -> None:
        """Report a state that holds what may not be stored."""
        if not self._told:
            self._told = True
            self._node.note(f"no checkpoint of the command's state: {reason}")
            self._journal.not_carried(0, [(PLACE, self._node.console.clean(reason))])


def _taken(*, final: bool) -> SnapshotTaken:
    """Return what was taken without an image: no step, no epoch."""
    return SnapshotTaken(
        arena=-1, size_bytes=0, epoch=0, batch=0, step=0, stall_s=0.0, finite=True, final=final, epoch_ended=False
    )
