"""Decides how much a launch may cost, and therefore how long its instance may live."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal

from msgspec.structs import replace

from spotrun.account.cross_region import spent_usd
from spotrun.account.spending import forecast_spending
from spotrun.account.summary import summarise
from spotrun.market.world import on_demand_price
from spotrun.offering import CapacityType, Offering
from spotrun.policy.actions import Action, Append, Wait
from spotrun.policy.changeovers import changeover
from spotrun.policy.cross_region import transfer_limit
from spotrun.policy.facts import Facts
from spotrun.policy.lives import HANDOVER_BEFORE_END, LAST_MINUTES, TIME_TO_LIVE, kept_for_handover, nearly_over
from spotrun.policy.patience import age
from spotrun.policy.speed_at_home import times_cloud
from spotrun.policy.standbys import failed_standbys
from spotrun.policy.storage_cost import requests_usd, requests_usd_per_hour, storage_reserve
from spotrun.policy.subnets import surrounded
from spotrun.policy.throughput import another_kind, times_first
from spotrun.policy.workload import workload
from spotrun.run import events as ev
from spotrun.run.billing import SECONDS_PER_HOUR, ZERO, to_nano
from spotrun.run.state import Attempt, Launch, RunState
from spotrun.units import bounded

WARN_AT = Decimal("0.8")
"""Share of a budget at which the run warns, if the job does not set one."""
INTENT_LIFETIME = timedelta(minutes=10)
"""
Maximum age of a LaunchIntended for which a runner is allowed to request the launch. After that, the runner is only
allowed to look for an instance that was already requested (protocol 8).
"""
TIME_TO_LIVE_MIN = timedelta(minutes=10)
"""
Minimum life of an instance. A shorter life is not worth the cost of the boot, unless starts in this run are especially
fast (see STARTS_IN_A_LIFE).
"""
STARTS_IN_A_LIFE = 2
"""Minimum life of an instance, in multiples of the time that a start takes."""
AMPLE = 1.5
"""A budget is ample if it is at least this multiple of the expected cost of the remaining work."""
LIVES_IN_A_BUDGET = 3
"""
To find out whether a budget is ample, each instance is assumed to get the unspent money divided by this number. In
fact, an instance gets half of the money that is left after its predecessor. If the predecessor got a third, two thirds
are left, so the instance gets a third too.
"""
NEEDED_TIMES = 2
"""Maximum life that a budget allows an instance, as a multiple of the time that the remaining work may take."""
WORTH_PLACES = Decimal("0.0001")
"""
Unit, in USD, to which the value of an hour of work on the user's own machine is rounded. This value is estimated from
the price of the same work in the cloud.
"""
STORAGE_SHARE = Decimal("0.01")
"""
Minimum share of a budget that is reserved for storage and requests. If these are found to cost more, more is reserved.
"""

ONE_AT_A_TIME = "on demand from here on, and the budget pays for one instance at a time"
OUT_OF_BUDGET = "the rest of the budget does not pay for another instance"


def intend(facts: Facts, offering: Offering, reason: str, count: int | None = None) -> Iterator[Action]:
    """
    Request `offering` for all instances that train together or, if `count` is given, for the `count` members that a
    gang lacks. Request nothing if the budget does not allow the launch, or if the launch is a standby that has to wait
    because earlier standbys failed.
    """
    failed = failed_standbys(facts.state, offering.capacity_type)
    if failed is not None and facts.now < failed.again_at:
        yield Wait(reason=failed.sentence)
        return
    life = life_of(facts, offering, count)
    if life is None:
        yield from _for_want_of_money(facts, offering)
        return
    launched = surrounded(facts.state, offering)
    if launched.image != offering.image:
        reason = f"{reason}; with {launched.image}, which has trained in this region, as {offering.image} has failed"
    if launched.subnet != offering.subnet:
        reason = f"{reason}; in {launched.subnet}, as the last instance in {offering.subnet} never trained"
    reason += another_kind(facts, offering)
    intent = ev.LaunchIntended(
        offering=launched,
        time_to_live_s=life.total_seconds(),
        price_ceiling_usd_per_hour=_ceiling(facts, offering),
        on_demand_usd_per_hour=_compared_usd_per_hour(facts, offering),
        not_after=facts.now + INTENT_LIFETIME,
        reason=reason,
        standby_for=facts.state.current_attempt,
        egress_usd=_egress_reserve(facts, offering, life),
    )
    yield Append(event=_of_gang(facts.state, intent, count) if facts.state.of_gangs else intent)


def _of_gang(state: RunState, intent: ev.LaunchIntended, count: int | None) -> ev.LaunchIntended:
    """
    Return `intent` as a request for members of a gang. If `count` is given, these are the `count` members that the
    newest gang lacks; otherwise, all members of a new gang.
    """
    newest = state.attempts.values()[-1].number if state.attempts else None
    if count is None:
        return replace(intent, standby_for=None, for_gang=state.current_attempt, count=state.created.size)
    return replace(intent, standby_for=None, for_gang=newest, count=count)


def nearly_spent(facts: Facts) -> ev.BudgetNearlySpent | None:
    """
    Return a BudgetNearlySpent event once the share `warn_at` of the budget is spent. Return None before that, or if the
    ledger already has this event.
    """
    state, now = facts.state, facts.now
    budget = state.created.budget_usd
    if budget is None or state.budget_warning is not None:
        return None
    limit = budget * (facts.spec.budget.warn_at or WARN_AT)
    if state.reserved_usd() + storage_reserve(facts) + spent_usd(state) < limit:
        return None  # even all reservations together do not reach the limit
    found = forecast_spending(summarise(state, now), budget, now, facts.world.epochs_total)
    if found.spent_usd < limit:
        return None
    return ev.BudgetNearlySpent(spent_usd=found.spent_usd, passes_at=found.passes_at, epoch=found.epoch)


def price_ceiling(offering: Offering, on_demand: Decimal, max_price: Decimal | None) -> Decimal:
    """
    Return the maximum price per hour. A spot price may rise to max_price or, if the job sets none, to the on-demand
    price.
    """
    if offering.capacity_type is not CapacityType.SPOT:
        return offering.price_usd_per_hour
    return max_price if max_price is not None else max(on_demand, offering.price_usd_per_hour)


def life_of(facts: Facts, offering: Offering, count: int | None = None) -> timedelta | None:
    """
    Return the time-to-live of new instances. Return None if the budget does not pay for long enough to be worth a boot.

    The instances of a bench are allowed to live only a little longer than the bench takes: they are not replaced,
    nothing on them has to be saved, and if the bench's process is killed, only their own timers end them.
    """
    state, spec = facts.state, facts.spec
    own = offering.capacity_type is CapacityType.OWN
    life, least, ceiling = TIME_TO_LIVE, _shortest(facts), _ceiling(facts, offering)
    if not own and (longest := spec.cloud.longest_life(spec, offering)) is not None:
        life = min(life, longest)
    if spec.max_duration is not None:
        bench = state.created.is_bench
        life = min(life, spec.max_duration - age(facts) + (LAST_MINUTES if bench else HANDOVER_BEFORE_END))
        least = min(least, life) if bench else least
    if state.created.budget_usd is not None and ceiling > 0:
        needed = life_needed(facts, offering)
        if needed is not None:
            life, least = min(life, NEEDED_TIMES * needed), min(least, needed)
        life = min(life, _share(facts, offering, ceiling, least, count))
    return life if life >= least else None


def _share(facts: Facts, offering: Offering, ceiling: Decimal, least: timedelta, count: int | None) -> timedelta:
    """
    Return the time-to-live that the budget allows for an instance. Return zero if the launch has to wait until money
    reserved for another launch is released.

    If the budget is ample, an instance gets half of the money that is neither spent nor reserved. The other half is
    kept for a standby, which may be needed at any time. The standby in turn gets half of the rest, and so on. If an
    instance reaches its time-to-live before the work is done, it is replaced; an ample budget pays for this.

    If the budget is not ample, replacements have to be avoided, because each of them costs money. So the instance gets
    half of the money only if that pays for all the remaining work. For an on-demand instance that the run leaves when
    spot is available again, it is enough if half of the money pays for a shorter time (see `_useful`). Otherwise the
    instance gets all of the money. If even all of the money does not pay for the remaining work, but another launch
    will release reserved money, the run waits for this money. Waiting costs nothing.
    """
    whole, enough = affordable_life(facts, ceiling, offering.region, count=count), least
    needed = life_needed(facts, offering)
    if needed is not None and not _ample(facts, offering, ceiling):
        if whole < needed and _money_comes_back(facts.state, offering):
            return timedelta()
        enough = _useful(facts, offering) or needed
    return whole / 2 if whole / 2 >= enough else whole


def _shortest(facts: Facts) -> timedelta:
    """Return the shortest life for which booting an instance is worthwhile: some time must remain for training."""
    start = timedelta(seconds=changeover(facts.state))
    return min(TIME_TO_LIVE_MIN, max(STARTS_IN_A_LIFE * start, 2 * LAST_MINUTES))


def _ample(facts: Facts, offering: Offering, ceiling: Decimal) -> bool:
    """
    Return True if the unspent money pays for AMPLE times the remaining work at today's price.

    Several instances may be needed for the work, one after another, and its cost includes a start for each of them. To
    estimate their number, each instance is assumed to get 1 / LIVES_IN_A_BUDGET of the money.
    """
    work, price, state = workload(facts), offering.price_usd_per_hour, facts.state
    if work is None or price <= 0:
        return True
    held_usd = sum((_unspent_usd(facts, state.launches[number]) for number in state.unsettled), ZERO)
    life = affordable_life(facts, ceiling, offering.region, held_usd) / LIVES_IN_A_BUDGET
    if not life:
        return False
    left_s = work.left_s / times_first(facts, offering)
    starts = 1 + left_s / (life - kept_for_handover(state, life)).total_seconds()
    expected = bounded(left_s + starts * changeover(state))
    return affordable_life(facts, price, offering.region, held_usd) >= AMPLE * expected


def _unspent_usd(facts: Facts, launch: Launch) -> Decimal:
    """Return the part of a launch's reservation that the launch has not used up so far."""
    rule = facts.state.created.billing
    return launch.reserved_usd(rule) - launch.cost_until(facts.now, rule)


