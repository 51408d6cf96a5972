"""How long the agents of a run have been silent by the store's clock, which the runner's own heartbeat shows."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

from spotrun.clock import Clock
from spotrun.folder.status_objects import FOLDER, RUNNER_KEY, RunnerHint, launch_of, write_hint
from spotrun.store.port import Store

LOOK_EVERY_S = 15.0
"""Run time. Each look lists and writes, an S3's dearest requests; silence is told in minutes."""
LOOK_MIN_S = 1.0
"""System time."""


class Heartbeats:
    """What one runner knows of them. It looks now and then, and between two looks nobody grows more silent."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._every_s = max(LOOK_EVERY_S, LOOK_MIN_S * clock.scale)
        self._looked_at = -self._every_s
        self._sequence = 0
        self._silent: dict[int, timedelta] = {}

    def silent(self, message: str = "") -> dict[int, timedelta]:
        """
        By launch, how long its agent's heartbeat has not changed; unknown ones are absent. `message` goes into the
        runner's own.

        Seen first and written second: after a night in which this machine slept, nobody was silent.

        Raises:
            StoreUnavailable: nothing was seen, and it is looked again at the next call.
        """
        if self._clock.monotonic() - self._looked_at >= self._every_s:
            self._silent = self._look()
            self._write(message)
            self._looked_at = self._clock.monotonic()
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
        hint = RunnerHint(at=now, pid=os.getpid(), host=host, sequence=self._sequence, message=message)
        write_hint(self._store, RUNNER_KEY, hint)
