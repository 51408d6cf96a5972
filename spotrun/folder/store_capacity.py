"""Checks whether a store that was too full for a checkpoint has room again."""

from __future__ import annotations

from spotrun.address import BucketAddress, parse
from spotrun.clock import Clock
from spotrun.errors import StoreError, WritesRefused
from spotrun.folder.poll_throttle import PollThrottle
from spotrun.run.events import Cause
from spotrun.run.state import RunState
from spotrun.store.port import Inspectable, Store

TRIAL = "trial"
TRIAL_MAX_BYTES = 16 << 20
"""
Maximum bytes of the object that is written to test whether the store has room. The object is as large as a part of a
checkpoint: a full disk may still accept a small object, so a small object would prove nothing.
"""
SMALLEST_BYTES = 1 << 20
"""Assumed size of a checkpoint, in bytes, before the first one."""


class StoreCapacity:
    """
    Tests for a runner whether the store has room. It tests only at intervals; in between, callers get the last result.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._looks = PollThrottle(clock)
        self._refused = ""

    def refused(self, state: RunState) -> str:
        """
        Return the reason why a new attempt would be unable to save its checkpoints, with a hint; "" if it would be able
        to. The store is tested only if the last attempt ended because the store had no room.
        """
        last = next(reversed(state.attempts.values()), None)
        if last is None or last.end is None or last.end.cause is not Cause.STORE_FULL:
            return ""
        if self._looks.due():
            self._refused = self._try(last.refused_bytes)
            self._looks.taken()
        return self._refused

    def _try(self, size_bytes: int) -> str:
        try:
            self._store.put(TRIAL, bytes(min(size_bytes, TRIAL_MAX_BYTES)))
            self._store.delete(TRIAL)
        except WritesRefused as error:
            return error.one_line
        except StoreError:
            return ""  # the store did not answer: the next write reports the error
        return _shortage(self._store, size_bytes)


def shortage(store: Store, state: RunState) -> str:
    """
    Return the reason why a run cannot save its next checkpoint, with a hint. Return "" if the run can save it or has
    ended, or if the free space is unknown.

    The callers are commands that must not write, so no object is written to test the store. This recognizes a full
    disk, but not an exhausted quota. A bucket is not checked, because its space is unlimited.
    """
    if state.terminal is not None or isinstance(parse(store.uri), BucketAddress):
        return ""
    commit, last = state.latest_commit(), next(reversed(state.attempts.values()), None)
    sizes = [0 if commit is None else commit.event.stored_bytes, 0 if last is None else last.refused_bytes]
    return _shortage(store, max(sizes) or SMALLEST_BYTES)


def _shortage(store: Store, size_bytes: int) -> str:
    try:
        free_bytes = store.inspect().free_bytes if isinstance(store, Inspectable) else None
    except StoreError:
        return ""
    if free_bytes is None or free_bytes >= size_bytes:
        return ""
    left, needed = _size(free_bytes), _size(size_bytes)
    return f"the disk of {store.uri} has {left} left, and a checkpoint takes {needed}; try: free some space on it"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.0f} MB" if size_bytes >= 10**7 else f"{size_bytes / 1e3:,.0f} kB"
