"""
Describes a run with a deadline to its strategy. A strategy receives the same `Situation` for a run as for a simulated
job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spotrun.market.world import on_demand_price
from spotrun.offering import CapacityType, Offering
from spotrun.policy.changeovers import changeover
from spotrun.policy.cross_region import transfer, usd_per_hour
from spotrun.policy.deadline_guarantee import Keeper, keeper, rework_s
from spotrun.policy.facts import Facts
from spotrun.policy.patience import TICKS_TO_LAUNCH, tick
from spotrun.policy.pools import market_history, name_of
from spotrun.policy.throughput import kind_of, times_first
from spotrun.policy.workload import Workload, workload
from spotrun.run.state import Launch, RunState
from spotrun.strategies.port import ON_DEMAND, Choice, Job, Situation


def situation(facts: Facts, running: Launch | None, spot: Sequence[Offering]) -> Situation:
    """
    Return the facts in the form that a strategy needs. `running` is the launch that trains or is about to train; None
    if there is none, as after a loss. `spot` are the offerings that can be requested.

    While the amount of remaining work is unknown, the work is assumed to take all the time until the deadline. So the
    strategy concludes that there is no time to wait for spot or to try spot.

    If the job allows several kinds of instances, all times are for the keeper, the kind that has to meet the deadline
    (`spotrun.policy.deadline_guarantee`), or else for the first kind. The price of each other kind is converted: it is
    the kind's price for the work that the keeper does in an hour.
    """
    state = facts.state
    deadline_at, elapsed_s, changeover_s = state.created.deadline_at, facts.now_s, changeover(state)
    assert deadline_at is not None, "only a run with a deadline has a strategy"
    deadline_s = (deadline_at - state.created_at).total_seconds()
    tick_s, kept = tick(state).total_seconds(), keeper(facts)
    unknown = Workload(max(0.0, deadline_s - elapsed_s - changeover_s), 0.0, 0.0, 0.0)
    work = _work_on(facts, kept, running, spot) if workload(facts) is not None else unknown
    job = Job(
        work_s=work.done_s + work.left_s,
        deadline_s=deadline_s,
        changeover_s=changeover_s,
        tick_s=tick_s,
        on_demand_usd_per_hour=on_demand_usd_per_hour(facts) * (1.0 if kept is None else kept.times),
        margin_s=work.doubt_s + work.rework_s + TICKS_TO_LAUNCH * tick_s,
    )
    known = {name_of(found.pool): found for found in spot}
    place = None if running is None else choice_of(running)
    if place not in (None, ON_DEMAND) and running is not None:
        offered = next((found for found in facts.world.offerings if found.pool == running.intent.offering.pool), None)
        known.setdefault(str(place), offered or running.intent.offering)
    speed = {name: times_first(facts, found) / (1.0 if kept is None else kept.times) for name, found in known.items()}
    prices = {name: usd_per_hour(facts, found) / speed[name] for name, found in known.items()}
    tolls = {name: usd for name, found in known.items() if (usd := transfer(facts, found.region).start_usd)}
    settled = running is not None and _settled(state, running)
    return Situation(job, elapsed_s, work.left_s, place, settled, prices, market_history(facts), tolls=tolls)


def _work_on(facts: Facts, kept: Keeper | None, running: Launch | None, spot: Iterable[Offering]) -> Workload:
    """
    Return the work left, in seconds of training on the keeper. `rework_s` in the result is the most work that one loss
    can undo: the rework of the fastest kind that the job allows, because a faster instance does more work between two
    commits.
    """
    work = workload(facts)
    assert work is not None
    if kept is None:
        return work
    offered = [*spot, *([] if running is None else [running.intent.offering])]
    kinds = [kind for each in offered if (kind := kind_of(facts, each)) is not None]
    undone_s = rework_s(facts, kept, *kinds) + tick(facts.state).total_seconds()
    return Workload(kept.left_s, kept.doubt_s, work.done_s / kept.times, undone_s)


def on_demand_usd_per_hour(facts: Facts) -> float:
    """
    Return the price per hour of the cheapest on-demand offering, including the traffic of commits. If there is no
    on-demand offering, return the lowest price of all other offerings, without traffic.

    Instances of different kinds do different amounts of work in an hour. So if the job allows several kinds, the result
    is the cost of the work that the first kind does in an hour. If there is a keeper, only its price is used.
    """
    kept = keeper(facts)
    if kept is not None:
        return usd_per_hour(facts, kept.offering) / kept.times
    offerings = facts.world.offerings
    on_demand = [found for found in offerings if found.capacity_type is CapacityType.ON_DEMAND]
    prices = [usd_per_hour(facts, found) / times_first(facts, found) for found in on_demand]
    compared = [
        facts.size * float(on_demand_price(found, offerings)) / times_first(facts, found) for found in offerings
    ]
    return min(prices or compared, default=0.0)


def choice_of(launch: Launch) -> Choice:
    """Return the name by which strategies know the place of this launch's instances."""
    offering = launch.intent.offering
    return ON_DEMAND if offering.capacity_type is CapacityType.ON_DEMAND else name_of(offering.pool)


def _settled(state: RunState, running: Launch) -> bool:
    if running.attempt is None:
        return False
    trainers = state.attempts[running.attempt].trainers
    return bool(trainers) and trainers[-1].started_at is not None