def _egress_reserve(facts: Facts, offering: Offering, life: timedelta) -> Decimal:
    """
    Return the amount that a budget reserves for an instance's traffic between regions, for the lifetime `life`.
    """
    if facts.state.created.budget_usd is None:
        return ZERO
    return to_nano(transfer_limit(facts, offering.region).over(life))


def _ceiling(facts: Facts, offering: Offering) -> Decimal:
    on_demand = on_demand_price(offering, facts.world.offerings)
    return price_ceiling(offering, on_demand, facts.spec.resources.max_price)


def _compared_usd_per_hour(facts: Facts, offering: Offering) -> Decimal:
    """
    Return the on-demand price per hour against which savings on `offering` are measured. For the user's own machine,
    this is the cloud's on-demand price for the same work.
    """
    offerings = facts.world.offerings
    rented = [each.price_usd_per_hour for each in offerings if each.capacity_type is CapacityType.ON_DEMAND]
    if offering.capacity_type is not CapacityType.OWN or not rented:
        return on_demand_price(offering, offerings)
    return (min(rented) * Decimal(str(times_cloud(facts)))).quantize(WORTH_PLACES)


def _useful(facts: Facts, offering: Offering) -> timedelta | None:
    """
    Return the shortest time-to-live with which an on-demand instance is useful, if the run will leave it as soon as
    spot is available. Return None for any other instance, which has to do all the remaining work.
    """
    passing = offering.capacity_type is CapacityType.ON_DEMAND and facts.spec.resources.spot_policy == "auto"
    return 3 * TIME_TO_LIVE_MIN if passing else None


