"""
What runs have seen of a market. An *observation* is one fact about one pool that other runs can use.

Observations are a fold of a run's ledger, so two runners of one run report the same ones. They only guide where to ask
first: without them a run may ask in a worse order, but it is as correct as with them.
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
"""Further refusals of a pool within this time say nothing new."""


class Fate(StrEnum):
    """
    `lost`: the cloud took an instance back, or said that it will. `kept`: it ended otherwise. `refused`: the pool had
    none to give.
    """

    LOST = "lost"
    KEPT = "kept"
    REFUSED = "refused"


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one launch. `up_s` is for how many seconds of run time its instance had been up by `at`."""

    run: str
    launch: int
    cloud: str
    region: str
    pool: Pool
    kind: Fate
    at: datetime
    up_s: float = 0.0


def observations_of(state: RunState) -> Iterator[Observation]:
    """What this run has to report, by launch: everything that ended, and refusals that are not mere repetitions."""
    refused_at: dict[Pool, datetime] = {}
    for launch in state.launches.values():
        pool = launch.intent.offering.pool
        if _had_none(launch):
            if pool not in refused_at or launch.intended_at - refused_at[pool] >= REFUSALS_APART:
                refused_at[pool] = launch.intended_at
                yield _observation(state, launch, Fate.REFUSED, launch.intended_at)
        elif pool.capacity_type is CapacityType.SPOT and launch.recorded is not None:
            yield from _end(state, launch)


def _had_none(launch: Launch) -> bool:
    refused = launch.closed is not None and launch.closed.cause is Cause.CAPACITY and launch.closed.refused
    return refused or launch.taken_before_it_ran


def _end(state: RunState, launch: Launch) -> Iterator[Observation]:
    """A notice counts as the loss that it announces, so that others hear of it while there is something to gain."""
    attempt = None if launch.attempt is None else state.attempts[launch.attempt]
    if attempt is not None and attempt.notice_at is not None:
        yield _observation(state, launch, Fate.LOST, attempt.notice_at)
    elif launch.gone is not None:
        taken = launch.gone.ended_by is EndedBy.CLOUD
        yield _observation(state, launch, Fate.LOST if taken else Fate.KEPT, launch.gone.ended_at)


def _observation(state: RunState, launch: Launch, kind: Fate, at: datetime) -> Observation:
    offering, recorded = launch.intent.offering, launch.recorded
    up = timedelta() if recorded is None else at - recorded.billed_from
    return Observation(
        run=state.created.uid,
        launch=launch.number,
        cloud=offering.cloud,
        region=offering.region,
        pool=offering.pool,
        kind=kind,
        at=at,
        up_s=max(0.0, up.total_seconds()),
    )


def past_of_living(state: RunState, now: datetime) -> dict[Pool, Past]:
    """The lives so far of the instances that are up and were not told to go: not lost yet."""
    found: dict[Pool, Past] = {}
    for launch in state.launches.values():
        if launch.recorded is not None and launch.open and not any(_end(state, launch)):
            up_s = max(0.0, (now - launch.recorded.billed_from).total_seconds())
            pool = launch.intent.offering.pool
            found[pool] = found.get(pool, Past()) + Past.of(lost=False, up_s=up_s, ago_s=0.0)
    return found


def past_by_pool(observations: Iterable[Observation], now: datetime) -> dict[Pool, Past]:
    """
    The sum of all observations by `now`, per pool; old ones fade.

    A refusal counts as a loss if the pool was not known to be down. After a loss or a refusal it only says that the
    pool is still down, which is no second loss.
    """
    found: dict[Pool, Past] = {}
    down: set[Pool] = set()
    for seen in sorted(observations, key=lambda each: each.at):
        lost = seen.kind is Fate.LOST or (seen.kind is Fate.REFUSED and seen.pool not in down)
        down = down - {seen.pool} if seen.kind is Fate.KEPT else down | {seen.pool}
        ago_s = max(0.0, (now - seen.at).total_seconds())
        found[seen.pool] = found.get(seen.pool, Past()) + Past.of(lost=lost, up_s=seen.up_s, ago_s=ago_s)
    return found


def pools_in_trouble(observations: Iterable[Observation], now: datetime, within: timedelta) -> dict[Pool, Observation]:
    """The pools that lost an instance or had none to give within that time, with the newest such observation."""
    recent = [seen for seen in observations if seen.kind is not Fate.KEPT and now - seen.at < within]
    return {seen.pool: seen for seen in sorted(recent, key=lambda each: each.at)}
