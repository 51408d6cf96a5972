"""
Computes the market observations of runs. An *observation* is one fact about one pool that other runs can use.

A run's observations depend only on its ledger, so all runners of the run report the same ones. Another run uses the
observations only to decide which pool to try first. Without them, it may try the pools in a worse order, but its
training gives the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
from msgspec import UNSET

from spotrun.instance import EndedBy
from spotrun.offering import CapacityType, Pool
from spotrun.run.events import Cause
from spotrun.run.gang import MemberName
from spotrun.run.state import Launch, RunState
from spotrun.strategies.history import Past

REFUSALS_APART = timedelta(minutes=10)
"""
Minimum time between two refusals of a pool for both to count. A refusal that follows sooner is not counted, because it
gives no new information.
"""


class Fate(StrEnum):
    """
    The outcome of a launch or of one of its instances. `lost`: the cloud took the instance, or has announced that it
    will. `kept`: the instance ended in another way. `refused`: the pool had no capacity, so no instance ran.
    """

    LOST = "lost"
    KEPT = "kept"
    REFUSED = "refused"


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """
    The outcome of one instance, or of a launch for which the pool provided no instance.

    `member` is the instance's number within its launch. `at` is the time of the outcome, and `up_s` is how long the
    instance had been up at that time, in seconds of run time.
    """

    run: str
    launch: int
    cloud: str
    region: str
    pool: Pool
    kind: Fate
    at: datetime
    up_s: float = 0.0
    member: int = 0


def observations_of(state: RunState) -> Iterator[Observation]:
    """
    Yield this run's observations, launch by launch: the outcome of each instance that ended, and the refusals. A
    refusal that comes less than REFUSALS_APART after the previous refusal is left out.

    Each member of a gang counts separately, with its own hours and its own loss, because a pool's hazard is the number
    of losses per hour of one instance. If a gang loses two members at the same time, the run is interrupted once, but
    the pool has lost two instances.
    """
    refused_at: dict[Pool, datetime] = {}
    told_to_go = _told_to_go(state)
    for launch in state.launches.values():
        pool = launch.intent.offering.pool
        if pool.capacity_type is CapacityType.OWN:
            continue  # the user's own machine is not part of any market
        if _had_none(launch):
            if pool not in refused_at or launch.intended_at - refused_at[pool] >= REFUSALS_APART:
                refused_at[pool] = launch.intended_at
                yield _observation(state, MemberName(launch.number, 0), Fate.REFUSED, launch.intended_at)
        elif pool.capacity_type is CapacityType.SPOT:
            for name in _recorded(launch):
                yield from _end(state, name, told_to_go)


def _had_none(launch: Launch) -> bool:
    refused = launch.closed is not None and launch.closed.cause is Cause.CAPACITY and launch.closed.refused
    return refused or launch.taken_before_it_ran


def _recorded(launch: Launch) -> list[MemberName]:
    return [MemberName(launch.number, at) for at, member in enumerate(launch.members) if member.recorded is not None]


def _told_to_go(state: RunState) -> dict[MemberName, datetime]:
    """Return the time of the cloud's notice for each member that has had one."""
    found: dict[MemberName, datetime] = {}
    for attempt in state.attempts.values():
        if attempt.notice is not None and attempt.notice_at is not None:
            member = attempt.notice.member
            found[attempt.names[0] if member is UNSET else member] = attempt.notice_at
    return found


def _end(state: RunState, name: MemberName, told_to_go: Mapping[MemberName, datetime]) -> Iterator[Observation]:
    """
    Yield the outcome of an instance, if it is known. An instance counts as lost from its notice on, so that other runs
    learn of the loss early.
    """
    gone = state.member(name).gone
    if name in told_to_go:
        yield _observation(state, name, Fate.LOST, told_to_go[name])
    elif gone is not None:
        taken = gone.ended_by is EndedBy.CLOUD
        yield _observation(state, name, Fate.LOST if taken else Fate.KEPT, gone.ended_at)


def _observation(state: RunState, name: MemberName, kind: Fate, at: datetime) -> Observation:
    offering, recorded = state.launches[name.launch].intent.offering, state.member(name).recorded
    up = timedelta() if recorded is None else at - recorded.billed_from
    return Observation(
        run=state.created.uid,
        launch=name.launch,
        member=name.member,
        cloud=offering.cloud,
        region=offering.region,
        pool=offering.pool,
        kind=kind,
        at=at,
        up_s=max(0.0, up.total_seconds()),
    )


def past_of_living(state: RunState, now: datetime) -> dict[Pool, Past]:
    """
    Return, for each pool, the total time for which this run's live instances in the pool have been up. Instances that
    have a notice are left out.
    """
    found: dict[Pool, Past] = {}
    told_to_go = _told_to_go(state)
    for launch in (launch for launch in state.launches.values() if launch.open):
        for name in _recorded(launch):
            member, pool = state.member(name), launch.intent.offering.pool
            if member.recorded is not None and member.gone is None and name not in told_to_go:
                up_s = max(0.0, (now - member.recorded.billed_from).total_seconds())
                found[pool] = found.get(pool, Past()) + Past.of(lost=False, up_s=up_s, ago_s=0.0)
    return found


def past_by_pool(observations: Iterable[Observation], now: datetime) -> dict[Pool, Past]:
    """
    Return a weighted sum of each pool's observations as of `now`. The older an observation is, the less it counts.

    A refusal counts as a loss only if it is the first sign that the pool has lost its capacity. A refusal that follows
    a loss or another refusal is not counted, because it only confirms that the pool still has no capacity.
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
    """
    Return the pools that lost or refused an instance less than `within` before `now`, each with its newest loss or
    refusal.
    """
    recent = [seen for seen in observations if seen.kind is not Fate.KEPT and now - seen.at < within]
    return {seen.pool: seen for seen in sorted(recent, key=lambda each: each.at)}
