"""
What to do next: one pure decision over the state of a run, the world around it, and the time.

`decide` returns actions for the runner to carry out in order. Each is safe to repeat, and each event is checked again
when it is folded, so two runners that decide the same do no harm.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import takewhile

import msgspec

from spotrun import events as ev
from spotrun.billing import SECONDS_PER_HOUR, ZERO
from spotrun.events import Cause
from spotrun.instance import EndedBy, Instance
from spotrun.market import World, affordable, on_demand_price
from spotrun.offering import CapacityType, Offering, Pool
from spotrun.spec import RunSpec
from spotrun.state import Attempt, Launch, RunState

INTENT_LIFETIME = timedelta(minutes=10)
"""How long any runner may execute a LaunchIntended; later it may only be looked up (protocol 8)."""
TIME_TO_LIVE = timedelta(hours=24)
TIME_TO_LIVE_MIN = timedelta(minutes=10)
"""A shorter life does not pay for its boot."""
HANDOVER_BEFORE_END = timedelta(minutes=15)
"""So long before an instance's time-to-live a standby is launched for it."""
POOL_REST = timedelta(minutes=2)
"""A pool that had no capacity is not asked again for so long."""
LOST_POOL_REST = timedelta(minutes=10)
"""A pool that just took an instance back is asked last: 10 min after a loss it is up again with p = 0.23 only."""
LAST_MINUTES = timedelta(minutes=3)
"""With so little left of its time-to-live an instance commits and goes, whether or not a standby is there."""
POWER_OFF_GRACE = timedelta(minutes=3)
"""An instance whose attempt is over powers itself off; after so long a runner does it."""
STOP_GRACE = timedelta(minutes=10)
SILENCE = timedelta(minutes=10)
"""A heartbeat unchanged for so long, while our own reads succeed, is evidence that its agent is gone (protocol 16)."""
MUTE_MAX = timedelta(minutes=30)
"""An instance that runs for so long without a word from its agent is given up."""
REAL_PATIENCE = timedelta(seconds=90)
"""System time: a slow disk is no evidence, however fast run time passes."""
FORGOTTEN_AFTER = timedelta(minutes=10)
STILLBORN_MAX = 3
"""Instances in a row that ended by themselves before an attempt: the fourth would too."""
FRUITLESS_MAX = 5
"""Attempts in a row that ended for no market reason and left no checkpoint: money without progress."""


class Append(msgspec.Struct, frozen=True, kw_only=True):
    """Write this event, unless the run has changed since it was decided."""

    event: ev.AnyEvent


class Execute(msgspec.Struct, frozen=True, kw_only=True):
    """Ask the cloud for the instance of this launch; harmless to repeat."""

    launch: int


