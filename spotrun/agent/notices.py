"""
Watching for notices that this instance will be taken, from the source that its cloud has. The watcher tells the main
loop and does nothing else. A source that gives no answer makes it *blind*: it says so once, and training goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from spotrun.agent.inbox import Inbox, NoticeHeard, NoticesLost
from spotrun.clock import Clock
from spotrun.clouds.notices import Blind, NoticeSource

POLL_S = 5.0
"""Run time."""
POLL_MIN_S, POLL_MAX_S = 0.05, 2.0
"""System time."""
BLIND_AFTER = 3
"""Consecutive failures."""


class NoticeWatcher:
    """A thread that polls. Each kind of notice is told once; the same deadline twice is one notice."""

    def __init__(self, source: NoticeSource, clock: Clock, inbox: Inbox, note: Callable[[str], None]) -> None:
        self._source = source
        self._clock = clock
        self._inbox = inbox
        self._note = note
        self._told: set[str] = set()
        self._failures = 0
        self._every_s = min(max(POLL_S / clock.scale, POLL_MIN_S), POLL_MAX_S)
        self._stop = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._work, name="notices", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()

    def _work(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                self._look()
                self._failures = 0
            except Blind as error:
                self._count(error)

    def _count(self, error: Blind) -> None:
        self._failures += 1
        if self._failures == BLIND_AFTER:
            self._note(f"interruption notices cannot be seen: {error}; checkpoints go on at their interval")
            self._once("blind", NoticesLost(str(error)))

    def _look(self) -> None:
        asked_s = self._clock.monotonic()
        for kind, deadline_at, left_s in self._source.notices():
            self._once(kind, NoticeHeard(kind, deadline_at, None if left_s is None else asked_s + left_s))

    def _once(self, what: str, letter: NoticeHeard | NoticesLost) -> None:
        if what not in self._told:
            self._told.add(what)
            self._inbox.put(letter)
