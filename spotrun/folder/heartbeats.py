"""How long each agent of a run has been silent. The store's clock counts; the runner reads it off its own heartbeat."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

from spotrun.clock import Clock
from spotrun.folder.looks import Looks
from spotrun.folder.status_objects import FOLDER, RUNNER_KEY, RunnerStatus, launch_of, write_status
from spotrun.store.port import Store


class Heartbeats:
    """What one runner knows of them. It looks now and then; between two looks the silences stay as they are."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._looks = Looks(clock)
        self._sequence = 0
        self._silent: dict[int, timedelta] = {}
        self.refused = ""
        """Why the store took no heartbeat of ours, and what to do; empty if it did."""

    def silent(self, message: str = "") -> dict[int, timedelta]:
        """
        By launch, for how long its agent's heartbeat has not changed; a launch without one is absent. `message` goes
        into the runner's own heartbeat.

        It looks first and writes second, so that no agent seems silent after a night in which this machine slept.

        Raises:
            StoreUnavailable: nothing was seen; the next call looks again.
        """
        if self._looks.due():
            self._silent = self._look()
            self._write(message)
            self._looks.taken()
        return self._silent

    def _look(self) -> dict[int, timedelta]:
        written = {stored.key: stored.modified_at for stored in self._store.list(FOLDER)}
        if RUNNER_KEY not in written:
            return {}
        now, agents = written[RUNNER_KEY], {launch_of(key): at for key, at in written.items()}
        return {launch: (now - at) * self._clock.scale for launch, at in agents.items() if launch is not None}

    def _write(self, message: str) -> None:
        self._sequence += 1
        now, host = self._clock.now(), socket.gethostname()
        status = RunnerStatus(at=now, pid=os.getpid(), host=host, sequence=self._sequence, message=message)
        refused = write_status(self._store, RUNNER_KEY, status)
        self.refused = "" if refused is None else refused.one_line
