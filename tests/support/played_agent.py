"""An agent whose every act a test calls for: it writes to the ledger and the store what one on an instance would."""

from __future__ import annotations

from datetime import datetime, timedelta

from spotrun.folder.ledger import Ledger
from spotrun.folder.status_objects import AgentStatus, agent_key, write_status
from spotrun.run import events as ev
from spotrun.store.port import Store
from tests.support.checkpoint_entries import committed
from tests.support.manual_clock import ManualClock


class Agent:
    """It takes over on the newest recorded instance."""

    def __init__(self, ledger: Ledger, store: Store, clock: ManualClock) -> None:
        self._ledger, self._store, self._clock = ledger, store, clock
        self._step = self._beats = 0
        state = ledger.refresh()
        self._launch = next(launch for launch in reversed(state.launches.values()) if launch.recorded is not None)
        assert self._launch.recorded is not None
        self.instance_id = self._launch.recorded.instance_id
        self.attempt = self._write(
            ev.AttemptStarted(launch=self._launch.number, instance_id=self.instance_id, booted_at=clock.now())
        )
        newest = state.latest_commit()
        self._step, commit = (0, None) if newest is None else (newest.event.step, newest.number)
        self._write(ev.ResumedFrom(attempt=self.attempt, incarnation=0, commit=commit, epoch=0, step=self._step))
        self._write(ev.TrainingStarted(attempt=self.attempt, incarnation=0, step=self._step + 1))

    def is_told_to_go(self) -> None:
        """The cloud gives its notice of two minutes."""
        self.is_told(self._clock.now() + timedelta(minutes=2))

    def is_told(self, deadline_at: datetime) -> None:
        """Its cloud will take its instance."""
        self._write(ev.NoticeSeen(attempt=self.attempt, kind="termination", deadline_at=deadline_at))

    def trains_on(self) -> None:
        """One step, one commit, one heartbeat."""
        self._step += 1
        self._commit()
        self.beats()

    def beats(self) -> None:
        """One heartbeat."""
        self._beats += 1
        status = AgentStatus(
            launch=self._launch.number, phase="train", at=self._clock.now(), sequence=self._beats, step=self._step
        )
        write_status(self._store, agent_key(self._launch.number), status)

    def drains(self, reason: str) -> None:
        """A last commit, and the attempt is handed over."""
        self._step += 1
        commit = self._commit()
        stopped_at = self._clock.now()
        self._write(ev.AttemptDrained(attempt=self.attempt, final_commit=commit, stopped_at=stopped_at, reason=reason))

    def completes(self) -> None:
        """One more step, the last commit, and the end of the run."""
        self._step += 1
        self._write(ev.RunCompleted(attempt=self.attempt, final_commit=self._commit(), step=self._step))

    def _commit(self) -> int:
        prefix = f"checkpoints/{self.attempt}-{self._step}"
        return self._write(committed(self.attempt, prefix, self._step, self._clock.now()))

    def _write(self, event: ev.AnyEvent) -> int:
        entry = self._ledger.append(lambda _: event)
        assert entry is not None
        return entry.number
