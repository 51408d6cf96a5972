"""
Collects the losses and refusals of spot pools, in this run and in other runs, and finds the pools that are unlikely to
have capacity now.
"""

from __future__ import annotations

from datetime import timedelta

from spotrun.market.hazard import FOLLOWS_WITHIN
from spotrun.market.observations import Observation, observations_of, past_by_pool, past_of_living, pools_in_trouble
from spotrun.offering import CapacityType, Pool
from spotrun.policy.facts import Facts, once
from spotrun.policy.interruption_rates import relative_hazard
from spotrun.strategies.history import MarketHistory, Past

TROUBLE_LASTS = timedelta(minutes=10)
"""
Time after a loss or a refusal for which a pool counts as having no capacity. After this time, the pool has capacity
again with a probability of 0.23.
"""


def name_of(pool: Pool) -> str:
    """Return the name that strategies use for a spot pool. (They call pools zones.)"""
    return f"{pool.zone}/{pool.instance_type}"


@once
def just_lost(facts: Facts) -> dict[Pool, Observation]:
    """
    Return the spot pools that have recently refused a request of any run, or in which any run has recently lost an
    instance or received a notice. Map each pool to that observation.
    """
    return pools_in_trouble([*observations_of(facts.state), *facts.world.observations], facts.now, TROUBLE_LASTS)


def at_risk(facts: Facts) -> set[Pool]:
    """Return the pools in which an instance of this run has recently received a recommendation."""
    state = facts.state
    return {
        state.launch_of(attempt).intent.offering.pool
        for attempt in state.attempts.values()
        if attempt.rebalance_at is not None and facts.now - attempt.rebalance_at < FOLLOWS_WITHIN
    }


@once
def market_history(facts: Facts) -> MarketHistory:
    """
    Return the history of the spot pools in the form that strategies need: the losses and refusals of each pool, in this
    run and in other runs. Times are in seconds since this run's creation.

    A pool is assumed to have spot capacity now unless it has recently refused a request or lost an instance.
    """
    state, world, now = facts.state, facts.world, facts.now
    seen = [*observations_of(state), *world.observations]
    found = past_by_pool(seen, now)
    for pool, past in past_of_living(state, now).items():
        found[pool] = found.get(pool, Past()) + past
    known = {name_of(pool): past for pool, past in found.items() if pool.capacity_type is CapacityType.SPOT}
    spot = {each.pool: each.region for each in world.offerings if each.capacity_type is CapacityType.SPOT}
    up = {name_of(pool) for pool in spot.keys() - pools_in_trouble(seen, now, TROUBLE_LASTS).keys()}
    bands = state.created.interruption_bands
    band_of = {name_of(pool): bands.get(f"{region}/{pool.instance_type}") for pool, region in spot.items()}
    hazards = {name: relative_hazard(band) for name, band in band_of.items() if band is not None}
    return MarketHistory.from_pasts(known, facts.now_s, up, hazards)
