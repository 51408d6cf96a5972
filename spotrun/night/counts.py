"""
Counts how often the cloud calls the function that serves as a night's runner. The run's report shows the sum. Each
environment in which the cloud runs the function counts its own calls.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from spotrun.clock import Clock, system_clock
from spotrun.errors import StoreError
from spotrun.folder.run_calls import WRITTEN_EVERY, Calls, write_calls
from spotrun.store import opening
from spotrun.store.request_counts import RequestCounts, asked


class CallCounter:
    """
    Counts the calls of the function in one of its environments, which has `memory_mb` of memory.

    Most calls are the scheduled ones, once a minute. After these, the counts are written to the run's folder only if
    WRITTEN_EVERY has passed. They are also written after the first and the last call for a run, and after each call
    that was not scheduled.

    `asked_for` returns the number of requests that this process has sent to the store. `starting_s` is the time that
    the process took to start.
    """

    def __init__(
        self,
        runs_uri: str,
        memory_mb: int,
        starting_s: float = 0.0,
        clock: Clock | None = None,
        asked_for: Callable[[], RequestCounts] = asked,
    ) -> None:
        self._uri = runs_uri.rstrip("/")
        self._memory_mb = memory_mb
        self._environment = uuid4().hex[:12]
        self._clock = clock or system_clock()
        self._asked_for = asked_for
        self._before = RequestCounts()
        self._run = ""
        self._starting_s = starting_s
        self._has_started = False
        self._kept_s = 0.0
        self._calls: Calls | None = None
        self._written_at = self._clock.now()
        self._is_written = False

    def count(self, event: Mapping[str, Any], answer: Mapping[str, Any], seconds: float, log_bytes: int) -> None:
        """
        Count a call that took `seconds` and logged `log_bytes`. If the answer names a run, the call is counted for that
        run. Otherwise, it is counted for the run that an answer named last. Calls before the first answer that names a
        run are counted for that run.
        """
        one, run = self._one(event, seconds, log_bytes), answer.get("run") or self._run
        if run != self._run:
            if self._run:
                self._calls = None  # counts of another run, whose last record holds them
            self._run, self._is_written = run, False
        self._calls = one if self._calls is None else self._calls + one
        is_rare = event.get("kind") != "tick"
        due = is_rare or not self._is_written or self._clock.now() - self._written_at >= WRITTEN_EVERY
        if self._run and (due or answer.get("done")):
            self._write(self._calls)

    def _one(self, event: Mapping[str, Any], seconds: float, log_bytes: int) -> Calls:
        now, found = self._clock.now(), self._asked_for()
        new, self._before = found.since(self._before), found
        start_s, starts = (0.0, 0) if self._has_started else (self._starting_s, 1)
        kept_s, self._has_started, self._kept_s = self._kept_s, True, 0.0
        return Calls(
            began_at=now,
            ended_at=now,
            memory_mb=self._memory_mb,
            calls=1,
            ticks=int(event.get("kind") == "tick"),
            events=int("detail-type" in event),
            starts=starts,
            seconds=seconds + start_s + kept_s,
            starting_s=start_s,
            reads=new.reads,
            writes=new.writes,
            log_bytes=log_bytes,
        )

    def _write(self, calls: Calls) -> None:
        """
        Write the counts to the run's folder. They already include the store request that writes them, but not its
        duration, which is counted with the next call.
        """
        began_s = time.monotonic()
        try:
            counted = replace(calls, writes=calls.writes + 1)
            write_calls(opening.open_store(f"{self._uri}/{self._run}"), self._environment, counted)
        except StoreError:
            return
        finally:
            self._kept_s = time.monotonic() - began_s
        self._written_at, self._is_written, self._calls = self._clock.now(), True, counted
        self._before = self._asked_for()


def since_start_s() -> float:
    """Return how many seconds this process has been running, according to /proc; 0 on systems without /proc."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, AttributeError):
        return 0.0
