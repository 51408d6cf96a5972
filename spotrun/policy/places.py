"""
Which offerings may be asked for now, and in which order: the least dollars per hour of progress first.

    price per hour of progress = price now * (1 + changeover / expected life)

The life is expected from what this run and others have seen of the pool. What has just refused this run rests; what was
just lost, refused any run, or was said to be in danger, comes last whatever it costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from math import inf

from spotrun.events import Cause
from spotrun.hazard import FOLLOWS_WITHIN
from spotrun.market import World, affordable
from spotrun.offering import CapacityType, Offering, Pool
from spotrun.policy.patience import since_opened
from spotrun.policy.situation import TROUBLE_LASTS, changeover, market_history, name_of
from spotrun.policy.workload import workload
from spotrun.sightings import Sighting, sightings_of, troubled
from spotrun.spec import RunSpec
from spotrun.state import Launch, RunState
from spotrun.strategies.history import FADING_S

POOL_REST = timedelta(minutes=2)
"""A pool that had no capacity is not asked again for so long."""


def within_price(spec: RunSpec, world: World) -> list[Offering]:
    return [found for found in world.offerings if affordable(found, spec.resources.max_price)]


def spot_offerings(spec: RunSpec, world: World) -> list[Offering]:
    return [found for found in within_price(spec, world) if found.capacity_type is CapacityType.SPOT]


def spot_launches(state: RunState) -> list[Launch]:
    spot = CapacityType.SPOT
    return [launch for launch in state.launches.values() if launch.intent.offering.capacity_type is spot]


def on_demand_now(state: RunState, spec: RunSpec, world: World, now: datetime) -> list[Offering]:
    """The on-demand offerings worth asking for now, best first."""
    at_rest, trouble = resting(state, now), just_lost(state, world, now)
    on_demand = [found for found in within_price(spec, world) if found.capacity_type is CapacityType.ON_DEMAND]
    asked = [found for found in on_demand if found.pool not in at_rest]
    return sorted(asked, key=lambda found: (found.pool in trouble, found.price_usd_per_hour))


def spot_now(state: RunState, spec: RunSpec, world: World, now: datetime) -> list[Offering]:
    """The spot offerings worth asking for now, best first."""
    return list(_spot_by_progress(state, spec, world, now, horizon_s(state, spec, world, now)))


def worthwhile_spot(state: RunState, spec: RunSpec, world: World, now: datetime) -> list[Offering]:
    """Of those, what makes an hour of progress cheaper than on demand, where one that runs already need not start."""
    stays = state.current is not None and not state.current.leaving
    started = 0.0 if stays else changeover(state)
    all_work = horizon_s(state, spec, world, now)
    on_demand = [_price_of_progress(found, all_work, started) for found in on_demand_now(state, spec, world, now)]
    limit = min(on_demand, default=inf)
    return [found for found, usd in _spot_by_progress(state, spec, world, now, all_work).items() if usd < limit]


def _spot_by_progress(
    state: RunState, spec: RunSpec, world: World, now: datetime, all_work: float
) -> dict[Offering, float]:
    """What may be asked for now, best first, each with its price of progress; `all_work` as `horizon_s` tells it."""
    at_rest, trouble = resting(state, now), {*just_lost(state, world, now), *at_risk(state, now)}
    asked = [found for found in spot_offerings(spec, world) if found.pool not in at_rest]
    lives, d = expected_lives(state, asked, world, now, all_work), changeover(state)
    usd = {found: _price_of_progress(found, lives[found.pool], d) for found in asked}
    return {found: usd[found] for found in sorted(asked, key=lambda found: (found.pool in trouble, usd[found]))}


def _price_of_progress(offering: Offering, life_s: float, changeover_s: float) -> float:
    """USD per hour of progress: a changeover is paid once in a life."""
    return float(offering.price_usd_per_hour) * (1 + changeover_s / life_s)


def expected_lives(
    state: RunState, spot: Iterable[Offering], world: World, now: datetime, all_work: float
) -> dict[Pool, float]:
    """How many seconds each spot pool is expected to last from now on, at most as long as there is work."""
    assert state.created_at is not None
    history, now_s = market_history(state, world, now), (now - state.created_at).total_seconds()
    return {found.pool: history.expected_life_s(name_of(found.pool), now_s, all_work) for found in spot}


def horizon_s(state: RunState, spec: RunSpec, world: World, now: datetime) -> float:
    """For how long an instance is needed: until the work is done, where that is known."""
    known = workload(state, spec, world, now)
    return FADING_S if known is None else max(1.0, known.left_s + changeover(state))


def just_lost(state: RunState, world: World, now: datetime) -> dict[Pool, Sighting]:
    """The pools that this run or another was interrupted in, told to leave or refused by a short while ago."""
    return troubled([*sightings_of(state), *world.sightings], now, TROUBLE_LASTS)


def at_risk(state: RunState, now: datetime) -> set[Pool]:
    """The pools in which an instance of this run was told a short while ago that it might be taken."""
    return {
        state.launch_of(attempt).intent.offering.pool
        for attempt in state.attempts.values()
        if attempt.rebalance_at is not None and now - attempt.rebalance_at < FOLLOWS_WITHIN
    }


def resting(state: RunState, now: datetime) -> set[Pool]:
    """The pools that have just refused."""
    return {
        launch.intent.offering.pool
        for launch in since_opened(state)
        if launch.closed is not None and _refused_for_now(launch, now)
    }


def _refused_for_now(launch: Launch, now: datetime) -> bool:
    assert launch.closed is not None
    if launch.closed.cause is Cause.QUOTA:
        return True
    return launch.closed.cause is Cause.CAPACITY and now - launch.intended_at < POOL_REST
