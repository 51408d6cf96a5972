"""When an instance is needed, and which to ask for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from spotrun import events as ev
from spotrun.market import World
from spotrun.offering import CapacityType, Offering
from spotrun.policy.actions import Action, Append, Wait
from spotrun.policy.deadline import give_up, too_late_for, towards_deadline
from spotrun.policy.money import HANDOVER_BEFORE_END, intend, life_left, nearly_over
from spotrun.policy.patience import opened_at
from spotrun.policy.places import on_demand_now, spot_launches, spot_now, spot_offerings, worthwhile_spot
from spotrun.spec import RunSpec
from spotrun.state import Attempt, RunState

LAST_MINUTES = timedelta(minutes=3)
"""With so little left of its time-to-live an instance commits and goes, whether or not a standby is there."""
RETURN_TO_SPOT = "return to spot"


def keep_going(state: RunState, spec: RunSpec, world: World, now: datetime) -> Iterator[Action]:
    """Hand over to what is ready, replace what goes, and ask for better where that pays."""
    assert state.created is not None
    hurried = state.created.deadline_at is not None
    pending, current = state.pending_launch, state.current
    if current is not None and not current.leaving and life_left(state, current, now) < LAST_MINUTES:
        yield Append(event=ev.DrainRequested(attempt=current.number, reason="its time-to-live ends"))
        return
    if pending is not None:
        if current is not None and not current.leaving and pending.number in world.ready:
            yield Append(event=ev.DrainRequested(attempt=current.number, reason=pending.intent.reason))
        elif hurried and too_late_for(pending, state, spec, world, now):
            yield Append(event=give_up(pending))
        return
    if hurried:
        yield from towards_deadline(state, spec, world, now)
        return
    reason = _reason_to_launch(state, spec, world, now)
    if reason is None:
        return
    choose = _return_choice if reason == RETURN_TO_SPOT else choose_capacity
    choice = choose(state, spec, world, now)
    if isinstance(choice, Wait):
        yield choice
        return
    yield from intend(state, spec, world, now, choice, reason)


def _reason_to_launch(state: RunState, spec: RunSpec, world: World, now: datetime) -> str | None:
    current = state.current
    if current is None:
        return "first launch" if not state.attempts else "replacement"
    if current.leaving:
        return "standby: the instance is leaving"
    if nearly_over(state, current, now):
        return "standby: the time-to-live is nearly over"
    if may_return_to_spot(state, spec, current, now) and worthwhile_spot(state, spec, world, now):
        return RETURN_TO_SPOT
    return None


def may_return_to_spot(state: RunState, spec: RunSpec, current: Attempt, now: datetime) -> bool:
    """On-demand has been kept, and spot was last asked for in vain, longer ago than the cool-down."""
    if spec.resources.spot_policy != "auto" or not spec.policy.return_to_spot:
        return False
    if state.launch_of(current).intent.offering.capacity_type is not CapacityType.ON_DEMAND:
        return False
    asked = [launch.intended_at for launch in spot_launches(state)]
    since = max([current.started_at, *asked])
    return now - since >= spec.policy.return_cooldown


def _return_choice(state: RunState, spec: RunSpec, world: World, now: datetime) -> Offering | Wait:
    return next(iter(worthwhile_spot(state, spec, world, now)), Wait(reason="no spot pool to ask yet"))


def choose_capacity(state: RunState, spec: RunSpec, world: World, now: datetime) -> Offering | Wait:
    """
    The offering to ask for now: the cheapest spot that has not just refused or been lost, or on-demand.

    `auto` goes on-demand when spot has been missing for `on_demand_after`, counted from the loss (or the notice), and
    when all spot that can be asked lasts so shortly that an hour of progress would cost more than on demand.
    """
    policy = spec.resources.spot_policy
    on_demand = on_demand_now(state, spec, world, now)
    if policy == "on-demand":
        return on_demand[0] if on_demand else Wait(reason="no on-demand capacity in any zone just now")
    missing = now - _capacity_missing_since(state, now)
    spot = spot_now(state, spec, world, now)
    if policy == "auto" and on_demand and spot and not worthwhile_spot(state, spec, world, now):
        return on_demand[0]
    waited = missing >= spec.policy.on_demand_after or _dying(state, now)
    if policy == "auto" and waited and on_demand and (not spot or _asked_in_vain(state, spec, now)):
        return on_demand[0]
    if spot:
        return spot[0]
    if policy == "auto" and on_demand and not spot_offerings(spec, world):
        return on_demand[0]
    return Wait(reason="no spot capacity in any zone just now")


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
    return max([opened_at(state), *(told or ended[-1:])])


def _asked_in_vain(state: RunState, spec: RunSpec, now: datetime) -> bool:
    """Spot refused since the need arose: time alone (a slow boot) is no reason to pay more."""
    since = _capacity_missing_since(state, now)
    refusals = (launch for launch in spot_launches(state) if launch.closed is not None and launch.intended_at >= since)
    return spec.policy.on_demand_after == timedelta() or any(refusals)
