"""Computes the cost of a gang's ready members while they wait for the others. No function has side effects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from spotrun.run.billing import Meter
from spotrun.run.gang import MemberName
from spotrun.run.state import Attempt, RunState


class WaitingInterval(NamedTuple):
    """
    An interval in which a member waited. `cost_until` and `time_until` are like the methods of `Meter`, but count only
    the cost and the time within this interval.
    """

    meter: Meter
    billed_from: datetime
    ended_at: datetime

    def cost_until(self, moment: datetime) -> Decimal:
        """Return the dollars billed from the start of this interval to `moment`."""
        since, until = min(moment, self.billed_from), min(moment, self.ended_at)
        return self.meter.cost_until(until) - self.meter.cost_until(since)

    def time_until(self, moment: datetime) -> timedelta:
        since, until = min(moment, self.billed_from), min(moment, self.ended_at)
        return self.meter.time_until(until) - self.meter.time_until(since)


def waiting(state: RunState, horizon: datetime) -> Iterator[WaitingInterval]:
    """
    Yield the intervals, up to `horizon`, in which a member was ready but in no attempt.

    The time after an attempt is left out if the next attempt is not allowed to include the member (protocol 32). That
    is so if the member had a notice, or if the attempt had a request to drain.
    """
    if not state.of_gangs:
        return
    trained: defaultdict[MemberName, list[Attempt]] = defaultdict(list)
    for attempt in state.attempts.values():
        for name in attempt.names:
            trained[name].append(attempt)
    end = horizon if state.terminal is None else min(horizon, state.terminal.at)
    for launch in state.launches.values():
        meters = launch.meters(state.created.billing)
        for name, member, meter in zip(launch.names, launch.members, meters, strict=True):
            until = end if member.gone is None else min(end, member.gone.ended_at)
            if member.ready_since is None:
                continue
            for since, ended_at in _between(name, member.ready_since, until, trained[name]):
                yield WaitingInterval(meter, since, ended_at)


def _between(
    name: MemberName, ready_since: datetime, until: datetime, trained: Sequence[Attempt]
) -> Iterator[tuple[datetime, datetime]]:
    since: datetime | None = ready_since
    for attempt in trained:
        if since is not None and since < attempt.started_at:
            yield since, attempt.started_at
        since = None if attempt.end is None or attempt.lets_go(name) else attempt.end.known_at
    if since is not None and since < until:
        yield since, until