class Terminate(msgspec.Struct, frozen=True, kw_only=True):
    instance_id: str
    reason: str


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing can be launched now, for a reason worth telling."""

    reason: str


Action = Append | Execute | Terminate | Wait


def decide(state: RunState, spec: RunSpec, world: World, now: datetime) -> list[Action]:
    """Everything to be done now, in order. An event that changes what follows is the last of its list."""
    housekeeping = [*_record(state, world), *_clean_up(state, spec, world, now)]
    if any(not isinstance(action, Terminate) for action in housekeeping):
        return housekeeping
    return housekeeping + _next_step(state, spec, world, now)


def _next_step(state: RunState, spec: RunSpec, world: World, now: datetime) -> list[Action]:
    if state.terminal is not None:
        return []
    if state.stop_requested:
        return list(_stop(state, now))
    if _overdue(state, spec, now):
        return list(_leave(state, "max_duration is over"))
    if state.current is None and (failure := _hopeless(state)) is not None:
        return [Append(event=failure)]
    return list(_keep_going(state, spec, world, now))


def finished(state: RunState, world: World) -> bool:
    """Nothing is left to do for this run, and nothing of it is left running."""
    return state.terminal is not None and not any(instance.alive for instance in world.instances)


# -- what the cloud says ---------------------------------------------------------------------------------------------


def _record(state: RunState, world: World) -> Iterator[Action]:
    """Facts for the bill: which instances exist, since when they are charged, and which are gone."""
    for instance in world.instances:
        launch = state.launches.get(instance.launch)
        if launch is None or launch.gone is not None:
            continue
        if not instance.alive:
            yield Append(event=_gone(launch, instance))
        elif launch.recorded is None and instance.billed_from is not None:
            yield Append(event=_recorded(launch, instance, instance.billed_from))


def _recorded(launch: Launch, instance: Instance, billed_from: datetime) -> ev.LaunchRecorded:
    return ev.LaunchRecorded(
        launch=launch.number, instance_id=instance.instance_id, billed_from=billed_from, prices=instance.prices
    )


def _gone(launch: Launch, instance: Instance) -> ev.InstanceGone:
    assert instance.ended_at is not None
    assert instance.ended_by is not None
    return ev.InstanceGone(
        launch=launch.number,
        instance_id=instance.instance_id,
        billed_from=instance.billed_from,
        ended_at=instance.ended_at,
        ended_by=instance.ended_by,
        prices=instance.prices,
        evidence=f"the cloud's record: ended by {instance.ended_by}",
    )


def _clean_up(state: RunState, spec: RunSpec, world: World, now: datetime) -> Iterator[Action]:
    """End what should not be running, and give up what did not come to be."""
    for instance in world.instances:
        if instance.alive and (reason := _reason_to_end(state, instance, now)):
            yield Terminate(instance_id=instance.instance_id, reason=reason)
    listed = {instance.launch for instance in world.instances}
    for launch in state.launches.values():
        if launch.gone is None and launch.number not in listed:
            yield from _not_listed(launch, state, spec, world, now)
    pending = state.pending_launch
    if pending is not None and (state.terminal is not None or state.stop_requested):
        yield Append(event=ev.LaunchClosed(launch=pending.number, cause=Cause.STOPPED, detail="the run ends"))
    yield from _condemn_silent(state, world)
    if pending is not None and (detail := _mute(pending, state, world, now)):
        yield Append(event=ev.LaunchClosed(launch=pending.number, cause=Cause.EXTERNAL, detail=detail))


def _reason_to_end(state: RunState, instance: Instance, now: datetime) -> str | None:
    launch = state.launches.get(instance.launch)
    if launch is None:
        return "no launch of this run"
    if launch.closed is not None:
        return "its launch is closed"
    if launch.condemned is not None:
        return "condemned"
    if launch.gone is not None:
        return "its end is recorded"
    if launch.attempt is None or launch.attempt == state.current_attempt:
        return None
    end = state.attempts[launch.attempt].end
    over = end is not None and now - end.known_at > POWER_OFF_GRACE
    return "its attempt is over" if over else None


def _not_listed(launch: Launch, state: RunState, spec: RunSpec, world: World, now: datetime) -> Iterator[Action]:
    if launch.recorded is not None:
        wanted = launch.closed is None and launch.attempt in (None, state.current_attempt)
        lives = wanted and world.silent.get(launch.number, timedelta()) < SILENCE
        if not lives and now - launch.recorded.billed_from > FORGOTTEN_AFTER:
            yield Append(event=_forgotten(launch, now))
    elif launch.closed is not None or state.terminal is not None or state.stop_requested:
        return
    elif launch.attempt is None and now < launch.intent.not_after:
        if (reason := forbidden(launch.intent, spec, world)) is None:
            yield Execute(launch=launch.number)
        else:
            yield Append(event=ev.LaunchClosed(launch=launch.number, cause=Cause.CAPACITY, detail=reason))
    elif launch.attempt is None:
        yield Append(event=ev.LaunchClosed(launch=launch.number, cause=Cause.CAPACITY, detail="not started in time"))


def forbidden(intent: ev.LaunchIntended, spec: RunSpec, world: World) -> str | None:
    """Why an intent must not be executed, whoever wrote it (protocol 10). Caps and budget the fold has checked."""
    wanted = [found for found in _within_price(spec, world) if found.pool == intent.offering.pool]
    policy = spec.resources.spot_policy
    if not wanted or policy not in ("auto", intent.offering.capacity_type.replace("_", "-")):
        return f"{intent.offering} is not among what the spec allows now"
    if wanted[0].price_usd_per_hour > intent.price_ceiling_usd_per_hour:
        return f"{intent.offering} costs more now than was reserved for it"
    return None


def _forgotten(launch: Launch, now: datetime) -> ev.InstanceGone:
    assert launch.recorded is not None
    return ev.InstanceGone(
        launch=launch.number,
        instance_id=launch.recorded.instance_id,
        billed_from=launch.recorded.billed_from,
        ended_at=now,
        ended_by=EndedBy.FAULT,
        prices=launch.recorded.prices,
        evidence="the cloud's list no longer has it",
    )


def _mute(pending: Launch, state: RunState, world: World, now: datetime) -> str | None:
    """Why the agent of a launch that has not taken over is given up."""
    if world.silent.get(pending.number, timedelta()) >= _at_least_real(SILENCE, state):
        return "its agent is silent"
    recorded = pending.recorded
    mute = pending.number not in world.silent and recorded is not None
    if mute and recorded is not None and now - recorded.billed_from > _at_least_real(MUTE_MAX, state):
        return "its agent never spoke"
    return None


def _at_least_real(patience: timedelta, state: RunState) -> timedelta:
    """A patience in run time that is never less than `REAL_PATIENCE` on the wall, however fast run time passes."""
    assert state.created is not None
    return max(patience, REAL_PATIENCE * state.created.time_scale)


def _condemn_silent(state: RunState, world: World) -> Iterator[Action]:
    current = state.current
    if current is None or world.silent.get(current.launch, timedelta()) < _at_least_real(SILENCE, state):
        return
    if state.launch_of(current).condemned is None:
        silence = world.silent[current.launch]
        detail = f"its heartbeat has not changed for {silence.total_seconds():.0f} s"
        yield Append(event=ev.InstanceCondemned(launch=current.launch, cause=Cause.HANG, detail=detail))


# -- whether to end --------------------------------------------------------------------------------------------------


def _overdue(state: RunState, spec: RunSpec, now: datetime) -> bool:
    return spec.max_duration is not None and _age(state, now) > spec.max_duration


def _age(state: RunState, now: datetime) -> timedelta:
    """How long the run has been open; while it was stopped or failed its clock stood still."""
    assert state.created_at is not None
    return now - state.created_at - sum((pause.until - pause.since for pause in state.pauses), timedelta())


def _stop(state: RunState, now: datetime) -> Iterator[Action]:
    current = state.current
    if current is None:
        yield Append(event=ev.RunStopped(reason="stop requested"))
        return
    assert state.stop_requested_at is not None
    if now - state.stop_requested_at > _at_least_real(STOP_GRACE, state) and state.launch_of(current).condemned is None:
        detail = "it did not stop when asked"
        yield Append(event=ev.InstanceCondemned(launch=current.launch, cause=Cause.STOPPED, detail=detail))


def _leave(state: RunState, reason: str) -> Iterator[Action]:
    """End the run by our own decision: drain what trains, then stop."""
    if state.current is None:
        yield Append(event=ev.RunStopped(reason=reason))
    elif state.current.drain is None:
        yield Append(event=ev.DrainRequested(attempt=state.current.number, reason=reason))


def _hopeless(state: RunState) -> ev.RunFailed | None:
    """Why another launch could not help."""
    launches = _since_opened(state)
    newest = launches[-1].closed if launches else None
    if newest is not None and newest.cause is Cause.ACCESS:
        return ev.RunFailed(cause=Cause.ACCESS, detail=newest.detail)
    last = next(reversed(list(state.attempts.values())), None)
    if last is not None and last.end is not None and last.end.gave_up and last.started_at >= _opened_at(state):
        return ev.RunFailed(cause=last.end.cause, detail=last.end.detail)
    first_choices = [launch for launch in reversed(launches) if launch.intent.standby_for is None]
    stillborn = list(takewhile(_stillborn, (launch for launch in first_choices if not _refused(launch))))
    if len(stillborn) >= STILLBORN_MAX:
        detail = f"{len(stillborn)} instances in a row ended before the agent took over"
        return ev.RunFailed(cause=Cause.EXTERNAL, detail=detail)
    fruitless = list(takewhile(lambda attempt: _fruitless(attempt, state), reversed(list(state.attempts.values()))))
    if len(fruitless) >= FRUITLESS_MAX:
        detail = f"{len(fruitless)} attempts in a row ended without a checkpoint, and not by an interruption"
        return ev.RunFailed(cause=Cause.EXTERNAL, detail=detail)
    return None


def _refused(launch: Launch) -> bool:
    """The cloud had nothing to give: that says nothing about our code."""
    return launch.closed is not None and launch.closed.cause is not Cause.EXTERNAL


def _stillborn(launch: Launch) -> bool:
    if launch.closed is not None:
        return launch.closed.cause is Cause.EXTERNAL
    return launch.attempt is None and launch.gone is not None and launch.gone.ended_by is not EndedBy.CLOUD


def _fruitless(attempt: Attempt, state: RunState) -> bool:
    """It ended for no reason that the market gives, and left nothing behind; since the run was opened last."""
    if attempt.end is None or attempt.started_at < _opened_at(state):
        return False
    committed = any(commit.event.attempt == attempt.number for commit in state.commits)
    return attempt.end.cause in (Cause.EXTERNAL, Cause.HANG) and not committed


def _opened_at(state: RunState) -> datetime:
    assert state.opened_at is not None
    return state.opened_at


def _since_opened(state: RunState) -> list[Launch]:
    return [launch for launch in state.launches.values() if launch.intended_at >= _opened_at(state)]


# -- capacity --------------------------------------------------------------------------------------------------------


def _keep_going(state: RunState, spec: RunSpec, world: World, now: datetime) -> Iterator[Action]:
    pending, current = state.pending_launch, state.current
    if pending is not None:
        if current is not None and not current.leaving and pending.number in world.ready:
            yield Append(event=ev.DrainRequested(attempt=current.number, reason=pending.intent.reason))
        return
    if current is not None and not current.leaving and _life_left(state, current, now) < LAST_MINUTES:
        yield Append(event=ev.DrainRequested(attempt=current.number, reason="its time-to-live ends"))
        return
    reason = _reason_to_launch(state, spec, world, now)
    if reason is None:
        return
    choice = choose_capacity(state, spec, world, now)
    if current is not None and not current.leaving and reason == RETURN_TO_SPOT:
        choice = _return_choice(state, spec, world, now)
    if isinstance(choice, Wait):
        yield choice
        return
    yield from _intend(state, spec, world, now, choice, reason)


RETURN_TO_SPOT = "return to spot"


def _reason_to_launch(state: RunState, spec: RunSpec, world: World, now: datetime) -> str | None:
    current = state.current
    if current is None:
        return "first launch" if not state.attempts else "replacement"
    if current.leaving:
        return "standby: the instance is leaving"
    life = timedelta(seconds=state.launch_of(current).intent.time_to_live_s)
    if _life_left(state, current, now) < min(HANDOVER_BEFORE_END, life / 4):
        return "standby: the time-to-live is nearly over"
    if may_return_to_spot(state, spec, current, now):
        return RETURN_TO_SPOT
    return None


def _life_left(state: RunState, current: Attempt, now: datetime) -> timedelta:
    launch = state.launch_of(current)
    began = current.booted_at if launch.recorded is None else min(current.booted_at, launch.recorded.billed_from)
    return began + timedelta(seconds=launch.intent.time_to_live_s) - now


def may_return_to_spot(state: RunState, spec: RunSpec, current: Attempt, now: datetime) -> bool:
    """On-demand has been kept, and spot was last asked for in vain, longer ago than the cool-down."""
    if spec.resources.spot_policy != "auto" or not spec.policy.return_to_spot:
        return False
    if state.launch_of(current).intent.offering.capacity_type is not CapacityType.ON_DEMAND:
        return False
    asked = [launch.intended_at for launch in _spot_launches(state)]
    since = max([current.started_at, *asked])
    return now - since >= spec.policy.return_cooldown


def _spot_launches(state: RunState) -> list[Launch]:
    spot = CapacityType.SPOT
    return [launch for launch in state.launches.values() if launch.intent.offering.capacity_type is spot]


def _return_choice(state: RunState, spec: RunSpec, world: World, now: datetime) -> Offering | Wait:
    return next(iter(_spot_now(state, spec, world, now)), Wait(reason="no spot pool to ask yet"))


def choose_capacity(state: RunState, spec: RunSpec, world: World, now: datetime) -> Offering | Wait:
    """
    The offering to ask for now: the cheapest spot that has not just refused or been lost, or on-demand.

    `auto` goes on-demand when spot has been missing for `on_demand_after`, counted from the loss (or the notice).
    """
    policy = spec.resources.spot_policy
    resting = _resting(state, now)
    on_demand = [
        found
        for found in _within_price(spec, world)
        if found.capacity_type is CapacityType.ON_DEMAND and found.pool not in resting
    ]
    if policy == "on-demand":
        return on_demand[0] if on_demand else Wait(reason="no on-demand capacity in any zone just now")
    missing = now - _capacity_missing_since(state, now)
    spot = _spot_now(state, spec, world, now)
    waited = missing >= spec.policy.on_demand_after or _dying(state, now)
    if policy == "auto" and waited and on_demand and (not spot or _asked_in_vain(state, spec, now)):
        return on_demand[0]
    if spot:
        return spot[0]
    if policy == "auto" and on_demand and not _spot_offerings(spec, world):
        return on_demand[0]
    return Wait(reason="no spot capacity in any zone just now")


def _dying(state: RunState, now: datetime) -> bool:
    """What trains is near the end of its time-to-live: there is no time to wait for spot."""
    current = state.current
    return current is not None and not current.leaving and _life_left(state, current, now) < HANDOVER_BEFORE_END


def _within_price(spec: RunSpec, world: World) -> list[Offering]:
    return [found for found in world.offerings if affordable(found, spec.resources.max_price)]


def _spot_offerings(spec: RunSpec, world: World) -> list[Offering]:
    return [found for found in _within_price(spec, world) if found.capacity_type is CapacityType.SPOT]


def _spot_now(state: RunState, spec: RunSpec, world: World, now: datetime) -> list[Offering]:
    """The spot offerings worth asking for now, best first: the cheapest, and those just lost last."""
    resting = _resting(state, now)
    lost = {
        state.launch_of(attempt).intent.offering.pool for attempt in state.attempts.values() if _just_lost(attempt, now)
    }
    asked = [found for found in _spot_offerings(spec, world) if found.pool not in resting]
    return sorted(asked, key=lambda found: (found.pool in lost, found.price_usd_per_hour))


def _resting(state: RunState, now: datetime) -> set[Pool]:
    """The pools that have just refused."""
    return {
        launch.intent.offering.pool
        for launch in _since_opened(state)
        if launch.closed is not None and _refused_for_now(launch, now)
    }


def _refused_for_now(launch: Launch, now: datetime) -> bool:
    assert launch.closed is not None
    if launch.closed.cause is Cause.QUOTA:
        return True
    return launch.closed.cause is Cause.CAPACITY and now - launch.intended_at < POOL_REST


def _just_lost(attempt: Attempt, now: datetime) -> bool:
    lost_at = attempt.notice_at or (
        attempt.end.known_at if attempt.end and attempt.end.cause is Cause.INTERRUPTED else None
    )
    return lost_at is not None and now - lost_at < LOST_POOL_REST


def _capacity_missing_since(state: RunState, now: datetime) -> datetime:
    """When the need for a new instance arose."""
    current = state.current
    if current is not None:
        return current.notice_at or now
    ended = [attempt.end.known_at for attempt in state.attempts.values() if attempt.end is not None]
    told = [attempt.notice_at for attempt in list(state.attempts.values())[-1:] if attempt.notice_at is not None]
    return max([_opened_at(state), *(told or ended[-1:])])


def _asked_in_vain(state: RunState, spec: RunSpec, now: datetime) -> bool:
    """Spot refused since the need arose: time alone (a slow boot) is no reason to pay more."""
    since = _capacity_missing_since(state, now)
    refusals = (launch for launch in _spot_launches(state) if launch.closed is not None and launch.intended_at >= since)
    return spec.policy.on_demand_after == timedelta() or any(refusals)


# -- what it may cost ------------------------------------------------------------------------------------------------


def _intend(
    state: RunState, spec: RunSpec, world: World, now: datetime, offering: Offering, reason: str
) -> Iterator[Action]:
    on_demand = on_demand_price(offering, world.offerings)
    ceiling = price_ceiling(offering, on_demand, spec.resources.max_price)
    life = time_to_live(state, spec, ceiling, now)
    if life is None:
        yield from _out_of_budget(state)
        return
    intent = ev.LaunchIntended(
        offering=offering,
        time_to_live_s=life.total_seconds(),
        price_ceiling_usd_per_hour=ceiling,
        on_demand_usd_per_hour=on_demand,
        not_after=now + INTENT_LIFETIME,
        reason=reason,
        standby_for=state.current_attempt,
    )
    yield Append(event=intent)


def price_ceiling(offering: Offering, on_demand: Decimal, max_price: Decimal | None) -> Decimal:
    """The most an hour may come to be: a spot price floats, up to max_price or the on-demand price."""
    if offering.capacity_type is CapacityType.ON_DEMAND:
        return offering.price_usd_per_hour
    return max_price if max_price is not None else max(on_demand, offering.price_usd_per_hour)


def time_to_live(state: RunState, spec: RunSpec, ceiling: Decimal, now: datetime) -> timedelta | None:
    """
    How long a new instance may live, or None where the budget allows too little to be worth a boot.

    With a budget, half of what is left is kept for its standby while that leaves a useful life.
    """
    assert state.created is not None
    life = TIME_TO_LIVE
    if spec.max_duration is not None:
        life = min(life, spec.max_duration - _age(state, now) + HANDOVER_BEFORE_END)
    budget = state.created.budget_usd
    if budget is not None and ceiling > 0:
        hours = (budget - state.reserved_usd() - storage_reserve(state, spec)) / ceiling
        affordable_life = timedelta(seconds=int(max(ZERO, hours) * SECONDS_PER_HOUR))
        half = affordable_life / 2
        life = min(life, half if half >= TIME_TO_LIVE_MIN * 3 else affordable_life)
    return life if life >= TIME_TO_LIVE_MIN else None


def storage_reserve(state: RunState, spec: RunSpec) -> Decimal:
    """A month of the checkpoints that are kept, at the size of the newest."""
    latest = state.latest_commit()
    if latest is None or state.created is None:
        return ZERO
    kept_gb = Decimal(latest.event.size_bytes * (spec.checkpoint.keep_last + 1)) / 10**9
    return kept_gb * state.created.storage.usd_per_gb_month


def _out_of_budget(state: RunState) -> Iterator[Action]:
    held = any(launch.gone is None and not _refused(launch) for launch in state.launches.values())
    if state.current is None and not held:
        yield Append(event=ev.RunStopped(reason="the rest of the budget does not pay for another instance"))
    else:
        yield Wait(reason="the budget is reserved until the instance before has ended")
