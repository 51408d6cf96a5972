"""
Measures how long each agent of a run has been silent. Only the store's clock is used: both the agents and this runner
write heartbeats to the store. An agent's silence is the time from its newest heartbeat to this runner's newest
heartbeat.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta

from spotrun.clock import Clock
from spotrun.folder.attendance import other_runner, own_host
from spotrun.folder.pace import ALL_THE_TIME, PollIntervals
from spotrun.folder.poll_throttle import PollThrottle
from spotrun.folder.status_objects import FOLDER, RUNNER_KEY, Blindness, RunnerStatus, name_in, write_status
from spotrun.run.gang import MemberName
from spotrun.store.port import Store


class Heartbeats:
    """
    Measures for one runner how long each agent has been silent. The heartbeats are read only at intervals; in between,
    the results do not change.
    """

    def __init__(
        self, store: Store, clock: Clock, erased: Callable[[], None] = lambda: None, pace: PollIntervals = ALL_THE_TIME
    ) -> None:
        """
        Use the heartbeats in `store`, which are read and written at the intervals in `pace`. If this process's own
        heartbeat has disappeared from the store, call `erased` before writing the next one.
        """
        self._erased = erased
        self._store = store
        self._clock = clock
        self._looks = PollThrottle(clock, pace.look_every_s)
        self._pace = pace
        self._sequence = 0
        self._silent: dict[MemberName, timedelta] = {}
        self._newest: datetime | None = None
        self._wrote_at = self._got_through_at = clock.now()
        self._since: datetime | None = None
        self.refused = ""
        """The reason why the store refused this runner's heartbeat, with a hint; "" if the store accepted it."""

    def silent(self, message: str = "", blind: Blindness | None = None) -> dict[MemberName, timedelta]:
        """
        Return, for each member with a heartbeat, how long its agent has been silent. Periods in which this runner's own
        heartbeats did not reach the store are not counted, because the agents' heartbeats may not have reached it
        either.

        If it is time for the next reading, read the heartbeats, and then write this runner's own heartbeat, which
        contains `message` and `blind`. The order matters after this machine has slept: if the runner wrote its own
        heartbeat first, every agent would seem to have been silent for the whole sleep. If another runner takes care of
        the run, use that runner's heartbeat and write none.

        Raises:
            StoreUnavailable: nothing was read; the next call tries again.
        """
        if self._looks.due():
            self._silent = self._look()
            if other_runner(self._store, self._clock) is None:
                self._write(message, blind)
            else:
                self._wrote_at, self.refused = self._clock.now(), ""
            self._looks.taken()
        return self._silent

    @property
    def open_for(self) -> timedelta:
        """
        The time for which this runner's heartbeats have reached the store without a gap; 0 if they do not reach the
        store now.
        """
        if self._newest is None or abs(self._clock.now() - self._got_through_at) > self._pace.gap * self._clock.scale:
            return timedelta()
        return timedelta.max if self._since is None else (self._newest - self._since) * self._clock.scale

    def _look(self) -> dict[MemberName, timedelta]:
        written = {stored.key: stored.modified_at for stored in self._store.list(FOLDER)}
        if RUNNER_KEY not in written:
            if self._sequence:
                self._erased()
            return {}
        now, agents = written[RUNNER_KEY], {name_in(key): at for key, at in written.items()}
        self._note(now)
        since = {name: max(at, self._since or at) for name, at in agents.items() if name is not None}
        return {name: (now - at) * self._clock.scale for name, at in since.items()}

    def _note(self, newest: datetime) -> None:
        """Record the time of this runner's newest heartbeat on the store's clock."""
        if newest == self._newest:
            return
        if self._newest is not None and newest - self._newest > self._pace.gap:
            self._since = newest - self._pace.gap
        self._newest, self._got_through_at = newest, self._wrote_at

    def _write(self, message: str, blind: Blindness | None) -> None:
        self._sequence += 1
        self._wrote_at = now = self._clock.now()
        status = RunnerStatus(
            at=now,
            pid=os.getpid(),
            host=own_host(),
            sequence=self._sequence,
            message=message,
            blind=blind,
            every_s=self._pace.look_every_s,
        )
        refused = write_status(self._store, RUNNER_KEY, status)
        self.refused = "" if refused is None else refused.one_line
