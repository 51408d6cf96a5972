"""
Ranks the offerings that can be requested now. The offering with the lowest cost per hour of progress comes first.

    cost per hour of progress = (price now * (1 + changeover / life) + commit traffic + start traffic / life) / speed

`price now` is for all instances that train together. The two traffic terms are the dollars for sending data between
regions: `commit traffic` for the commits of one hour, and `start traffic` for the data and the checkpoint that one
start reads. Neither depends on the number of instances. `life` is the expected lifetime of an instance, estimated from
what this run and other runs have observed of the instance's pool.

`speed` is 1 if the job allows only one kind of instance. If it allows several, `speed` is relative to the first kind:
an hour of progress is the work that the first kind does in an hour. So offerings are then ranked by their cost per
sample.

A pool that has just refused this run is left out. A pool comes last, whatever it costs, for some time after one of
these events:

- an instance of the pool was lost or got a recommendation, or the pool refused a request of any run
- a request was rejected in the pool's zone, or an instance in this zone ended before it trained
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from spotrun.market.gang_losses import first_of
from spotrun.offering import CapacityType, Offering, Pool
from spotrun.policy.changeovers import changeover
from spotrun.policy.cross_region import reservable, transfer
from spotrun.policy.deadline_guarantee import too_slow
from spotrun.policy.facts import Facts, once
from spotrun.policy.pool_cooldown import rests, within_price, zones_at_fault
from spotrun.policy.pools import at_risk, just_lost, market_history, name_of
from spotrun.policy.subnets import failing_zones
from spotrun.policy.throughput import choice, kind_of, speeds, times_first
from spotrun.policy.trials import KindTrial, Work, begun_with, best_known, cheapest_of_kinds, worth_a_trial
from spotrun.policy.workload import workload
from spotrun.run.billing import SECONDS_PER_HOUR
from spotrun.run.state import Launch, RunState
from spotrun.strategies.history import FADING_S


def spot_offerings(facts: Facts) -> list[Offering]:
    return [found for found in within_price(facts) if found.capacity_type is CapacityType.SPOT]


def spot_launches(state: RunState) -> list[Launch]:
    spot = CapacityType.SPOT
    return [launch for launch in state.launches.values() if launch.intent.offering.capacity_type is spot]


@once
def on_demand_now(facts: Facts) -> list[Offering]:
    """Return the on-demand offerings that can be requested now, best first."""
    asked, last = on_demand_work(facts), _asked_last(facts, set(just_lost(facts)))
    chooses = choice(facts) and facts.spec.resources.spot_policy == "on-demand"
    tier = _tiers(facts, asked, asked) if chooses else _no_tiers
    return sorted(asked, key=lambda found: (tier(found), last(found), asked[found]))


@once
def spot_now(facts: Facts) -> list[Offering]:
    """
    Return the spot offerings that can be requested now, best first.

    If the job allows several kinds, and the run is making a trial of one of them, the offerings of that kind come
    first. The offerings of the best kind follow, together with those of kinds that cost about the same.
    """
    asked, last = spot_work(facts), _asked_last(facts, {*just_lost(facts), *at_risk(facts)})
    tier = _tiers(facts, all_spot_work(facts), asked) if choice(facts) else _no_tiers
    return sorted(asked, key=lambda found: (tier(found), last(found), asked[found]))


def spot_of_first_kinds(facts: Facts) -> list[Offering]:
    """
    Return the spot offerings that the run requests first, if its job allows several kinds. Every offering is in one of
    three tiers (see TRIED, PREFERRED, DEARER). The result contains the offerings of the best tier that has any.

    If this tier is DEARER, offerings that cost more than on-demand are left out.
    """
    spot, tier = spot_now(facts), _tiers(facts, all_spot_work(facts), spot_work(facts))
    first = [found for found in spot if tier(found) == tier(spot[0])]
    if first and tier(first[0]) == DEARER and on_demand_now(facts):
        worthwhile = worthwhile_spot(facts)
        return [found for found in first if found in worthwhile]
    return first


def is_of_dearer_kind(facts: Facts, offering: Offering) -> bool:
    """
    Return True if the offering's kind is in the tier DEARER. The run then waits for a while for spot of another kind.
    """
    return bool(choice(facts)) and _tiers(facts, all_spot_work(facts), spot_work(facts))(offering) == DEARER


TRIED, PREFERRED, DEARER = 0, 1, 2
"""
The tiers into which the kinds that a job allows are divided, best first: kinds that the run wants to try, kinds that
cost about as little as the best kind, and more expensive kinds.
"""
ABOUT = 1.1
"""
Maximum ratio of a kind's cost to the best kind's cost. Up to this ratio, the run uses the kind without waiting for the
best kind.
"""


def _no_tiers(_: Offering) -> int:
    return PREFERRED


def _tiers(facts: Facts, work: Work, asked: Work) -> Callable[[Offering], int]:
    """
    Return a function that maps an offering to its tier (TRIED, PREFERRED or DEARER).

    `asked` are the offerings that can be requested now, with their cost per hour of progress. `work` also contains
    offerings whose pools rest.
    """
    trial = worth_a_trial(facts, work, asked)
    known = best_known(facts, work)
    best, cheapest = known or begun_with(facts, work), cheapest_of_kinds(facts, work)

    def tier(offering: Offering) -> int:
        kind = kind_of(facts, offering)
        if kind is None or best is None:
            return PREFERRED
        if trial is not None and kind == trial.kind:
            return TRIED
        sure = kind == best or (known is not None and speeds(facts)[kind].measured is not None)
        return PREFERRED if sure and work[cheapest[kind]] <= ABOUT * work[cheapest[best]] else DEARER

    return tier


def trial_of(facts: Facts, offering: Offering) -> KindTrial | None:
    """Return the trial for which this spot offering is ranked first; None if its kind is not on trial."""
    if not choice(facts):
        return None
    trial = worth_a_trial(facts, all_spot_work(facts), spot_work(facts))
    return trial if trial is not None and trial.kind == kind_of(facts, offering) else None


@once
def worthwhile_spot(facts: Facts) -> list[Offering]:
    """
    Return the spot offerings that cost less per hour of progress than on-demand. If the run already trains, the cost of
    on-demand does not include a start.
    """
    stays, all_work = facts.state.current is not None and not facts.state.current.leaving, horizon_s(facts)
    on_demand = [_price_of_progress(facts, found, all_work, starts=not stays) for found in on_demand_now(facts)]
    limit = min(on_demand, default=inf)
    work = spot_work(facts)
    return [found for found in spot_now(facts) if work[found] < limit]


@once
def spot_work(facts: Facts) -> dict[Offering, float]:
    """Return the spot offerings that can be requested now, each with its cost per hour of progress."""
    asked = _may_be_asked(facts, CapacityType.SPOT)
    lives = expected_lives(facts, asked)
    return {found: _price_of_progress(facts, found, lives[found.pool]) for found in asked}


@once
def all_spot_work(facts: Facts) -> dict[Offering, float]:
    """
    Return all spot offerings that the job allows, each with its cost per hour of progress. Pools that rest are
    included.
    """
    in_time = (found for found in spot_offerings(facts) if kind_of(facts, found) not in too_slow(facts))
    allowed = [found for found in in_time if reservable(facts, found)]
    lives = expected_lives(facts, allowed)
    return {found: _price_of_progress(facts, found, lives[found.pool]) for found in allowed}


@once
def on_demand_work(facts: Facts) -> dict[Offering, float]:
    """Return the on-demand offerings that can be requested now, each with its cost per hour of progress."""
    all_work = horizon_s(facts)
    asked = _may_be_asked(facts, CapacityType.ON_DEMAND)
    return {found: _price_of_progress(facts, found, all_work) for found in asked}


def _asked_last(facts: Facts, trouble: set[Pool]) -> Callable[[Offering], bool]:
    """
    Return a function that tests whether an offering has to come last, whatever it costs. This is so if its pool is in
    `trouble`, or if a request was rejected or an instance failed in its zone.
    """
    at_fault = zones_at_fault(facts) | failing_zones(facts)
    return lambda found: found.pool in trouble or found.zone in at_fault


def _may_be_asked(facts: Facts, capacity_type: CapacityType) -> list[Offering]:
    wanted = [found for found in within_price(facts) if found.capacity_type is capacity_type]
    return [
        found
        for found in wanted
        if reservable(facts, found) and not rests(facts, found) and kind_of(facts, found) not in too_slow(facts)
    ]


def _price_of_progress(facts: Facts, offering: Offering, life_s: float, *, starts: bool = True) -> float:
    """
    Return the cost per hour of progress, in USD. It includes the cost of one changeover, spread over the instance's
    life. If `starts` is False, the instance already runs, so there is no changeover.
    """
    there = transfer(facts, offering.region)
    changeover_s, start_usd = (_changeover_s(facts), there.start_usd) if starts else (0.0, 0.0)
    by_the_hour = facts.size * float(offering.price_usd_per_hour) * (1 + changeover_s / life_s) + there.usd_per_hour
    return (by_the_hour + start_usd * SECONDS_PER_HOUR / life_s) / times_first(facts, offering)


@once
def _changeover_s(facts: Facts) -> float:
    return changeover(facts.state)


def expected_lives(facts: Facts, spot: Iterable[Offering]) -> dict[Pool, float]:
    """
    Return, for each spot pool, how many seconds an instance is expected to last from now on, but at most until the end
    of the work.

    A gang lasts until its first member is lost. So its hazard is `first_of` times that of a single instance.
    """
    history, now_s, times = market_history(facts), facts.now_s, first_of(facts.size)
    all_work = times * horizon_s(facts)
    return {found.pool: history.expected_life_s(name_of(found.pool), now_s, all_work) / times for found in spot}


@once
def horizon_s(facts: Facts) -> float:
    """
    Return the seconds for which an instance is needed: the time until the work is done, or FADING_S if the amount of
    work is unknown.
    """
    work = workload(facts)
    return FADING_S if work is None else max(1.0, work.left_s + changeover(facts.state))
