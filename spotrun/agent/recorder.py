"""
Reads and writes the ledger for an agent, in one thread.

Appends are put into a queue and written in order. `append` immediately returns a future, and the caller decides whether
to wait for the result. So a slow store does not hold up the main loop or the uploads. If the store does not answer, the
append is retried, because the store may answer later; training continues meanwhile (promise I6).
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from spotrun.agent.inbox import EntryUnwritten, Inbox, LedgerLost, LedgerRead
from spotrun.agent.logs.clean_texts import Clean, cleaned
from spotrun.clock import Clock
from spotrun.errors import SpotrunError, StoreUnavailable, WritesRefused
from spotrun.folder.ledger import Decide, Ledger
from spotrun.run.events import AnyEvent, Entry
from spotrun.run.state import RunState

TAIL_S = 2.0
"""Seconds of run time between two checks for a new entry."""
TAIL_MIN_S = 0.1
"""Minimum seconds of system time between two such checks."""
PAUSE_S = 1.0
"""Seconds of system time between two tries. One try lasts at most a minute."""
GIVE_UP_AFTER_S = 3600.0
"""
Maximum seconds of system time for which the recorder tries to reach the store. A run whose store is absent for longer
is lost.
"""
ROOM_WITHIN_S = float(os.environ.get("SPOTRUN_ROOM_WITHIN_S", "900"))
"""
Maximum seconds of system time for which an instance waits for a store that refuses writes. The waiting instance costs
money, and its unsaved progress (by default ten minutes of training) is seldom worth more. Tests set a smaller value.
"""

Job = tuple[Decide, "Future[Entry | None]"]


def unless(done: Callable[[RunState], object], event: AnyEvent) -> Decide:
    """
    Return a function for `Ledger.append` that writes `event`, unless `done` finds in the run's state that the event is
    already written. If the store's answer to an append is lost, the ledger calls the function again, and the event is
    still written only once.
    """
    return lambda state: None if done(state) else event


class Recorder:
    """
    Appends events in order, and reads new entries of the ledger. `clean` removes secrets from all texts of the events.
    If an append fails for a reason that makes all later appends fail too, the recorder puts a LedgerLost into the
    inbox.
    """

    def __init__(self, ledger: Ledger, clock: Clock, inbox: Inbox, clean: Clean) -> None:
        self._ledger = ledger
        self._clean = clean
        self._inbox = inbox
        self._tail_s = max(TAIL_MIN_S, TAIL_S / clock.scale)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="ledger", daemon=True)
        self._told = 0

    @property
    def state(self) -> RunState:
        """
        The fold of the entries read so far. While the store answers, it is at most a few seconds old, in run time.
        """
        return self._ledger.state

    def start(self) -> None:
        self._told = self.state.next_number
        self._thread.start()

    def stop(self) -> None:
        """Stop after the appends in the queue are done."""
        self._jobs.put(None)

    def append(self, decide: Decide) -> Future[Entry | None]:
        """
        Queue an append. Return a future whose result is the written entry, or None if `decide` returned None.

        The future raises the errors of Ledger.append. It raises StoreUnavailable only after the recorder has tried for
        an hour, and WritesRefused only after it has tried for ROOM_WITHIN_S.
        """
        future: Future[Entry | None] = Future()
        self._jobs.put((lambda state: cleaned(decide(state), self._clean), future))
        return future

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=self._tail_s)
            except queue.Empty:
                self._tail()
                continue
            if job is None:
                return
            self._append(*job)

    def _append(self, decide: Decide, future: Future[Entry | None]) -> None:
        began_s, told = time.monotonic(), False
        while True:
            try:
                future.set_result(self._ledger.append(decide))
                self._tell()
                return
            except StoreUnavailable as error:
                refused = isinstance(error, WritesRefused)
                if refused and not told:
                    told = True
                    self._inbox.put(EntryUnwritten(error.one_line))
                if time.monotonic() - began_s < (ROOM_WITHIN_S if refused else GIVE_UP_AFTER_S):
                    time.sleep(PAUSE_S)
                    continue
                self._fail(future, error)
                return
            except SpotrunError as error:  # EntryRefused, LedgerDamaged, or no right to write
                self._fail(future, error)
                return

    def _fail(self, future: Future[Entry | None], error: SpotrunError) -> None:
        future.set_exception(error)
        self._inbox.put(LedgerLost(error.message))

    def _tail(self) -> None:
        try:
            self._ledger.refresh()
        except StoreUnavailable:
            return
        except SpotrunError as error:
            self._inbox.put(LedgerLost(error.message))
            return
        self._tell()

    def _tell(self) -> None:
        if self.state.next_number != self._told:
            self._told = self.state.next_number
            self._inbox.put(LedgerRead())
