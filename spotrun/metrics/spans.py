"""
Divides a run's time into nested stretches, for tools that show traces. Each stretch begins and ends at the times of
entries in the run's ledger.

    run
    ├── launch             from the request for instances to the end of the last instance
    │   ├── boot, setup    until the attempt's takeover
    │   └── attempt        from its takeover until the ledger records its end
    │       ├── training, and each kind of downtime
    │       └── checkpoint from its snapshot until it is durable
    ├── wait, detect, paused
    └── epoch              may need several attempts

A launch, an attempt or a checkpoint is reported as soon as it is over. All other stretches are reported only after the
run has ended: until then, a later entry may show that a stretch of training was rework.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import NamedTuple

from spotrun.account.outcome import completed_epochs, interrupted
from spotrun.account.summary import summarise
from spotrun.account.timeline import Activity, timeline
from spotrun.report.tables import plain
from spotrun.run.events import Cause
from spotrun.run.state import Attempt, Launch, RunState
from spotrun.units import bounded

Value = str | bool | int | float
RUN = "run"
_OF_LAUNCH = (Activity.BOOT, Activity.SETUP)


class TraceSpan(NamedTuple):
    """
    A stretch of a run's time, in run time.

    `key` identifies the stretch within its run and never changes. `within` is the key of the next larger stretch that
    contains this stretch; None for the run itself. `told` are the attributes that are sent with the stretch. `failed`
    is the reason why the stretch failed; "" if it did not fail.
    """

    key: str
    within: str | None
    name: str
    start: datetime
    end: datetime
    told: Mapping[str, Value] = {}
    failed: str = ""


def stretches(state: RunState) -> Iterator[TraceSpan]:
    """
    Yield all stretches that can be reported so far. These are the launches, attempts and checkpoints that are over.
    Once the run has ended, they also include the run itself and all other stretches.
    """
    if state.terminal is not None:
        yield _run(state)
    for launch in state.launches.values():
        if (end := _end_of(launch)) is not None:
            yield _launch(launch, end)
    for attempt in state.attempts.values():
        if attempt.end is not None:
            yield _attempt(state, attempt, attempt.end.known_at)
    yield from _checkpoints(state)
    if state.terminal is not None:
        yield from _epochs(state)
        yield from _times(state, state.terminal.at)


def _run(state: RunState) -> TraceSpan:
    assert state.terminal is not None
    summary = summarise(state, state.terminal.at)
    told: dict[str, Value] = {
        "spotrun.run": plain(summary.run),
        "spotrun.state": summary.state,
        "spotrun.cost_usd": float(summary.total.cost_usd),
        "spotrun.interruptions": summary.total.interruptions,
        "spotrun.simulated": summary.simulated,
        "spotrun.time_scale": summary.time_scale,
    }
    failed = plain(state.terminal.detail) or "failed" if summary.state == "failed" else ""
    return TraceSpan(RUN, None, plain(summary.name), state.created_at, state.terminal.at, told, failed)


def _launch(launch: Launch, end: datetime) -> TraceSpan:
    offering = launch.intent.offering
    told: dict[str, Value] = {
        "spotrun.launch": launch.number,
        "spotrun.instance_type": plain(offering.instance_type),
        "spotrun.capacity_type": offering.capacity_type,
        "spotrun.usd_per_hour": float(launch.newest_price_usd_per_hour),
        "cloud.provider": plain(offering.cloud),
        "cloud.region": plain(offering.region),
        "cloud.availability_zone": plain(offering.zone),
    }
    refused = launch.closed is not None and launch.recorded is None
    failed = str(launch.closed.cause) if refused and launch.closed is not None else ""
    return TraceSpan(_key_of(launch), RUN, "launch", launch.intended_at, end, told, failed)


def _end_of(launch: Launch) -> datetime | None:
    """Return the end of a launch; None while one of its instances may still run or start."""
    if launch.gone is not None:
        return launch.gone.ended_at
    return launch.closed_at if launch.recorded is None else None


def _attempt(state: RunState, attempt: Attempt, end: datetime) -> TraceSpan:
    assert attempt.end is not None
    told: dict[str, Value] = {
        "spotrun.attempt": state.ordinals()[attempt.number],
        "spotrun.cause": str(attempt.end.cause),
        "spotrun.interrupted": interrupted(state, attempt),
        "spotrun.notice": attempt.notice is not None,
        "host.id": plain(attempt.instance_id),
    }
    failed = plain(attempt.end.detail) or "error" if attempt.end.cause is Cause.USER_ERROR else ""
    around = _key_of(state.launch_of(attempt))
    return TraceSpan(f"attempt/{attempt.number}", around, "attempt", attempt.started_at, end, told, failed)


def _checkpoints(state: RunState) -> Iterator[TraceSpan]:
    for commit in state.commits:
        event = commit.event
        told = {"spotrun.step": event.step, "spotrun.final": event.final, "spotrun.cut_off": commit.cut_off}
        start = event.taken_at - bounded(event.stall_s)
        yield TraceSpan(
            f"checkpoint/{commit.number}", f"attempt/{event.attempt}", "checkpoint", start, commit.at, dict(told)
        )


def _epochs(state: RunState) -> Iterator[TraceSpan]:
    start = state.created_at
    for epoch, end in completed_epochs(state):
        yield TraceSpan(f"epoch/{epoch}", RUN, f"epoch {epoch + 1}", start, end, {"spotrun.epoch": epoch + 1})
        start = end


def _times(state: RunState, end: datetime) -> Iterator[TraceSpan]:
    for number, span in enumerate(timeline(state, end)):
        attempt = None if span.attempt is None else state.attempts[span.attempt]
        if attempt is None:
            around = RUN
        elif span.kind in _OF_LAUNCH:
            around = _key_of(state.asked_last(attempt))
        else:
            around = f"attempt/{attempt.number}"
        name = "training" if span.kind is Activity.PRODUCTIVE else str(span.kind)
        downtime = span.kind not in (Activity.PRODUCTIVE, Activity.PAUSED)
        yield TraceSpan(f"time/{number}", around, name, span.start, span.end, {"spotrun.downtime": downtime})


def _key_of(launch: Launch) -> str:
    return f"launch/{launch.number}"


def in_order(stretch: TraceSpan) -> tuple[datetime, datetime]:
    """
    Return the stretch's start and end. They can come from different clocks; if the end seems to be before the start,
    return the start for both.
    """
    return stretch.start, max(stretch.start, stretch.end)
