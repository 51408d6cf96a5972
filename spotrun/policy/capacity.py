"""When an instance is needed, and which to ask for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from math import inf

import msgspec

from spotrun.offering import CapacityType, Offering
from spotrun.policy.actions import Action, Append, Wait
from spotrun.policy.cross_region import NO_TRANSFER
from spotrun.policy.deadline import give_up, leaves_time_to_move, too_late_for, towards_deadline
from spotrun.policy.facts import Facts, name_of
from spotrun.policy.money import HANDOVER_BEFORE_END, LAST_MINUTES, intend, life_left, nearly_over, pays_for_all
from spotrun.policy.ranking import on_demand_now, spot_launches, spot_now, spot_offerings, worthwhile_spot
from spotrun.policy.recommendation import REASON, move_in_time
from spotrun.run import events as ev
from spotrun.run.state import Attempt, RunState
from spotrun.spec.model import RunSpec
from spotrun.strategies.patient import Patient
from spotrun.strategies.port import ON_DEMAND
from spotrun.units import to_the_second

RETURN_TO_SPOT = "return to spot"


class Chosen(msgspec.Struct, frozen=True):
    """What to ask for, and what made it this rather than another: the ledger keeps both."""

    offering: Offering
    because: str


def keep_going(facts: Facts) -> Iterator[Action]:
    """Hand over to what is ready, replace what goes, and ask for better where that pays."""
    state, spec, world, now = facts.state, facts.spec, facts.world, facts.now
    hurried = state.created.deadline_at is not None
    pending, current = state.pending_launch, state.current
    if current is not None and not current.leaving and life_left(state, current, now) < LAST_MINUTES:
        yield Append(event=ev.DrainRequested(attempt=current.number, reason="its time-to-live ends"))
        return
    if pending is not None:
        if current is not None and not current.leaving and pending.number in world.ready:
            yield Append(event=ev.DrainRequested(attempt=current.number, reason=pending.intent.reason))
        elif hurried and too_late_for(pending, facts):
            yield Append(event=give_up(pending))
        return
    if hurried:
        yield from list(towards_deadline(facts)) or _before_a_loss(facts)
        return
    reason = _reason_to_launch(facts)
    if reason is None:
        yield from _before_a_loss(facts)
        return
    choose = _return_choice if reason == RETURN_TO_SPOT else choose_capacity
    choice = choose(facts)
    if isinstance(choice, Wait):
        yield choice
        return
    yield from intend(state, spec, world, now, choice.offering, f"{reason}: {choice.because}")


def _before_a_loss(facts: Facts) -> Iterator[Action]:
    """A standby for what trains, where the cloud recommended one and it pays."""
    state = facts.state
    move = move_in_time(facts)
    if move is None or (state.created.deadline_at is not None and not leaves_time_to_move(facts)):
        return
    yield from intend(state, facts.spec, facts.world, facts.now, move.offering, f"{REASON}: {move.because}")


def _reason_to_launch(facts: Facts) -> str | None:
    state, now = facts.state, facts.now
    current = state.current
    if current is None:
        return "first launch" if not state.attempts else "replacement"
    if current.leaving:
        return "standby: the instance is leaving"
    if nearly_over(state, current, now):
        return "standby: the time-to-live is nearly over"
    if may_return_to_spot(state, facts.spec, current, now) and worthwhile_spot(facts):
        return RETURN_TO_SPOT
    return None


def patience(spec: RunSpec) -> Patient:
    """The rule of a run without a deadline; a forecast asks the same."""
    match spec.resources.spot_policy:
        case "on-demand":
            return Patient(0.0, None)
        case "spot":
            return Patient(inf, None)
        case _:
            policy = spec.policy
            return_after_s = policy.return_cooldown.total_seconds() if policy.return_to_spot else None
            return Patient(policy.on_demand_after.total_seconds(), return_after_s)


def may_return_to_spot(state: RunState, spec: RunSpec, current: Attempt, now: datetime) -> bool:
    """On-demand has been kept, and spot was last asked for in vain, longer ago than the cool-down."""
    if state.launch_of(current).intent.offering.capacity_type is not CapacityType.ON_DEMAND:
        return False
    return patience(spec).returns((now - kept_since(state, current)).total_seconds())


def kept_since(state: RunState, current: Attempt) -> datetime:
    """Since when on-demand is kept without a question: from its start, or from when spot was last asked for."""
    return max([current.started_at, *(launch.intended_at for launch in spot_launches(state))])


def _return_choice(facts: Facts) -> Chosen | Wait:
    state, spot = facts.state, worthwhile_spot(facts)
    assert state.current is not None
    if not spot:
        return Wait(reason="no spot pool to ask yet")
    dearer = state.launch_of(state.current).intent.offering.price_usd_per_hour - spot[0].price_usd_per_hour
    kept = to_the_second(facts.now - state.current.started_at)
    return Chosen(spot[0], f"on-demand was kept for {kept}, and ${dearer} an hour may be saved")


def choose_capacity(facts: Facts) -> Chosen | Wait:
    """
    What to ask for now: the cheapest spot that has not just refused or been lost, or on-demand.

    How long spot has been missing is counted from the loss (or the notice). Where that is too long and spot was asked
    for in vain, more pools to ask are no reason to wait on. Without any spot pool there is nothing to wait for.
    Nor is there where all spot that can be asked lasts so briefly that an hour of progress would cost more than on
    demand.
    """
    state, spec, now = facts.state, facts.spec, facts.now
    policy, rule = spec.resources.spot_policy, patience(spec)
    on_demand = [] if policy == "spot" else on_demand_now(facts)
    spot = [] if policy == "on-demand" else spot_now(facts)
    if policy == "auto" and on_demand and spot and not worthwhile_spot(facts):
        return Chosen(on_demand[0], "spot lasts so briefly that an hour of progress costs less on demand")
    if policy == "auto" and spot_offerings(spec, facts.world):
        on_demand = [found for found in on_demand if pays_for_all(found, state, spec, facts.world, now)]
    missing, dying = now - _capacity_missing_since(state, now), _dying(state, now)
    missing_s = (max(missing, spec.policy.on_demand_after) if dying else missing).total_seconds()
    in_vain = missing_s >= rule.on_demand_after_s and _asked_in_vain(state, spec, now)
    place = rule.place(None, missing_s, None if in_vain or not spot else name_of(spot[0].pool))
    unsuited = not spot_offerings(spec, facts.world)
    if on_demand and (place == ON_DEMAND or unsuited):
        return Chosen(on_demand[0], _why_on_demand(policy, missing, dying=dying, unsuited=unsuited))
    if spot and place is not None:
        return Chosen(spot[0], _why_spot(facts, spot))
    return Wait(reason=f"no {'on-demand' if policy == 'on-demand' else 'spot'} capacity in any zone just now")


def _why_spot(facts: Facts, spot: list[Offering]) -> str:
    if len(spot) == 1:
        return "the only spot pool that may be asked"
    cheaper = [found for found in spot if found.price_usd_per_hour < spot[0].price_usd_per_hour]
    if not cheaper:
        return f"the cheapest of {len(spot)} spot pools that may be asked"
    far = all(facts.transfer(found.region) != NO_TRANSFER for found in cheaper)
    why = "are far from the bucket" if far else "would last less"
    return f"the first of {len(spot)} spot pools that may be asked, as cheaper ones {why}"


def _why_on_demand(policy: str, missing: timedelta, *, dying: bool, unsuited: bool) -> str:
    if policy == "on-demand":
        return "spot_policy is on-demand"
    if unsuited:
        return "no spot pool suits"
    return "its time-to-live leaves no time to wait for spot" if dying else f"no spot for {to_the_second(missing)}"


def _dying(state: RunState, now: datetime) -> bool:
    """What trains is near the end of its time-to-live: there is no time to wait for spot."""
    current = state.current
    return current is not None and not current.leaving and life_left(state, current, now) < HANDOVER_BEFORE_END


def _capacity_missing_since(state: RunState, now: datetime) -> datetime:
    """When the need for a new instance arose."""
    current = state.current
    if current is not None:
        return current.notice_at or now
    ended = [attempt.end.known_at for attempt in state.attempts.values() if attempt.end is not None]
    told = [attempt.notice_at for attempt in list(state.attempts.values())[-1:] if attempt.notice_at is not None]
    return max([state.opened_at, *(told or ended[-1:])])


def _asked_in_vain(state: RunState, spec: RunSpec, now: datetime) -> bool:
    """Spot refused since the need arose: time alone (a slow boot) is no reason to pay more."""
    since = _capacity_missing_since(state, now)
    refusals = (launch for launch in spot_launches(state) if launch.closed is not None and launch.intended_at >= since)
    return spec.policy.on_demand_after == timedelta() or any(refusals)
