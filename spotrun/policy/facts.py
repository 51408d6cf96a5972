"""A run with a deadline, as its strategy is asked about it: the same Situation that simulated jobs are decided in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import cached_property

from spotrun.market.observations import Sighting, pasts, running, sightings_of, troubled
from spotrun.market.world import World, on_demand_price
from spotrun.offering import CapacityType, Offering, Pool
from spotrun.policy import assumptions
from spotrun.policy.cross_region import NO_TRANSFER, Transfer, transfer
from spotrun.policy.interruption_rates import relative_hazard
from spotrun.policy.patience import tick
from spotrun.policy.workload import Workload, commit_interval_s, pace, workload
from spotrun.run.state import Launch, RunState
from spotrun.spec.model import RunSpec
from spotrun.strategies.catalogue import STRATEGIES
from spotrun.strategies.history import MarketHistory, Past
from spotrun.strategies.port import ON_DEMAND, Choice, Job, Situation, Strategy

TROUBLE_LASTS = timedelta(minutes=10)
"""For so long a pool that took an instance back, or had none, is believed to have none: it is up then with p = 0.23."""
TICKS_TO_LAUNCH = 3
"""A refusal is found out at the third: the launch is intended, asked for, and given up."""


class Facts:
    """
    What one decision rests on, and what several of its questions need worked out: once, and only where one asks.

    An observation is as of `now`, and a ledger of weeks has thousands of commits to measure the pace by.
    """

    def __init__(
        self,
        state: RunState,
        spec: RunSpec,
        world: World,
        now: datetime,
        strategies: Mapping[str, Strategy] = STRATEGIES,
    ) -> None:
        self.state, self.spec, self.world, self.now, self.strategies = state, spec, world, now, strategies

    @property
    def now_s(self) -> float:
        """In seconds since the run's creation, as strategies count."""
        return (self.now - self.state.created_at).total_seconds()

    @cached_property
    def work(self) -> Workload | None:
        """The training that is left; None while nothing is known of it."""
        return workload(self.state, self.spec, self.world, self.now)

    @cached_property
    def changeover_s(self) -> float:
        return changeover(self.state)

    @cached_property
    def _interval_s(self) -> float:
        return commit_interval_s(self.state, self.spec, pace(self.state, self.world), self.now)

    def transfer(self, region: str) -> Transfer:
        """What bytes cost that an instance in `region` moves, by the newest checkpoint; before it, by its data only."""
        created, newest = self.state.created, self.state.latest_commit()
        if not created.storage.crosses(region):
            return NO_TRANSFER
        restored, written = (0, 0) if newest is None else (newest.event.size_bytes, newest.event.stored_bytes)
        return transfer(created, region, self._interval_s, restored, written)

    def usd_per_hour(self, offering: Offering) -> float:
        """Its price, and what the commits of an hour cost there."""
        return float(offering.price_usd_per_hour) + self.transfer(offering.region).usd_per_hour

    @cached_property
    def history(self) -> MarketHistory:
        return market_history(self.state, self.world, self.now)

    @cached_property
    def just_lost(self) -> dict[Pool, Sighting]:
        """The pools that this run or another was interrupted in, told to leave or refused by a short while ago."""
        return troubled([*sightings_of(self.state), *self.world.sightings], self.now, TROUBLE_LASTS)


def name_of(pool: Pool) -> str:
    """What a strategy calls a spot pool: its zones are our pools."""
    return f"{pool.zone}/{pool.instance_type}"


