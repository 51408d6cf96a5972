"""
Watches the cloud's sources of notices for this instance, and reports each notice to the main loop. If a source does
not answer, the watcher is *blind*. It reports this once, and training continues.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from spotrun.agent.inbox import Inbox, NoticeHeard, NoticesLost
from spotrun.clock import Clock
from spotrun.clouds.notices import Blind, NoticeSource

POLL_S = 5.0
"""
Seconds of run time between two polls. If a source took longer than this to answer, it is polled again
immediately.
"""
POLL_MIN_S, POLL_MAX_S = 0.05, 2.0
"""Minimum and maximum of POLL_S in seconds of system time."""
BLIND_AFTER = 3
"""Number of consecutive failures of a source after which the watcher counts as blind."""


class NoticeWatcher:
    """Watches each source in a separate thread. Each kind of notice is reported only once."""

    def __init__(
        self, sources: Sequence[NoticeSource], clock: Clock, inbox: Inbox, note: Callable[[str], None]
    ) -> None:
        self._sources = sources
        self._inbox = inbox
        self._note = note
        self._told: set[str] = set()
        self._telling = threading.Lock()
        self._every_s = min(max(POLL_S / clock.scale, POLL_MIN_S), POLL_MAX_S)
        self._stop = threading.Event()

    def start(self) -> None:
        for source in self._sources:
            threading.Thread(target=self._watch, args=(source,), name="notices", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    @property
    def heard_end(self) -> bool:
        """True once the cloud has announced that it will take this instance."""
        return "termination" in self._told

    def _watch(self, source: NoticeSource) -> None:
        failures, asked_s = 0, time.monotonic()
        while not self._stop.wait(max(0.0, asked_s + self._every_s - time.monotonic())):
            asked_s = time.monotonic()
            try:
                for notice in source.notices():
                    if self._is_new(notice.kind):
                        self._inbox.put(NoticeHeard(*notice))
                failures = 0
            except Blind as error:
                failures += 1
                if failures == BLIND_AFTER:
                    self._lost(str(error))

    def _lost(self, reason: str) -> None:
        if self._is_new("blind"):
            self._note(f"interruption notices cannot be received: {reason}; checkpoints continue at their interval")
            self._inbox.put(NoticesLost(reason))

    def _is_new(self, what: str) -> bool:
        """Return True if `what` has not been reported yet. Record it as reported."""
        with self._telling:
            new = what not in self._told
            self._told.add(what)
            return new
