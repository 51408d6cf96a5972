"""Describes a run with a deadline to its strategy, in the same Situation that strategies get for simulated jobs."""

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
    Return the facts as a strategy needs them. `running` is the launch that trains or is about to train; None after a
    loss. `spot` are the offerings that may be requested.

    While the work left is unknown, it counts as all that could still be done in time. So no time is left to wait, or to
    try spot.

    If the job names a choice of kinds, times are counted on the keeper (`spotrun.policy.deadline_guarantee`), and an
    offering of another kind has the price of the same work on it. Without a keeper, times are counted on the first
    kind.
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
    Return the work left, in time on the keeper. An hour on a slower kind uses up slack; the loss of a faster instance
    undoes more work.
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
    Return the price of the cheapest on-demand offering, including commits; if there is none, the price that spot is
    compared with.

    If the job names a choice of kinds, return the price of an hour's work of the first kind, on the keeper if there is
    one.
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
    """Return the place of an instance of this launch, under the name that strategies use."""
    offering = launch.intent.offering
    return ON_DEMAND if offering.capacity_type is CapacityType.ON_DEMAND else name_of(offering.pool)


def _settled(state: RunState, running: Launch) -> bool:
    if running.attempt is None:
        return False
    trainers = state.attempts[running.attempt].trainers
    return bool(trainers) and trainers[-1].started_at is not None
