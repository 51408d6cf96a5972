"""
Counts how often the cloud calls a night's function for a run, how long the calls take, and how many requests they send
to the store. The cost of the runner is computed from these counts. The cloud executes the function in several
environments (processes), one after another or at the same time. Each environment keeps its own counts in memory, and
writes them at intervals to its own object.

    calls/ENVIRONMENT.json

When the cloud removes an environment, the counts since the environment's last write are lost. The number of lost calls
is known, because the function is called once a minute: each minute without a counted call is one lost call.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from spotrun.errors import ObjectMissing, StoreError
from spotrun.run.bounds import SMALL_BYTES, Count, Moment, OutOfBounds, Seconds, decode
from spotrun.store.port import Store

FOLDER = "calls/"
WRITTEN_EVERY = timedelta(minutes=30)
CALLED_EVERY = timedelta(minutes=1)
ENVIRONMENTS_MAX = 200
"""Maximum environments that are read. If AWS moves the function every hour, a run has fewer than this in a week."""


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """
    Counts of a function's calls in a period. `seconds` is the total duration of the calls on the function's clock.
    `starting_s` is the part of `seconds` in which Python imported modules. Of the `calls`, `ticks` came from the
    schedule, once a minute, and `events` came from EC2. `reads` and `writes` are requests to the store. `uncounted` is
    the number of calls that are not in `calls`, because their counts were lost.
    """

    began_at: Moment
    ended_at: Moment
    memory_mb: Count
    calls: Count = 0
    ticks: Count = 0
    events: Count = 0
    starts: Count = 0
    seconds: Seconds = 0.0
    starting_s: Seconds = 0.0
    reads: Count = 0
    writes: Count = 0
    log_bytes: Count = 0
    uncounted: Count = 0

    def __add__(self, other: Calls) -> Calls:
        sums = {name: getattr(self, name) + getattr(other, name) for name in _SUMS}
        return Calls(
            began_at=min(self.began_at, other.began_at),
            ended_at=max(self.ended_at, other.ended_at),
            memory_mb=max(self.memory_mb, other.memory_mb),
            **sums,
        )


class RunnerCalls(NamedTuple):
    """The calls of a night's function, and their cost `usd` at the prices that were read on the day `prices_read`."""

    calls: Calls
    usd: Decimal
    prices_read: str


_SUMS = ("calls", "ticks", "events", "starts", "seconds", "starting_s", "reads", "writes", "log_bytes", "uncounted")


def write_calls(store: Store, environment: str, calls: Calls) -> None:
    """
    Write the counts of one environment.

    Raises:
        StoreError: nothing was written; the caller keeps the counts and writes them next time.
    """
    store.put_status(f"{FOLDER}{environment}.json", msgspec.json.encode(calls))


def read_calls(store: Store) -> Calls | None:
    """
    Return the sum of all counts for a run. Return None if no function was called for the run, or if the counts cannot
    be read.
    """
    try:
        listed = store.list(FOLDER)[:ENVIRONMENTS_MAX]
        found = [calls for each in listed if (calls := _read(store, each.key)) is not None]
    except StoreError:
        return None
    return _together(found) if found else None


def _read(store: Store, key: str) -> Calls | None:
    try:
        return decode(store.get(key, 0, SMALL_BYTES), Calls)
    except (ObjectMissing, OutOfBounds):
        return None


def _together(found: Sequence[Calls]) -> Calls:
    total = found[0]
    for each in found[1:]:
        total = total + each
    lost = (total.ended_at - total.began_at) // CALLED_EVERY - total.ticks
    lost_max = len(found) * (WRITTEN_EVERY // CALLED_EVERY)
    return replace(total, uncounted=max(0, min(lost, lost_max)))