def affordable_life(
    facts: Facts, ceiling: Decimal, region: str, freed_usd: Decimal = ZERO, count: int | None = None
) -> timedelta:
    """
    Return how long the unused part of the budget pays for `count` instances at the price `ceiling`. If `count` is None,
    this is the number of instances that train together.

    The unused part is the money that is neither spent nor reserved, plus `freed_usd`, minus the cost of storage,
    requests and traffic between regions.
    """
    state, crossing = facts.state, transfer_limit(facts, region)
    budget = state.created.budget_usd
    assert budget is not None
    stored = max(storage_reserve(facts) + requests_usd(state), budget * STORAGE_SHARE)
    each = ceiling + state.created.billing.attached_usd_per_hour
    usd_per_hour = each * (count or facts.size) + crossing.usd_per_hour + requests_usd_per_hour(state)
    left = budget - state.reserved_usd() - spent_usd(state) + freed_usd
    hours = (left - stored - crossing.usd) / usd_per_hour
    return bounded(int(hours * SECONDS_PER_HOUR))


def life_needed(facts: Facts, offering: Offering) -> timedelta | None:
    """
    Return the time-to-live that one instance would need to start and do all the remaining work. Return None if the
    amount of work is unknown.
    """
    work = workload(facts)
    if work is None:
        return None
    training_s = (work.left_s + work.doubt_s) / times_first(facts, offering)
    return bounded(training_s + changeover(facts.state)) + LAST_MINUTES


