"""
Ranks the offerings that may be requested now: the least dollars per hour of progress first.

    price per hour of progress = (price now * (1 + changeover / life) + commits of an hour + start / life) / speed

`commits of an hour` and `start` are the cost of traffic between regions, in dollars: a start reads the data and the
checkpoint. The price covers all instances that train together; the traffic cost counts once.

An instance's life is estimated from the observations of its pool by this run and others. A pool that has just refused
this run is left out. A pool comes last, whatever it costs, if one of these happened recently:

- the pool lost an instance, refused any run, or was reported to be in danger
- a request was rejected in its zone, or an instance in its zone ended before it trained

The speed is 1, unless the job names a choice of kinds: then an hour of progress is the work that the first kind does in
an hour. So the ranking is by dollars per sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

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
    """Return the on-demand offerings worth a request now, best first."""
    asked, last = on_demand_work(facts), _asked_last(facts, set(just_lost(facts)))
    chooses = choice(facts) and facts.spec.resources.spot_policy == "on-demand"
    tier = _tiers(facts, asked, asked) if chooses else _no_tiers
    return sorted(asked, key=lambda found: (tier(found), last(found), asked[found]))


@once
def spot_now(facts: Facts) -> list[Offering]:
    """
    Return the spot offerings worth a request now, best first.

    If the job names a choice of kinds, offerings of a kind on trial come first, then offerings of the best kind and of
    kinds that cost about the same.
    """
    asked, last = spot_work(facts), _asked_last(facts, {*just_lost(facts), *at_risk(facts)})
    tier = _tiers(facts, all_spot_work(facts), asked) if choice(facts) else _no_tiers
    return sorted(asked, key=lambda found: (tier(found), last(found), asked[found]))


def spot_of_first_kinds(facts: Facts) -> list[Offering]:
    """
    Return the spot offerings to request first, if the job names a choice of kinds: those of the first tier. If that is
    the tier of dearer kinds, leave out offerings that cost more than on-demand.
    """
    spot, tier = spot_now(facts), _tiers(facts, all_spot_work(facts), spot_work(facts))
    first = [found for found in spot if tier(found) == tier(spot[0])]
    if first and tier(first[0]) == DEARER and on_demand_now(facts):
        worthwhile = worthwhile_spot(facts)
        return [found for found in first if found in worthwhile]
    return first


def is_of_dearer_kind(facts: Facts, offering: Offering) -> bool:
    """Return whether `offering` is of a dearer kind, so that the run prefers spot of another kind."""
    return bool(choice(facts)) and _tiers(facts, all_spot_work(facts), spot_work(facts))(offering) == DEARER


TRIED, PREFERRED, DEARER = 0, 1, 2
"""The tiers of kinds, best first."""
ABOUT = 1.1
"""Maximum cost of a kind, as a multiple of the best kind's cost, at which the run does not wait for the best kind."""


def _no_tiers(_: Offering) -> int:
    return PREFERRED


def _tiers(facts: Facts, work: Work, asked: Work) -> Callable[[Offering], int]:
    """Return a function from each offering in `asked` to its tier. `work` also contains offerings whose pools rest."""
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
    """Return the trial because of which this spot offering comes first; None if the offering is not on trial."""
    if not choice(facts):
        return None
    trial = worth_a_trial(facts, all_spot_work(facts), spot_work(facts))
    return trial if trial is not None and trial.kind == kind_of(facts, offering) else None


@once
def worthwhile_spot(facts: Facts) -> list[Offering]:
    """Return spot that costs less per hour of progress than on-demand, which needs no start if it trains already."""
    stays, all_work = facts.state.current is not None and not facts.state.current.leaving, horizon_s(facts)
    on_demand = [_price_of_progress(facts, found, all_work, starts=not stays) for found in on_demand_now(facts)]
    limit = min(on_demand, default=inf)
    work = spot_work(facts)
    return [found for found in spot_now(facts) if work[found] < limit]


@once
def spot_work(facts: Facts) -> dict[Offering, float]:
    """Return the spot offerings that may be requested now, each with its price of progress."""
    asked = _may_be_asked(facts, CapacityType.SPOT)
    lives = expected_lives(facts, asked)
    return {found: _price_of_progress(facts, found, lives[found.pool]) for found in asked}


@once
def all_spot_work(facts: Facts) -> dict[Offering, float]:
    """Return all spot offerings that the job allows, even in pools that rest, each with its price of progress."""
    in_time = (found for found in spot_offerings(facts) if kind_of(facts, found) not in too_slow(facts))
    allowed = [found for found in in_time if reservable(facts, found)]
    lives = expected_lives(facts, allowed)
    return {found: _price_of_progress(facts, found, lives[found.pool]) for found in allowed}


@once
def on_demand_work(facts: Facts) -> dict[Offering, float]:
    """Return the on-demand offerings that may be requested now, each with its price of progress."""
    all_work = horizon_s(facts)
    asked = _may_be_asked(facts, CapacityType.ON_DEMAND)
    return {found: _price_of_progress(facts, found, all_work) for found in asked}


def _asked_last(facts: Facts, trouble: set[Pool]) -> Callable[[Offering], bool]:
    """
    Return a check whether an offering comes last whatever it costs: its pool is in trouble, or its zone is at fault.
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
    Return USD per hour of progress. A changeover is paid once in a life, but not if the instance has started already.
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
    Return the seconds that each spot pool is expected to last from now on, at most as long as there is work.

    A gang lasts only until its first member is lost: as long as a single instance with `size` times the hazard.
    """
    history, now_s, all_work = market_history(facts), facts.now_s, facts.size * horizon_s(facts)
    return {found.pool: history.expected_life_s(name_of(found.pool), now_s, all_work) / facts.size for found in spot}


@once
def horizon_s(facts: Facts) -> float:
    """Return the seconds for which an instance is needed: until the work is done, if that is known."""
    work = workload(facts)
    return FADING_S if work is None else max(1.0, work.left_s + changeover(facts.state))
