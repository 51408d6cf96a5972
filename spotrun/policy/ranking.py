"""
Which offerings may be asked for now, and in which order: the least dollars per hour of progress first.

    price per hour of progress = (price now * (1 + changeover / life) + commits of an hour + start / life) / speed

The last two are what crosses regions, in dollars: an hour's commits, and the data and checkpoint that a start reads.
The price is that of all instances that train together; what crosses regions does so once.
The life is expected from what this run and others have seen of the pool. What has just refused this run rests; what was
just lost, refused any run, was said to be in danger, or is where a request was rejected, comes last whatever it costs.
The speed is 1, unless the job names a choice of kinds: then an hour of progress is one of the first kind's, and so
dollars per sample decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from spotrun.offering import CapacityType, Offering, Pool
from spotrun.policy.changeovers import changeover
from spotrun.policy.cross_region import reservable, transfer
from spotrun.policy.facts import Facts
from spotrun.policy.pools import at_risk, just_lost, market_history, name_of
from spotrun.policy.rests import rests, within_price, zones_at_fault
from spotrun.policy.throughput import times_first
from spotrun.policy.workload import workload
from spotrun.run.billing import SECONDS_PER_HOUR
from spotrun.run.state import Launch, RunState
from spotrun.strategies.history import FADING_S


def spot_offerings(facts: Facts) -> list[Offering]:
    return [found for found in within_price(facts) if found.capacity_type is CapacityType.SPOT]


def spot_launches(state: RunState) -> list[Launch]:
    spot = CapacityType.SPOT
    return [launch for launch in state.launches.values() if launch.intent.offering.capacity_type is spot]


def on_demand_now(facts: Facts) -> list[Offering]:
    """The on-demand offerings worth asking for now, best first."""
    asked, lost, all_work = _may_be_asked(facts, CapacityType.ON_DEMAND), set(just_lost(facts)), horizon_s(facts)
    last = _asked_last(facts, lost)
    return sorted(asked, key=lambda found: (last(found), _price_of_progress(facts, found, all_work)))


def spot_now(facts: Facts) -> list[Offering]:
    """The spot offerings worth asking for now, best first."""
    return list(_spot_by_progress(facts))


def worthwhile_spot(facts: Facts) -> list[Offering]:
    """
    Those that make an hour of progress cheaper than on-demand does. On-demand that trains already needs no start.
    """
    stays, all_work = facts.state.current is not None and not facts.state.current.leaving, horizon_s(facts)
    on_demand = [_price_of_progress(facts, found, all_work, starts=not stays) for found in on_demand_now(facts)]
    limit = min(on_demand, default=inf)
    return [found for found, usd in _spot_by_progress(facts).items() if usd < limit]


def _spot_by_progress(facts: Facts) -> dict[Offering, float]:
    """What may be asked for now, best first, each with its price of progress."""
    last = _asked_last(facts, {*just_lost(facts), *at_risk(facts)})
    asked = _may_be_asked(facts, CapacityType.SPOT)
    lives = expected_lives(facts, asked)
    usd = {found: _price_of_progress(facts, found, lives[found.pool]) for found in asked}
    return {found: usd[found] for found in sorted(asked, key=lambda found: (last(found), usd[found]))}


def _asked_last(facts: Facts, trouble: set[Pool]) -> Callable[[Offering], bool]:
    """Whether an offering comes last whatever it costs: its pool is in trouble, or its zone has rejected a request."""
    at_fault = zones_at_fault(facts)
    return lambda found: found.pool in trouble or found.zone in at_fault


def _may_be_asked(facts: Facts, capacity_type: CapacityType) -> list[Offering]:
    wanted = [found for found in within_price(facts) if found.capacity_type is capacity_type]
    return [found for found in wanted if reservable(facts, found) and not rests(facts, found)]


def _price_of_progress(facts: Facts, offering: Offering, life_s: float, *, starts: bool = True) -> float:
    """USD per hour of progress. A changeover is paid once in a life; not if the instance has started already."""
    there = transfer(facts, offering.region)
    changeover_s, start_usd = (changeover(facts.state), there.start_usd) if starts else (0.0, 0.0)
    by_the_hour = facts.size * float(offering.price_usd_per_hour) * (1 + changeover_s / life_s) + there.usd_per_hour
    return (by_the_hour + start_usd * SECONDS_PER_HOUR / life_s) / times_first(facts, offering)


def expected_lives(facts: Facts, spot: Iterable[Offering]) -> dict[Pool, float]:
    """
    How many seconds each spot pool is expected to last from now on, at most as long as there is work. A gang lasts as
    long as the first of its members: as an instance would that is lost so many times as often.
    """
    history, now_s, all_work = market_history(facts), facts.now_s, facts.size * horizon_s(facts)
    return {found.pool: history.expected_life_s(name_of(found.pool), now_s, all_work) / facts.size for found in spot}


def horizon_s(facts: Facts) -> float:
    """For how long an instance is needed: until the work is done, if that is known."""
    work = workload(facts)
    return FADING_S if work is None else max(1.0, work.left_s + changeover(facts.state))
