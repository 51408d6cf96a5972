"""A run with a deadline, as its strategy is asked about it: the same Situation that simulated jobs are decided in."""

from __future__ import annotations

from collections.abc import Iterable

from spotrun.market.world import on_demand_price
from spotrun.offering import CapacityType, Offering
from spotrun.policy.changeovers import changeover
from spotrun.policy.cross_region import transfer, usd_per_hour
from spotrun.policy.facts import Facts
from spotrun.policy.patience import tick
from spotrun.policy.pools import market_history, name_of
from spotrun.policy.workload import Workload, workload
from spotrun.run.state import Launch, RunState
from spotrun.strategies.port import ON_DEMAND, Choice, Job, Situation

TICKS_TO_LAUNCH = 3
"""A refusal is known at the third tick: the launch is intended, asked for, and given up."""


def situation(facts: Facts, running: Launch | None, spot: Iterable[Offering]) -> Situation:
    """
    These facts for a strategy. `running` is what trains or is about to, None after a loss; `spot` may be asked for.

    While the work that is left is unknown, it is taken for all that could still be done in time. So nothing is spared
    for a wait or for spot.
    """
    state = facts.state
    deadline_at, elapsed_s, changeover_s = state.created.deadline_at, facts.now_s, changeover(state)
    assert deadline_at is not None, "only a run with a deadline has a strategy"
    deadline_s = (deadline_at - state.created_at).total_seconds()
    work = workload(facts) or Workload(max(0.0, deadline_s - elapsed_s - changeover_s), 0.0, 0.0, 0.0)
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
        offered = next((found for found in facts.world.offerings if found.pool == running.intent.offering.pool), None)
        known.setdefault(str(place), offered or running.intent.offering)
    prices = {name: usd_per_hour(facts, found) for name, found in known.items()}
    tolls = {name: usd for name, found in known.items() if (usd := transfer(facts, found.region).start_usd)}
    settled = running is not None and _settled(state, running)
    return Situation(job, elapsed_s, work.left_s, place, settled, prices, market_history(facts), tolls=tolls)


def on_demand_usd_per_hour(facts: Facts) -> float:
    """Of the cheapest on-demand offering, its commits included; without any, the price that spot is compared with."""
    offerings = facts.world.offerings
    prices = [usd_per_hour(facts, found) for found in offerings if found.capacity_type is CapacityType.ON_DEMAND]
    compared = [facts.size * float(on_demand_price(found, offerings)) for found in offerings]
    return min(prices or compared, default=0.0)


def choice_of(launch: Launch) -> Choice:
    """Where an instance of it runs, in a strategy's words."""
    offering = launch.intent.offering
    return ON_DEMAND if offering.capacity_type is CapacityType.ON_DEMAND else name_of(offering.pool)


def _settled(state: RunState, running: Launch) -> bool:
    if running.attempt is None:
        return False
    trainers = state.attempts[running.attempt].trainers
    return bool(trainers) and trainers[-1].started_at is not None
