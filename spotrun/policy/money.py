"""What a launch may cost, and so how long its instance may live."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal

from spotrun.account import cross_region
from spotrun.account.spending import forecast_spending
from spotrun.account.summary import summarise
from spotrun.market.world import World, on_demand_price
from spotrun.offering import CapacityType, Offering
from spotrun.policy.actions import Action, Append, Wait
from spotrun.policy.cross_region import most
from spotrun.policy.facts import changeover
from spotrun.policy.images import with_good_image
from spotrun.policy.patience import age
from spotrun.policy.storage_cost import requests_usd, requests_usd_per_hour, storage_reserve
from spotrun.policy.workload import workload
from spotrun.run import events as ev
from spotrun.run.billing import SECONDS_PER_HOUR, ZERO, to_nano
from spotrun.run.state import Attempt, Launch, RunState
from spotrun.spec.model import RunSpec

WARN_AT = Decimal("0.8")
"""The share of a budget at which to warn, where the specification names none."""
INTENT_LIFETIME = timedelta(minutes=10)
"""How long any runner may execute a LaunchIntended; later it may only be looked up (protocol 8)."""
BLIND_FOR = timedelta(hours=24)
"""For so long a runner may see nothing, its credentials expired or its machine off, and no instance ends for that."""
HANDOVER_BEFORE_END = timedelta(minutes=15)
"""So long before an instance's time-to-live a standby is launched for it, at the latest."""
REPLACED_AFTER = timedelta(hours=24) - HANDOVER_BEFORE_END
TIME_TO_LIVE = REPLACED_AFTER + HANDOVER_BEFORE_END + BLIND_FOR
TIME_TO_LIVE_MIN = timedelta(minutes=10)
"""A shorter life does not pay for its boot."""
NEEDED_ASSUMED = timedelta(hours=8)
"""How long an instance is needed, as long as nobody knows how much work there is."""
UPKEEP_SHARE = Decimal("0.01")
"""Of a budget so much is kept for storage and requests, as long as it is not known to take more."""
LAST_MINUTES = timedelta(minutes=3)
"""With so little left of its time-to-live an instance commits and goes, whether or not a standby is there."""

ONE_AT_A_TIME = "on demand from here on, and the budget pays for one instance at a time"
OUT_OF_BUDGET = "the rest of the budget does not pay for another instance"


def intend(
    state: RunState, spec: RunSpec, world: World, now: datetime, offering: Offering, reason: str
) -> Iterator[Action]:
    """Ask for an instance of `offering`, as far as the budget allows; for what else is to be done where it does not."""
    life = life_of(offering, state, spec, world, now)
    if life is None:
        yield from _for_want_of_money(offering, state, spec, world, now)
        return
    launched = with_good_image(offering, state)
    if launched != offering:
        reason = f"{reason}; with {launched.image}, which has trained here, as {offering.image} has failed"
    intent = ev.LaunchIntended(
        offering=launched,
        time_to_live_s=life.total_seconds(),
        price_ceiling_usd_per_hour=_ceiling(offering, spec, world),
        on_demand_usd_per_hour=on_demand_price(offering, world.offerings),
        not_after=now + INTENT_LIFETIME,
        reason=reason,
        standby_for=state.current_attempt,
        egress_usd=_egress_reserve(offering, state, spec, life),
    )
    yield Append(event=intent)


def nearly_spent(state: RunState, spec: RunSpec, world: World, now: datetime) -> ev.BudgetNearlySpent | None:
    """The news that `warn_at` of the budget is spent; None before, and where it was told."""
    budget = state.created.budget_usd
    if budget is None or state.budget_warning is not None:
        return None
    limit = budget * (spec.budget.warn_at or WARN_AT)
    if state.reserved_usd() + storage_reserve(state, spec) + cross_region.spent_usd(state) < limit:
        return None  # not even all that is reserved comes to it
    found = forecast_spending(summarise(state, now), budget, now, world.epochs_total)
    if found.spent_usd < limit:
        return None
    return ev.BudgetNearlySpent(spent_usd=found.spent_usd, passes_at=found.passes_at, epoch=found.epoch)


def price_ceiling(offering: Offering, on_demand: Decimal, max_price: Decimal | None) -> Decimal:
    """The most an hour may come to be: a spot price floats, up to max_price or the on-demand price."""
    if offering.capacity_type is CapacityType.ON_DEMAND:
        return offering.price_usd_per_hour
    return max_price if max_price is not None else max(on_demand, offering.price_usd_per_hour)


def life_of(offering: Offering, state: RunState, spec: RunSpec, world: World, now: datetime) -> timedelta | None:
    """
    How long a new instance may live, or None where the budget allows too little to be worth a boot.

    With a budget, half of what is left is kept for its standby where the other half is enough to do the work that is
    left; on demand always, so that there is something to return to spot with. Else it gets everything, for each change
    of instances costs money that the work may need. Where not even that does all the work, it is asked for only when
    the instance before it is gone, and with it what was reserved for it: standing still costs nothing.
    """
    life, least, ceiling = TIME_TO_LIVE, TIME_TO_LIVE_MIN, _ceiling(offering, spec, world)
    if spec.max_duration is not None:
        life = min(life, spec.max_duration - age(state, now) + HANDOVER_BEFORE_END)
    if state.created.budget_usd is not None and ceiling > 0:
        whole = affordable_life(state, spec, ceiling, offering.region)
        needed = life_needed(state, spec, world, now)
        if needed is not None and whole < needed and _money_comes_back(state, offering):
            return None
        half_is_enough = whole / 2 >= (_useful(offering, spec) or needed or NEEDED_ASSUMED)
        life = min(life, whole / 2 if half_is_enough else whole)
        least = least if needed is None else min(least, needed)
    return life if life >= least else None


