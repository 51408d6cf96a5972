"""
What runs have seen of a market: a *sighting* is one fact about one pool that is worth telling to other runs.

They are a fold of a run's ledger, so two runners of one run tell the same ones. They guide where to ask first, and
nothing else: without them a run may ask in a worse order, and is as correct as with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from spotrun.instance import EndedBy
from spotrun.offering import CapacityType, Pool
from spotrun.run.events import Cause
from spotrun.run.state import Launch, RunState
from spotrun.strategies.history import Past

REFUSALS_APART = timedelta(minutes=10)
"""A pool that goes on refusing tells nothing new for so long."""


class Kind(StrEnum):
    """`lost`: the cloud took an instance back, or said that it will. `kept`: it ended otherwise. `refused`: none."""

    LOST = "lost"
    KEPT = "kept"
    REFUSED = "refused"


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one launch. `up_s` is for how many seconds of run time its instance was there before `at`."""

    run: str
    launch: int
    cloud: str
    region: str
    pool: Pool
    kind: Kind
    at: datetime
    up_s: float = 0.0


def sightings_of(state: RunState) -> Iterator[Sighting]:
    """What this run has to tell, by launch: everything that ended, and refusals that are not just repeated."""
    refused_at: dict[Pool, datetime] = {}
    for launch in state.launches.values():
        pool = launch.intent.offering.pool
        if launch.closed is not None and launch.closed.cause is Cause.CAPACITY and launch.closed.refused:
            if pool not in refused_at or launch.intended_at - refused_at[pool] >= REFUSALS_APART:
                refused_at[pool] = launch.intended_at
                yield _sighting(state, launch, Kind.REFUSED, launch.intended_at)
        elif pool.capacity_type is CapacityType.SPOT and launch.recorded is not None:
            yield from _end(state, launch)


def _end(state: RunState, launch: Launch) -> Iterator[Sighting]:
    """A notice counts as the loss that it announces, so that others hear of it while there is something to gain."""
    attempt = None if launch.attempt is None else state.attempts[launch.attempt]
    if attempt is not None and attempt.notice_at is not None:
        yield _sighting(state, launch, Kind.LOST, attempt.notice_at)
    elif launch.gone is not None:
        taken = launch.gone.ended_by is EndedBy.CLOUD
        yield _sighting(state, launch, Kind.LOST if taken else Kind.KEPT, launch.gone.ended_at)


def _sighting(state: RunState, launch: Launch, kind: Kind, at: datetime) -> Sighting:
    offering, recorded = launch.intent.offering, launch.recorded
    up = timedelta() if recorded is None else at - recorded.billed_from
    return Sighting(
        run=state.created.uid,
        launch=launch.number,
        cloud=offering.cloud,
        region=offering.region,
        pool=offering.pool,
        kind=kind,
        at=at,
        up_s=max(0.0, up.total_seconds()),
    )


def running(state: RunState, now: datetime) -> dict[Pool, Past]:
    """The stretches of the instances that are there and were not told to go: up so far, and not lost."""
    found: dict[Pool, Past] = {}
    for launch in state.launches.values():
        if launch.recorded is not None and launch.open and not any(_end(state, launch)):
            up_s = max(0.0, (now - launch.recorded.billed_from).total_seconds())
            pool = launch.intent.offering.pool
            found[pool] = found.get(pool, Past()) + Past.of(lost=False, up_s=up_s, ago_s=0.0)
    return found


def pasts(sightings: Iterable[Sighting], now: datetime) -> dict[Pool, Past]:
    """
    What they add up to by `now`, per pool, old ones fading.

    A refusal counts as a loss where nothing was known to be wrong: one after a loss or a refusal says that the pool is
    still down, which is no second loss.
    """
    found: dict[Pool, Past] = {}
    down: set[Pool] = set()
    for seen in sorted(sightings, key=lambda each: each.at):
        lost = seen.kind is Kind.LOST or (seen.kind is Kind.REFUSED and seen.pool not in down)
        down = down - {seen.pool} if seen.kind is Kind.KEPT else down | {seen.pool}
        ago_s = max(0.0, (now - seen.at).total_seconds())
        found[seen.pool] = found.get(seen.pool, Past()) + Past.of(lost=lost, up_s=seen.up_s, ago_s=ago_s)
    return found


def troubled(sightings: Iterable[Sighting], now: datetime, within: timedelta) -> dict[Pool, Sighting]:
    """The pools that lost an instance or had none to give so short a while ago, with the newest such sighting."""
    recent = [seen for seen in sightings if seen.kind is not Kind.KEPT and now - seen.at < within]
    return {seen.pool: seen for seen in sorted(recent, key=lambda each: each.at)}
