"""Whether a store that had no room for a run has room again."""

from __future__ import annotations

from spotrun.clock import Clock
from spotrun.errors import StoreError, WritesRefused
from spotrun.run.events import Cause
from spotrun.run.state import RunState
from spotrun.store.port import Inspectable, Store

TRIAL = "trial"
TRIAL_MAX_BYTES = 16 << 20
"""As large as a part of a checkpoint: what is left of a full disk may still hold small objects."""
LOOK_EVERY_S = 15.0
"""Run time."""
LOOK_MIN_S = 1.0
"""System time."""


class Room:
    """What one runner knows of it. It tries now and then; between two tries the answer stays as it is."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._every_s = max(LOOK_EVERY_S, LOOK_MIN_S * clock.scale)
        self._looked_at = -self._every_s
        self._refused = ""

    def refused(self, state: RunState) -> str:
        """
        Why an attempt could not save now, and what to do; empty if it could. The store is tried only where the last
        attempt has ended because there was no room.
        """
        last = next(reversed(state.attempts.values()), None)
        if last is None or last.end is None or last.end.cause is not Cause.STORE_FULL:
            return ""
        if self._clock.monotonic() - self._looked_at >= self._every_s:
            self._refused = self._try(last.refused_bytes)
            self._looked_at = self._clock.monotonic()
        return self._refused

    def _try(self, size_bytes: int) -> str:
        try:
            self._store.put(TRIAL, bytes(min(size_bytes, TRIAL_MAX_BYTES)))
            self._store.delete(TRIAL)
            free_bytes = self._store.inspect().free_bytes if isinstance(self._store, Inspectable) else None
        except WritesRefused as error:
            return error.one_line
        except StoreError:
            return ""  # no answer: whoever writes next is told
        if free_bytes is not None and free_bytes < size_bytes:
            left, needed = f"{free_bytes / 1e6:,.0f} MB", f"{size_bytes / 1e6:,.0f} MB"
            return (
                f"the disk of {self._store.uri} has {left} left, and a checkpoint takes {needed}; try: make room on it"
            )
        return ""
