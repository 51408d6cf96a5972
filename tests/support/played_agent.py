"""
An agent without a process and without a training: it writes to the ledger and the store what a real one would. A test
calls its acts one by one, or `act` as time passes, and then its script says what it does.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from math import inf
from typing import NamedTuple

from spotrun.clock import Clock
from spotrun.folder.ledger import EntryRefused, Ledger
from spotrun.folder.status_objects import AgentStatus, agent_key, write_status
from spotrun.run import events as ev
from spotrun.run.state import Launch, RunState
from spotrun.store.port import Store
from tests.support.checkpoint_entries import committed

LEAVES_BEFORE = timedelta(minutes=1)
"""An agent that has notice hands over this long before its instance is taken."""


class Script(NamedTuple):
    """
    What an agent does by itself. It takes over `boots_s` after its launch was intended, trains a step a second, saves
    at each act that is `saves_every_s` after the last save, and completes the run after `steps`. Unless it `hands_over`
    it trains on where a notice or a runner asks it to go.
    """

    boots_s: float = 0.0
    saves_every_s: float = 0.0
    steps: float = inf
    hands_over: bool = True


PLAIN = Script()


class Agent:
    """
    The agent of an instance, which a launch was intended for. Where none is named, it is that of the newest recorded
    one, and takes over now.
    """

    def __init__(
        self,
        ledger: Ledger,
        store: Store,
        clock: Clock,
        script: Script = PLAIN,
        instance: tuple[int, str] | None = None,
    ) -> None:
        self._ledger, self._store, self._clock, self._script = ledger, store, clock, script
        self.step = self._beats = self._commits = 0
        self.attempt: int | None = None
        self._launch, self.instance_id = instance or newest_recorded(ledger.refresh())
        if instance is None:
            self.takes_over()

    # -- acts --------------------------------------------------------------------------------------------------------

    def takes_over(self) -> int:
        """It starts an attempt, restores the newest checkpoint, and trains its first step. Returns the attempt."""
        now = self._clock.now()
        self.attempt = self._write(ev.AttemptStarted(launch=self._launch, instance_id=self.instance_id, booted_at=now))
        newest = self._ledger.state.latest_commit()
        self.step, commit = (0, None) if newest is None else (newest.event.step, newest.number)
        self._write(ev.ResumedFrom(attempt=self.attempt, incarnation=0, commit=commit, epoch=0, step=self.step))
        self._write(ev.TrainingStarted(attempt=self.attempt, incarnation=0, step=self.step + 1))
        self._began_at_step, self._began_s = self.step, self._clock.monotonic()
        self._saved_s = self._began_s
        return self.attempt

    def is_told_to_go(self) -> None:
        """The cloud gives its notice of two minutes."""
        self.is_told(self._clock.now() + timedelta(minutes=2))

    def is_told(self, deadline_at: datetime) -> None:
        """Its cloud will take its instance."""
        self._write(ev.NoticeSeen(attempt=self._number, kind="termination", deadline_at=deadline_at))

    def trains_on(self) -> None:
        """One commit, one heartbeat."""
        self._commit()
        self.beats()

    def beats(self, phase: str = "train") -> None:
        """One heartbeat."""
        self._beats += 1
        status = AgentStatus(
            launch=self._launch, phase=phase, at=self._clock.now(), sequence=self._beats, step=self.step
        )
        write_status(self._store, agent_key(self._launch), status)

    def drains(self, reason: str) -> None:
        """A last commit, and the attempt is handed over."""
        commit = self._commit()
        stopped_at = self._clock.now()
        self._write(ev.AttemptDrained(attempt=self._number, final_commit=commit, stopped_at=stopped_at, reason=reason))

    def completes(self) -> None:
        """The last commit, and the end of the run."""
        commit = self._commit()
        self._write(ev.RunCompleted(attempt=self._number, final_commit=commit, step=self.step))

    # -- the script --------------------------------------------------------------------------------------------------

    def act(self, deadline_at: datetime | None = None) -> bool:
        """Do what is due now; `deadline_at` is when the cloud takes the instance. False: it switches that off."""
        state = self._ledger.refresh()
        launch = state.launches[self._launch]
        if self._clock.now() - launch.intended_at < timedelta(seconds=self._script.boots_s):
            return True
        self.beats("standby" if launch.attempt is None else "train")
        try:
            if launch.attempt is None:
                return self._waits(state, launch)
            return launch.attempt == state.current_attempt and self._trains(state, deadline_at)
        except EntryRefused:
            return False

    def _waits(self, state: RunState, launch: Launch) -> bool:
        if state.terminal is not None or not launch.pending:
            return False
        if state.current is None:
            self.takes_over()
        return True

    def _trains(self, state: RunState, deadline_at: datetime | None) -> bool:
        if deadline_at is not None and state.attempts[self._number].notice is None:
            self.is_told(deadline_at)
        elif self._script.hands_over and self._has_to_leave(state):
            self.drains("told to go")
            return False
        elif self._reached() >= self._script.steps:
            self.completes()
            return False
        elif self._clock.monotonic() - self._saved_s >= self._script.saves_every_s:
            self.trains_on()
        return True

    def _has_to_leave(self, state: RunState) -> bool:
        attempt = state.attempts[self._number]
        if state.stop_requested or attempt.drain is not None:
            return True
        return attempt.notice is not None and self._clock.now() >= attempt.notice.deadline_at - LEAVES_BEFORE

    # -- the ledger --------------------------------------------------------------------------------------------------

    @property
    def _number(self) -> int:
        assert self.attempt is not None, "it has not taken over"
        return self.attempt

    def _reached(self) -> int:
        """How far its training is, a step further at least than its newest commit, and not beyond its end."""
        reached = self._began_at_step + int(self._clock.monotonic() - self._began_s)
        return int(min(self._script.steps, max(self.step + 1, reached)))

    def _commit(self) -> int:
        self.step, self._saved_s = self._reached(), self._clock.monotonic()
        self._commits += 1
        prefix = f"checkpoints/{self._number}-0-{self._commits}"
        return self._write(committed(self._number, prefix, self.step, self._clock.now()))

    def _write(self, event: ev.AnyEvent) -> int:
        entry = self._ledger.append(lambda _: event)
        assert entry is not None
        return entry.number


def newest_recorded(state: RunState) -> tuple[int, str]:
    """The launch and the instance that a runner has recorded last."""
    recorded = [each.recorded for each in state.launches.values() if each.recorded is not None]
    return recorded[-1].launch, recorded[-1].instance_id
