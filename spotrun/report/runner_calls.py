"""
Formats the cost of a run's runner as text and as JSON. Only the runner of a night costs anything: it is a function in
the cloud, and the cloud bills each call. A runner on a user's machine is free.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from spotrun.folder.run_calls import RunnerCalls
from spotrun.report.machine_readable import usd_text
from spotrun.report.tables import dollars, plain, short_duration
from spotrun.units import count_of

TITLE = "What the calls of its runner cost"


def in_words(found: RunnerCalls) -> str:
    calls = found.calls
    took = short_duration(timedelta(seconds=calls.seconds))
    why = f"{calls.ticks:,} by the minute" + (f", {calls.events:,} by the cloud's events" if calls.events else "")
    parts = [
        f"{count_of(calls.calls, 'call')} of the function ({why})",
        f"{took} of {calls.memory_mb} MB",
        f"{count_of(calls.reads, 'read')} of the store and {calls.writes:,} writes and lists",
    ]
    if calls.uncounted:
        parts.append(f"and about {count_of(calls.uncounted, 'call')} that were not counted")
    prices = f"at prices of {plain(found.prices_read)}"
    return f"Calling its runner: {dollars(found.usd)}, not in the total. {', '.join(parts)}; {prices}."


def for_programs(found: RunnerCalls | None) -> dict[str, Any] | None:
    """
    Return the calls of the runner's function, and their cost, in the form that `--json` prints. Return None if no
    function was called for this run.
    """
    if found is None:
        return None
    calls = found.calls
    return {
        "usd": usd_text(found.usd),
        "prices_read": plain(found.prices_read),
        "calls": calls.calls,
        "by_schedule": calls.calls - calls.events,
        "by_events": calls.events,
        "uncounted": calls.uncounted,
        "starts": calls.starts,
        "seconds": round(calls.seconds, 3),
        "memory_mb": calls.memory_mb,
        "reads": calls.reads,
        "writes": calls.writes,
        "log_bytes": calls.log_bytes,
    }