def pays_for_all(facts: Facts, offering: Offering) -> bool:
    """
    Return True if the budget pays for all the remaining work. Return True also if there is no budget, or if the amount
    of work is unknown.
    """
    needed, price = life_needed(facts, offering), offering.price_usd_per_hour
    if facts.state.created.budget_usd is None or needed is None or price <= 0:
        return True
    return affordable_life(facts, price, offering.region) >= needed


def _money_comes_back(state: RunState, offering: Offering) -> bool:
    """
    Return True if money that is reserved for another launch will soon be released, because an instance that has trained
    is about to end. An on-demand instance that the run keeps until it has moved to spot is not counted as about to end.
    """
    current, spot = state.current, offering.capacity_type is CapacityType.SPOT
    if spot and current is not None and not current.leaving and _on_demand(state, current):
        return False
    return any(launch.gone is None and launch.attempt is not None for launch in state.launches.values())


def _on_demand(state: RunState, attempt: Attempt) -> bool:
    return state.launch_of(attempt).intent.offering.capacity_type is CapacityType.ON_DEMAND


def _for_want_of_money(facts: Facts, offering: Offering) -> Iterator[Action]:
    """
    Yield the actions to take if the budget has too little money for a launch. If an on-demand instance is to replace
    the running spot instance, and the budget could pay for all the work on demand once that instance has ended, drain
    it. Otherwise stop the run, or wait.
    """
    current = facts.state.current
    if current is not None and _makes_way(facts, current, offering):
        yield Append(event=ev.DrainRequested(attempt=current.number, reason=ONE_AT_A_TIME))
    else:
        yield from _out_of_budget(facts.state)


def _makes_way(facts: Facts, current: Attempt, offering: Offering) -> bool:
    state = facts.state
    hurried = state.created.deadline_at is not None and offering.capacity_type is CapacityType.ON_DEMAND
    if not hurried or current.leaving or nearly_over(facts, current) or _on_demand(state, current):
        return False
    launches = {name.launch for name in current.names}
    freed_usd = sum((_unspent_usd(facts, state.launches[each]) for each in launches), ZERO)
    needed = life_needed(facts, offering)
    if needed is None:
        return False
    return affordable_life(facts, offering.price_usd_per_hour, offering.region, freed_usd) >= needed


def _out_of_budget(state: RunState) -> Iterator[Action]:
    rule = state.created.billing
    held = any(launch.gone is None and launch.reserved_usd(rule) for launch in state.launches.values())
    if state.current is None and not held:
        yield Append(event=ev.RunStopped(reason=OUT_OF_BUDGET))
    else:
        yield Wait(reason="the budget is reserved until the previous instance has ended")