def situation(facts: Facts, running: Launch | None, spot: Iterable[Offering]) -> Situation:
    """
    These facts for a strategy. `running` is what trains or is about to, None after a loss; `spot` may be asked for.

    As long as the work left is unknown, it is taken for all that could still be done in time: then there is nothing
    to spare for a wait or for spot.
    """
    state, world = facts.state, facts.world
    assert state.created.deadline_at is not None
    elapsed_s, changeover_s = facts.now_s, facts.changeover_s
    deadline_s = (state.created.deadline_at - state.created_at).total_seconds()
    work = facts.work or Workload(max(0.0, deadline_s - elapsed_s - changeover_s), 0.0, 0.0, 0.0)
    tick_s = tick(state).total_seconds()
    job = Job(
        work_s=work.done_s + work.left_s,
        deadline_s=deadline_s,
        changeover_s=changeover_s,
        tick_s=tick_s,
        on_demand_usd_per_hour=on_demand_usd_per_hour(facts),
        margin_s=work.doubt_s + work.rework_s + TICKS_TO_LAUNCH * tick_s,
    )
    known = {name_of(found.pool): found for found in spot}
    place = None if running is None else choice_of(running)
    if place not in (None, ON_DEMAND) and running is not None:
        offered = next((found for found in world.offerings if found.pool == running.intent.offering.pool), None)
        known.setdefault(str(place), offered or running.intent.offering)
    prices = {name: facts.usd_per_hour(found) for name, found in known.items()}
    tolls = {name: usd for name, found in known.items() if (usd := facts.transfer(found.region).start_usd)}
    settled = running is not None and _settled(state, running)
    return Situation(job, elapsed_s, work.left_s, place, settled, prices, facts.history, tolls=tolls)


def changeover(state: RunState) -> float:
    """
    Seconds from asking for an instance to its first new step: a little more than the longest one measured.

    That has done a whole set-up, and the next one will mostly unpack it. But on another type of instance, or from a
    pack that was damaged, it has to be done again, and the deadline has to be kept then too.
    """
    measured = measured_changeovers(state)
    if not measured:
        return assumptions.CHANGEOVER.total_seconds()
    return max(measured) * assumptions.CHANGEOVER_DOUBT


def measured_changeovers(state: RunState) -> list[float]:
    """Those of this run in seconds."""
    return list(measured_starts(state).values())


def measured_starts(state: RunState) -> dict[int, float]:
    """What the start of each attempt took in seconds, standbys left out: they also wait until they are wanted."""
    return {
        number: (attempt.trainers[0].started_at - state.launch_of(attempt).intended_at).total_seconds()
        for number, attempt in state.attempts.items()
        if attempt.trainers
        and attempt.trainers[0].started_at is not None
        and state.launch_of(attempt).intent.standby_for is None
    }


def on_demand_usd_per_hour(facts: Facts) -> float:
    """Of the cheapest on-demand offering, its commits included; where there is none, what spot is compared with."""
    offerings = facts.world.offerings
    prices = [facts.usd_per_hour(found) for found in offerings if found.capacity_type is CapacityType.ON_DEMAND]
    return min(prices or [float(on_demand_price(found, offerings)) for found in offerings], default=0.0)


def choice_of(launch: Launch) -> Choice:
    """Where an instance of it runs, in a strategy's words."""
    offering = launch.intent.offering
    return ON_DEMAND if offering.capacity_type is CapacityType.ON_DEMAND else name_of(offering.pool)


def _settled(state: RunState, running: Launch) -> bool:
    if running.attempt is None:
        return False
    trainers = state.attempts[running.attempt].trainers
    return bool(trainers) and trainers[-1].started_at is not None


# -- what is known of the market -------------------------------------------------------------------------------------


def market_history(state: RunState, world: World, now: datetime) -> MarketHistory:
    """
    How the spot pools have treated this run and others, as of `now` in seconds since the run's creation.

    A pool is taken to have spot as long as nobody was interrupted or refused there lately.
    """
    seen = [*sightings_of(state), *world.sightings]
    found = pasts(seen, now)
    for pool, past in running(state, now).items():
        found[pool] = found.get(pool, Past()) + past
    known = {name_of(pool): past for pool, past in found.items() if pool.capacity_type is CapacityType.SPOT}
    spot = {each.pool: each.region for each in world.offerings if each.capacity_type is CapacityType.SPOT}
    up = {name_of(pool) for pool in spot.keys() - troubled(seen, now, TROUBLE_LASTS).keys()}
    bands = state.created.interruption_bands
    told = {name_of(pool): bands.get(f"{region}/{pool.instance_type}") for pool, region in spot.items()}
    heard = {name: relative_hazard(band) for name, band in told.items() if band is not None}
    return MarketHistory.from_pasts(known, (now - state.created_at).total_seconds(), up, heard)
