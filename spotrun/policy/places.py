"""Which offerings may be asked for now: what just refused rests, and what was just lost comes last."""

from __future__ import annotations

from datetime import datetime, timedelta

from spotrun.events import Cause
from spotrun.market import World, affordable
from spotrun.offering import CapacityType, Offering, Pool
from spotrun.policy.patience import since_opened
from spotrun.spec import RunSpec
from spotrun.state import Attempt, Launch, RunState

POOL_REST = timedelta(minutes=2)
"""A pool that had no capacity is not asked again for so long."""
LOST_POOL_REST = timedelta(minutes=10)
"""A pool that just took an instance back is asked last: 10 min after a loss it is up again with p = 0.23 only."""


def within_price(spec: RunSpec, world: World) -> list[Offering]:
    return [found for found in world.offerings if affordable(found, spec.resources.max_price)]


def spot_offerings(spec: RunSpec, world: World) -> list[Offering]:
    return [found for found in within_price(spec, world) if found.capacity_type is CapacityType.SPOT]


def spot_launches(state: RunState) -> list[Launch]:
    spot = CapacityType.SPOT
    return [launch for launch in state.launches.values() if launch.intent.offering.capacity_type is spot]


def on_demand_now(state: RunState, spec: RunSpec, world: World, now: datetime) -> list[Offering]:
    """The on-demand offerings worth asking for now, cheapest first."""
    at_rest, on_demand = resting(state, now), CapacityType.ON_DEMAND
    return [
        found for found in within_price(spec, world) if found.capacity_type is on_demand and found.pool not in at_rest
    ]


def spot_now(state: RunState, spec: RunSpec, world: World, now: datetime) -> list[Offering]:
    """The spot offerings worth asking for now, best first: the cheapest, and those just lost last."""
    at_rest = resting(state, now)
    lost = just_lost_pools(state, now)
    asked = [found for found in spot_offerings(spec, world) if found.pool not in at_rest]
    return sorted(asked, key=lambda found: (found.pool in lost, found.price_usd_per_hour))


def just_lost_pools(state: RunState, now: datetime) -> set[Pool]:
    """Where the run was interrupted, or told to go, a short while ago."""
    return {
        state.launch_of(attempt).intent.offering.pool for attempt in state.attempts.values() if _just_lost(attempt, now)
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


def _just_lost(attempt: Attempt, now: datetime) -> bool:
    lost_at = attempt.notice_at or (
        attempt.end.known_at if attempt.end and attempt.end.cause is Cause.INTERRUPTED else None
    )
    return lost_at is not None and now - lost_at < LOST_POOL_REST