def _egress_reserve(offering: Offering, state: RunState, spec: RunSpec, life: timedelta) -> Decimal:
    """What a budget keeps for the bytes of an instance that cross regions in its life."""
    return ZERO if state.created.budget_usd is None else to_nano(most(state, spec, offering.region).in_all(life))


def _ceiling(offering: Offering, spec: RunSpec, world: World) -> Decimal:
    return price_ceiling(offering, on_demand_price(offering, world.offerings), spec.resources.max_price)


def _useful(offering: Offering, spec: RunSpec) -> timedelta | None:
    """What is enough of an instance that is to be left for spot again; None for one that is to do all the work."""
    passing = offering.capacity_type is CapacityType.ON_DEMAND and spec.resources.spot_policy == "auto"
    return 3 * TIME_TO_LIVE_MIN if passing else None


def affordable_life(
    state: RunState, spec: RunSpec, ceiling: Decimal, region: str, freed_usd: Decimal = ZERO
) -> timedelta:
    """
    At that price, what is neither spent nor reserved buys, and `freed_usd`. Storage, requests and what crosses regions
    come off first.
    """
    budget, crossing = state.created.budget_usd, most(state, spec, region)
    assert budget is not None
    upkeep = max(storage_reserve(state, spec) + requests_usd(state), budget * UPKEEP_SHARE)
    attached = state.created.billing.attached_usd_per_hour + crossing.usd_per_hour
    usd_per_hour = ceiling + attached + requests_usd_per_hour(state)
    left = budget - state.reserved_usd() - cross_region.spent_usd(state) + freed_usd
    hours = (left - upkeep - crossing.usd) / usd_per_hour
    return timedelta(seconds=int(max(ZERO, hours) * SECONDS_PER_HOUR))


def life_needed(state: RunState, spec: RunSpec, world: World, now: datetime) -> timedelta | None:
    """What one instance would take to do the work that is left, from its start to its end; None while unknown."""
    work = workload(state, spec, world, now)
    if work is None:
        return None
    return timedelta(seconds=work.left_s + work.doubt_s + changeover(state)) + LAST_MINUTES


def pays_for_all(offering: Offering, state: RunState, spec: RunSpec, world: World, now: datetime) -> bool:
    """Whether the budget allows to do all the work that is left there; where either is unknown it does."""
    needed, price = life_needed(state, spec, world, now), offering.price_usd_per_hour
    if state.created.budget_usd is None or needed is None or price <= 0:
        return True
    return affordable_life(state, spec, price, offering.region) >= needed


def _money_comes_back(state: RunState, offering: Offering) -> bool:
    """
    An instance that has trained, or still does, is not gone: then more will be left than now. Not soon, where what
    trains on demand is to be left for spot.
    """
    current, spot = state.current, offering.capacity_type is CapacityType.SPOT
    if spot and current is not None and not current.leaving and _on_demand(state, current):
        return False
    return any(launch.gone is None and launch.attempt is not None for launch in state.launches.values())


def life_left(state: RunState, current: Attempt, now: datetime) -> timedelta:
    """Until its time-to-live ends the instance of an attempt."""
    launch = state.launch_of(current)
    began = current.booted_at if launch.recorded is None else min(current.booted_at, launch.recorded.billed_from)
    return began + timedelta(seconds=launch.intent.time_to_live_s) - now


def nearly_over(state: RunState, current: Attempt, now: datetime) -> bool:
    """Whether it is time for a standby, because the time-to-live of what trains will soon end."""
    return life_left(state, current, now) < kept_for_handover(state.launch_of(current))


def kept_for_handover(launch: Launch) -> timedelta:
    """What of its time-to-live an instance is not to use: a day, for want of a runner, where it has so much."""
    life = timedelta(seconds=launch.intent.time_to_live_s)
    return max(min(HANDOVER_BEFORE_END, life / 4), life - REPLACED_AFTER)


def _on_demand(state: RunState, attempt: Attempt) -> bool:
    return state.launch_of(attempt).intent.offering.capacity_type is CapacityType.ON_DEMAND


def _for_want_of_money(
    offering: Offering, state: RunState, spec: RunSpec, world: World, now: datetime
) -> Iterator[Action]:
    """Where the deadline wants on-demand and that would pay for all the work by itself, spot makes way for it."""
    current = state.current
    if current is not None and _makes_way(current, offering, state, spec, world, now):
        yield Append(event=ev.DrainRequested(attempt=current.number, reason=ONE_AT_A_TIME))
    else:
        yield from _out_of_budget(state)


def _makes_way(
    current: Attempt, offering: Offering, state: RunState, spec: RunSpec, world: World, now: datetime
) -> bool:
    hurried = state.created.deadline_at is not None and offering.capacity_type is CapacityType.ON_DEMAND
    if not hurried or current.leaving or nearly_over(state, current, now) or _on_demand(state, current):
        return False
    launch, rule = state.launch_of(current), state.created.billing
    freed_usd = launch.reserved_usd(rule) - launch.meter(rule).cost_until(now)
    needed = life_needed(state, spec, world, now)
    if needed is None:
        return False
    return affordable_life(state, spec, offering.price_usd_per_hour, offering.region, freed_usd) >= needed


def _out_of_budget(state: RunState) -> Iterator[Action]:
    rule = state.created.billing
    held = any(launch.gone is None and launch.reserved_usd(rule) for launch in state.launches.values())
    if state.current is None and not held:
        yield Append(event=ev.RunStopped(reason=OUT_OF_BUDGET))
    else:
        yield Wait(reason="the budget is reserved until the instance before has ended")
