"""Divides the training of an elastic gang by the number of members that trained. No function has side effects."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from operator import attrgetter
from typing import NamedTuple

from spotrun.account.timeline import Activity, account_end, timeline
from spotrun.run.billing import ZERO
from spotrun.run.state import RunState


class TrainedBy(NamedTuple):
    """
    An interval in which `members` instances trained together. `productive` is the part of it whose result is kept.
    `usd` is the cost of all instances of the run in this interval, including those that did not train yet.
    """

    members: int
    since: datetime
    until: datetime
    productive: timedelta
    usd: Decimal


def intervals(state: RunState, now: datetime) -> list[TrainedBy]:
    """Return an interval for each attempt, in order. Return an empty list if the gang's size never changed."""
    sizes = {attempt.number: len(attempt.names) for attempt in state.attempts.values()}
    if not state.of_gangs or len({*sizes.values()}) < 2:
        return []
    end, productive = account_end(state, now), dict.fromkeys(sizes, timedelta())
    for span in timeline(state, now):
        if span.kind is Activity.PRODUCTIVE and span.attempt is not None:
            productive[span.attempt] += span.duration
    meters = [meter for launch in state.launches.values() for meter in launch.meters(state.created.billing)]
    found = []
    for attempt in state.attempts.values():
        until = max(attempt.started_at, end if attempt.end is None else min(end, attempt.end.known_at))
        usd = sum((meter.cost_until(until) - meter.cost_until(attempt.started_at) for meter in meters), ZERO)
        members = sizes[attempt.number]
        found.append(TrainedBy(members, attempt.started_at, until, productive[attempt.number], usd))
    return found


class OfSize(NamedTuple):
    """The sums over all intervals in which `members` instances trained."""

    members: int
    productive: timedelta
    usd: Decimal


def by_size(found: Sequence[TrainedBy]) -> tuple[OfSize, ...]:
    """Return the sums for each number of members, the largest number first."""
    sums: dict[int, OfSize] = {}
    for each in sorted(found, key=attrgetter("members"), reverse=True):
        before = sums.get(each.members, OfSize(each.members, timedelta(), ZERO))
        sums[each.members] = OfSize(each.members, before.productive + each.productive, before.usd + each.usd)
    return tuple(sums.values())
