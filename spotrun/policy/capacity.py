"""Decides when a run needs an instance, and which offering to request."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from math import inf

import msgspec

from spotrun.offering import CapacityType, Offering
from spotrun.policy import kind_moves
from spotrun.policy.actions import Action, Append, Wait
from spotrun.policy.cross_region import NO_TRANSFER, transfer
from spotrun.policy.deadline import WAIT_FOR_SPOT, give_up, leaves_time_to_move, too_late_for, towards_deadline
from spotrun.policy.facts import Facts
from spotrun.policy.gangs import fill, joining, lacking, regroup, standing_by, trains_with_fewer
from spotrun.policy.kind_moves import move_to_another_kind
from spotrun.policy.launches import never_asked, refused, why_needed
from spotrun.policy.lives import (
    ENDS_WITHIN,
    HANDOVER_BEFORE_END,
    LAST_MINUTES,
    life_left,
    nearly_over,
    outlives_its_end,
)
from spotrun.policy.money import intend, pays_for_all
from spotrun.policy.owned_machine import BACK, at_home_now, starts_again_at_home, stays_at_home, way_home, why_home
from spotrun.policy.pool_cooldown import no_spot_accepts, why_none
from spotrun.policy.pools import name_of
from spotrun.policy.ranking import (
    is_of_dearer_kind,
    on_demand_now,
    on_demand_work,
    spot_launches,
    spot_now,
    spot_offerings,
    spot_work,
    trial_of,
    worthwhile_spot,
)
from spotrun.policy.recommendation import REASON, move_in_time
from spotrun.policy.throughput import choice, kind_of, times_first
from spotrun.run import events as ev
from spotrun.run.state import Attempt, RunState
from spotrun.spec.model import RunSpec
from spotrun.strategies.patient import Patient
from spotrun.strategies.port import ON_DEMAND
from spotrun.units import plain_usd, to_the_second

RETURN_TO_SPOT = "return to spot"
NOT_ENDED = f"the cloud has not ended its instance within {to_the_second(ENDS_WITHIN)}"


class Chosen(msgspec.Struct, frozen=True):
    """An offering to request, and the reason for the choice. The ledger stores both."""

    offering: Offering
    because: str


def keep_going(facts: Facts) -> Iterator[Action]:
    """
    Yield the actions that keep the run training: a takeover by a standby that is ready, the replacement of an instance
    that has to leave, or a request for a better instance if the move pays.
    """
    state = facts.state
    hurried = state.created.deadline_at is not None and not facts.world.unread
    pending, current = state.pending_launch, state.current
    if facts.world.no_room and pending is None and (current is None or current.leaving):
        yield Wait(reason=f"no instance is requested, because it could not store checkpoints: {facts.world.no_room}")
        return
    if current is not None and not current.leaving and life_left(facts, current) < LAST_MINUTES:
        yield Append(event=ev.DrainRequested(attempt=current.number, reason="its time-to-live ends"))
        return
    if current is not None and not current.leaving and outlives_its_end(facts, current):
        yield Append(event=ev.DrainRequested(attempt=current.number, reason=NOT_ENDED))
        return
    relief = standing_by(facts)
    if current is not None and not current.leaving and relief is not None:
        yield Append(event=ev.DrainRequested(attempt=current.number, reason=relief.intent.reason))
        return
    if newcomers := joining(facts):
        yield regroup(facts, newcomers)
        return
    if pending is not None:
        if hurried and pending.may_be_closed and too_late_for(facts, pending):
            yield Append(event=give_up(pending))
        return
    stands_still = current is None or current.leaving
    if stands_still and not lacking(facts):
        return  # the gang's present members take over without a decision
    if facts.world.unread:
        if current is None or current.leaving:
            yield Wait(
                reason=f"no instance is requested, because the cloud's offerings are unknown: {facts.world.unread}"
            )
        return
    if stands_still and lacking(facts) < facts.size:
        yield from fill(facts)
        return
    if trains_with_fewer(facts) and (asked := list(fill(facts))):
        yield from asked
        return
    if (home := way_home(facts)) is not None:
        yield from intend(facts, home, f"{_reason_to_go_home(facts)}: {why_home(facts, home)}")
        return
    if stays_at_home(facts):
        return  # no cloud takes back the user's own machine
    if starts_again_at_home(facts):
        yield Wait(reason="the time-to-live at home ends; training will start again on the same machine")
        return
    if hurried:
        yield from _in_time(facts)
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
    yield from intend(facts, choice.offering, f"{reason}: {choice.because}")


def _reason_to_go_home(facts: Facts) -> str:
    current = facts.state.current
    if current is None:
        return why_needed(facts.state)
    return "standby: the instance is leaving" if current.leaving else BACK


def _in_time(facts: Facts) -> Iterator[Action]:
    """
    Yield the actions that the deadline requires. While the strategy waits for spot, the run trains on the user's own
    machine, if that is free.
    """
    found: list[Action] = list(towards_deadline(facts)) or list(_before_a_loss(facts))
    current, home = facts.state.current, at_home_now(facts)
    if found == [WAIT_FOR_SPOT] and home is not None and (current is None or current.leaving):
        found = [*intend(facts, home, f"{why_needed(facts.state)}: {home.instance_type} is free, until there is spot")]
    yield from found


def _before_a_loss(facts: Facts) -> Iterator[Action]:
    """
    Request a standby to replace an instance that could continue to train, if that saves money: by a move to another
    kind of instance, or, after a recommendation from the cloud, by a move to another pool.
    """
    move = move_in_time(facts)
    other = move_to_another_kind(facts) if move is None else None
    if (move is None and other is None) or (
        facts.state.created.deadline_at is not None and not leaves_time_to_move(facts)
    ):
        return
    if move is not None:
        yield from intend(facts, move.offering, f"{REASON}: {move.because}")
    elif other is not None:
        yield from intend(facts, other.offering, f"{kind_moves.REASON}: {other.because}")


def _reason_to_launch(facts: Facts) -> str | None:
    current = facts.state.current
    if current is None:
        return why_needed(facts.state)
    if current.leaving:
        return "standby: the instance is leaving"
    if nearly_over(facts, current):
        return "standby: the time-to-live is nearly over"
    if may_return_to_spot(facts, current) and _spot_to_return_to(facts):
        return RETURN_TO_SPOT
    return None


def patience(spec: RunSpec) -> Patient:
    """Return the rule by which a run without a deadline waits for spot. A forecast uses this function too."""
    match spec.resources.spot_policy:
        case "on-demand":
            return Patient(0.0, None)
        case "spot":
            return Patient(inf, None)
        case _:
            policy = spec.policy
            return_after_s = policy.return_cooldown.total_seconds() if policy.return_to_spot else None
            return Patient(policy.on_demand_after.total_seconds(), return_after_s)


def may_return_to_spot(facts: Facts, current: Attempt) -> bool:
    """
    Return True if the run, which now trains on demand, is allowed to request spot again. For this, both the time on
    demand and the time since the last failed request for spot have to exceed the cool-down.

    If the job allows several kinds of instances, only the time on demand is checked. A failed request does not matter
    in this case, because a refusal by a pool of one kind says nothing about the other kinds. Instead, each pool has its
    own cool-down.
    """
    state = facts.state
    if state.launch_of(current).intent.offering.capacity_type is not CapacityType.ON_DEMAND:
        return False
    since = current.started_at if choice(facts) else kept_since(state, current)
    return patience(facts.spec).returns((facts.now - since).total_seconds())


def _spot_to_return_to(facts: Facts) -> list[Offering]:
    spot = worthwhile_spot(facts)
    if not choice(facts):
        return spot
    asked_at = {each.intent.offering.pool: each.intended_at for each in spot_launches(facts.state)}
    rule = patience(facts.spec)
    never = facts.state.created_at - timedelta(days=365)
    return [found for found in spot if rule.returns((facts.now - asked_at.get(found.pool, never)).total_seconds())]


def kept_since(state: RunState, current: Attempt) -> datetime:
    """
    Return the time at which the cool-down began. This is the start of training on demand or the last request for spot,
    whichever was later.
    """
    return max([current.started_at, *(launch.intended_at for launch in spot_launches(state))])


def _return_choice(facts: Facts) -> Chosen | Wait:
    state, spot = facts.state, _spot_to_return_to(facts)
    assert state.current is not None
    if not spot:
        return Wait(reason="no spot pool may be requested yet")
    dearer = state.launch_of(state.current).intent.offering.price_usd_per_hour - spot[0].price_usd_per_hour
    kept = to_the_second(facts.now - state.current.started_at)
    saved = "a sample costs less on spot" if choice(facts) else f"${plain_usd(dearer)} an hour may be saved"
    return Chosen(spot[0], f"on-demand was kept for {kept}, and {saved}")


def choose_capacity(facts: Facts) -> Chosen | Wait:
    """
    Return the offering to request now: on-demand, or the cheapest spot pool that has not recently refused a request or
    lost an instance.

    The run changes to on-demand when two conditions hold: it has been without spot for longer than `on_demand_after`,
    counted from the last loss or its notice, and at least one request for spot has failed in this time. In three cases
    the run changes to on-demand immediately:

    - no spot pool suits the job
    - nothing trains, and every spot pool has rejected the request
    - the spot instances that can be requested would be lost so soon that an hour of progress would cost more than on
      demand
    """
    spec, now = facts.spec, facts.now
    policy, rule = spec.resources.spot_policy, patience(spec)
    on_demand = [] if policy == "spot" else on_demand_now(facts)
    spot = [] if policy == "on-demand" else spot_now(facts)
    missing, dying = now - _capacity_missing_since(facts), _dying(facts)
    if spot and is_of_dearer_kind(facts, spot[0]):
        return _dearer_kind(facts, spot[0], on_demand, missing, dying=dying)
    if policy == "auto" and on_demand and spot and not worthwhile_spot(facts):
        return Chosen(on_demand[0], "spot lasts so briefly that an hour of progress costs less on demand")
    if policy == "auto" and spot_offerings(facts):
        on_demand = [found for found in on_demand if pays_for_all(facts, found)]
    missing_s = (max(missing, spec.policy.on_demand_after) if dying else missing).total_seconds()
    in_vain = missing_s >= rule.on_demand_after_s and _asked_in_vain(facts)
    place = rule.place(None, missing_s, None if in_vain or not spot else name_of(spot[0].pool))
    unsuited = _why_no_spot_helps(facts, spot)
    if on_demand and (place == ON_DEMAND or unsuited):
        if choice(facts) and policy == "auto" and (other := _cheaper_than_on_demand(facts, on_demand[0])) is not None:
            return Chosen(other, f"no spot for {to_the_second(missing)} of a better kind")
        return Chosen(on_demand[0], _why_on_demand(policy, missing, dying=dying, unsuited=unsuited))
    if spot and place is not None:
        return Chosen(spot[0], _why_spot(facts, spot))
    return Wait(reason=why_none(facts, CapacityType.ON_DEMAND if policy == "on-demand" else CapacityType.SPOT))


def _why_no_spot_helps(facts: Facts, spot: list[Offering]) -> str:
    """
    Return the reason why it is pointless to wait for spot; "" if spot may become available, or if an instance still
    trains. `spot` contains the spot offerings that can be requested now.
    """
    if not spot_offerings(facts):
        return "no spot pool suits"
    current = facts.state.current
    stands_still = current is None or current.leaving
    return "no spot pool accepts the request" if stands_still and not spot and no_spot_accepts(facts) else ""


def _cheaper_than_on_demand(facts: Facts, on_demand: Offering) -> Offering | None:
    """
    Return a spot offering of a more expensive kind, to use while no preferred kind has spot capacity. The work must
    cost less on this offering than on `on_demand`. Return None if there is no such offering.
    """
    work, limit = spot_work(facts), on_demand_work(facts)[on_demand]
    dearer = (found for found in spot_now(facts) if is_of_dearer_kind(facts, found))
    return next((found for found in dearer if work[found] < limit), None)


def _dearer_kind(
    facts: Facts, spot: Offering, on_demand: list[Offering], missing: timedelta, *, dying: bool
) -> Chosen | Wait:
    """
    Decide what a run does if spot is available only for a kind that costs more than the preferred kinds.

    At first, wait for spot of a preferred kind. After a while, choose `spot` or on-demand, whichever costs less for the
    same work.
    """
    if missing < facts.spec.policy.on_demand_after and not dying:
        return Wait(reason=f"waiting for spot of a better kind than {kind_of(facts, spot)}")
    work = on_demand_work(facts)
    if on_demand and work[on_demand[0]] <= spot_work(facts)[spot]:
        return Chosen(on_demand[0], f"no spot for {to_the_second(missing)} of a kind that costs less")
    return Chosen(spot, f"no spot for {to_the_second(missing)} of a better kind")


def _why_spot(facts: Facts, spot: list[Offering]) -> str:
    if (trial := trial_of(facts, spot[0])) is not None:
        return trial.because
    if len(spot) == 1:
        return "the only spot pool that may be requested"
    cheaper = [found for found in spot if found.price_usd_per_hour < spot[0].price_usd_per_hour]
    if not cheaper:
        return f"the cheapest of {len(spot)} spot pools that may be requested"
    far = all(transfer(facts, found.region) != NO_TRANSFER for found in cheaper)
    slow = any(times_first(facts, found) < times_first(facts, spot[0]) for found in cheaper)
    why = "train less per dollar" if slow else "are far from the bucket" if far else "would last less"
    return f"the first of {len(spot)} spot pools that may be requested, as cheaper ones {why}"


def _why_on_demand(policy: str, missing: timedelta, *, dying: bool, unsuited: str) -> str:
    if policy == "on-demand":
        return "spot_policy is on-demand"
    if unsuited:
        return unsuited
    return "its time-to-live leaves no time to wait for spot" if dying else f"no spot for {to_the_second(missing)}"


def _dying(facts: Facts) -> bool:
    """Return True if the running instance's time-to-live ends so soon that there is no time to wait for spot."""
    current = facts.state.current
    return current is not None and not current.leaving and life_left(facts, current) < HANDOVER_BEFORE_END


def _capacity_missing_since(facts: Facts) -> datetime:
    """
    Return the time at which the run began to need a new instance: the time of the last loss, or of its notice.
    """
    current, attempts = facts.state.current, facts.state.attempts.values()
    if current is not None:
        return current.notice_at or facts.now
    ended = [attempt.end.known_at for attempt in attempts if attempt.end is not None]
    noticed = [attempt.notice_at for attempt in attempts[-1:] if attempt.notice_at is not None]
    return max([facts.state.opened_at, *(noticed or ended[-1:])])


def _asked_in_vain(facts: Facts) -> bool:
    """
    Return True if a request for spot has failed since the run began to need a new instance. If none has failed, a spot
    instance may still be booting, so the run should not pay for on-demand yet.
    """
    since = _capacity_missing_since(facts)
    intended = (launch for launch in spot_launches(facts.state) if launch.intended_at >= since)
    asked = (launch for launch in intended if not never_asked(launch))
    in_vain = any(launch.closed is not None or refused(launch) or launch.failed_to_start for launch in asked)
    return in_vain or facts.spec.policy.on_demand_after == timedelta()
