"""
Decides what to request for a run with a deadline. The run's strategy makes the decision from a `Situation`, in the same
way as in the simulator.

A strategy assumes that every spot pool from which it can choose has capacity. If the pool that it chooses refuses the
launch, the run does not request this pool for a while, and the strategy decides again among the other pools.

If the job allows several kinds of instances, the strategy chooses only among the spot offerings of the preferred kinds,
and the on-demand offerings of one kind, the keeper. The keeper is the kind that has to meet the deadline
(`spotrun.policy.deadline_guarantee`). If an instance's kind turns out to be too slow for the deadline, the run replaces
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta

from spotrun.errors import SpecInvalid
from spotrun.offering import CapacityType, Offering
from spotrun.policy.actions import Action, Wait
from spotrun.policy.deadline_guarantee import hopeful_s, is_enough, keeper, too_slow
from spotrun.policy.facts import Facts
from spotrun.policy.launches import why_needed
from spotrun.policy.lives import nearly_over
from spotrun.policy.money import intend
from spotrun.policy.pool_cooldown import no_spot_accepts, why_none
from spotrun.policy.pools import just_lost, name_of
from spotrun.policy.ranking import on_demand_now, spot_launches, spot_now, spot_of_first_kinds, trial_of
from spotrun.policy.situation import choice_of, situation
from spotrun.policy.speed_at_home import is_at_home
from spotrun.policy.subnets import failing_zones
from spotrun.policy.throughput import choice, kind_of
from spotrun.policy.workload import workload
from spotrun.run import events as ev
from spotrun.run.events import Cause
from spotrun.run.state import Attempt, Launch, RunState
from spotrun.spec.model import RunSpec
from spotrun.strategies.catalogue import OnDemandOnly
from spotrun.strategies.port import ON_DEMAND, Choice, Situation, Strategy
from spotrun.strategies.reserve import return_to
from spotrun.units import plain_usd, to_the_cent, to_the_second

HANDOVER = timedelta(minutes=2)
"""Upper bound of the time from the last step before a planned handover to the first step after it."""
WAIT_FOR_SPOT = Wait(reason="waiting for spot: the deadline leaves time for it")


def towards_deadline(facts: Facts) -> Iterator[Action]:
    """Yield the launch to make now, if any. Called only while no other launch is in progress."""
    running = _kept(facts)
    stays = None if running is not None and _is_too_slow_on_spot(facts, running) else running
    spot = _spot_to_ask(facts, stays)
    moment = situation(facts, stays, spot)
    place = _strategy(facts).choose(moment)
    if running is not None and (place is None or (place == choice_of(running) and not _falls_short(facts, running))):
        return
    offering = _offering(facts, place, spot)
    if isinstance(offering, Wait):
        yield offering
    elif running is None or offering.capacity_type is CapacityType.SPOT or place == ON_DEMAND:
        because = _because(facts, moment, place, offering)
        yield from intend(facts, offering, f"{_reason(facts, running, offering)}: {because}")


def too_late_for(facts: Facts, pending: Launch) -> bool:
    """
    Return True if the pending launch is for spot, and the run must stop waiting for it now in order to finish on demand
    in time.
    """
    if pending.intent.offering.capacity_type is not CapacityType.SPOT:
        return False
    running = _kept(facts) or pending
    if choice_of(running) == ON_DEMAND:
        return False
    return _strategy(facts).choose(situation(facts, running, [])) == ON_DEMAND


def too_late_for_spot(facts: Facts, offering: Offering) -> bool:
    """
    Return True if `offering` is spot, and launching it now could leave too little time to finish on demand.
    """
    if offering.capacity_type is not CapacityType.SPOT:
        return False
    return _strategy(facts).choose(situation(facts, None, [offering])) == ON_DEMAND


def leaves_time_to_move(facts: Facts) -> bool:
    """
    Return True if there is time for a handover: if the strategy would still keep the running instance after the time
    HANDOVER.
    """
    running = _kept(facts)
    if running is None:
        return False
    later = facts.at(facts.now + HANDOVER)
    return _strategy(facts).choose(situation(later, running, [])) == choice_of(running)


def give_up(pending: Launch) -> ev.LaunchClosed:
    detail = "the deadline leaves no more time for spot"
    return ev.LaunchClosed(launch=pending.number, cause=Cause.REPLACED, detail=detail)


def out_of_reach(facts: Facts) -> ev.DeadlineOutOfReach | None:
    """
    Return a DeadlineOutOfReach event if the deadline certainly cannot be met. Return None if the deadline may still be
    met, or if the ledger already has this event.
    """
    state, now = facts.state, facts.now
    deadline_at = state.created.deadline_at
    if deadline_at is None or state.deadline_lost is not None:
        return None
    work = workload(facts)
    left_s, doubt_s = (0.0, 0.0) if work is None else (work.left_s, work.doubt_s)
    least_s = left_s - min(doubt_s, left_s)
    if work is not None and (kept := keeper(facts)) is not None:
        left_s, least_s = kept.left_s, hopeful_s(facts)
    if now + timedelta(seconds=least_s) <= deadline_at:
        return None
    expected_at = now + timedelta(seconds=left_s)
    return ev.DeadlineOutOfReach(deadline_at=deadline_at, expected_at=expected_at, work_left_s=left_s)


def deadline_at(deadline: timedelta | time | datetime, launched_at: datetime) -> datetime:
    """
    Return the time of a deadline, in UTC, for a run that is launched at `launched_at`.

    A time of day means its next occurrence after the launch. A time without a time zone is in this machine's time zone.
    """
    if isinstance(deadline, timedelta):
        return launched_at + deadline
    if isinstance(deadline, datetime):
        return deadline.astimezone(UTC)
    today = launched_at.astimezone().date()
    chosen = (datetime.combine(today + timedelta(days=days), deadline).astimezone(UTC) for days in (0, 1, 2))
    return next(moment for moment in chosen if moment > launched_at)


def unreachable(spec: RunSpec, time_left: timedelta) -> str | None:
    """
    Return the reason why a run cannot finish in `time_left`; None unless this is already certain before its launch.

    `expected_work` is ignored if the job allows several kinds of instances, because it is the time on the first kind,
    and another kind may be faster.
    """
    if spec.policy.deadline is None:
        return None
    work = timedelta() if spec.resources.is_choice else spec.policy.expected_work or timedelta()
    if work + spec.boot < time_left:
        return None
    return "the deadline cannot be met even on demand: to boot and to train takes longer"


def _kept(facts: Facts) -> Launch | None:
    """
    Return the launch of the running instance if this instance is rented and can continue to train. Return None if the
    instance has to be replaced, or if it is the user's own machine.
    """
    current = facts.state.current
    if current is None or current.leaving or nearly_over(facts, current) or is_at_home(facts.state, current):
        return None
    return facts.state.launch_of(current)


def _strategy(facts: Facts) -> Strategy:
    """
    Return the strategy that decides for the run.

    Raises:
        SpecInvalid: an earlier version of spotrun launched the run with a strategy that this version uses only in
            simulations.
    """
    name = facts.spec.policy.strategy
    if facts.spec.resources.spot_policy == "on-demand":
        return OnDemandOnly()
    if name not in facts.strategies:
        hint = "stop this run (`spotrun stop`), and launch it again with policy.strategy: ours"
        raise SpecInvalid(f"jobs can no longer use strategy {name}", hint=hint)
    return facts.strategies[name]


def _spot_to_ask(facts: Facts, running: Launch | None) -> list[Offering]:
    """
    Return the spot offerings from which the strategy can choose. While an instance trains, the list is usually empty,
    because the run then requests spot only once per cool-down, or never if the job forbids a return to spot.

    Two groups of pools are left out, unless no other pools remain: pools in which the run has just lost an instance,
    and pools in zones where the newest instance ended before it trained.
    """
    if running is not None and not (facts.spec.policy.return_to_spot and _cooled_down(facts)):
        return []
    spot, lost = spot_of_first_kinds(facts) if choice(facts) else spot_now(facts), just_lost(facts)
    if choice(facts) and running is not None and choice_of(running) != ON_DEMAND:
        kind = kind_of(facts, running.intent.offering)
        spot = [found for found in spot_now(facts) if kind_of(facts, found) == kind]
    failing = failing_zones(facts)
    return [found for found in spot if found.pool not in lost and found.zone not in failing] or spot


def _is_too_slow_on_spot(facts: Facts, running: Launch) -> bool:
    return choice_of(running) != ON_DEMAND and kind_of(facts, running.intent.offering) in too_slow(facts)


def _falls_short(facts: Facts, running: Launch) -> bool:
    """
    Return True if the run now trains on demand and may miss its deadline there, and another kind is more likely to meet
    it.
    """
    return choice_of(running) == ON_DEMAND and not is_enough(facts, running.intent.offering)


def _cooled_down(facts: Facts) -> bool:
    cooldown = facts.spec.policy.return_cooldown
    return all(facts.now - launch.intended_at >= cooldown for launch in spot_launches(facts.state))


def _offering(facts: Facts, place: Choice, spot: list[Offering]) -> Offering | Wait:
    """
    Return the offering to request for `place`, which the strategy has chosen. If `place` is on-demand and there is no
    capacity on demand, return a spot offering. If it is useless to wait for spot, return an on-demand offering.
    """
    if place is None and not no_spot_accepts(facts):
        return WAIT_FOR_SPOT
    if place in (None, ON_DEMAND):
        asked = [*_of_keeper_first(facts, on_demand_now(facts)), *spot]
        return asked[0] if asked else Wait(reason=why_none(facts, CapacityType.ON_DEMAND))
    return next(found for found in spot if name_of(found.pool) == place)


def _of_keeper_first(facts: Facts, on_demand: list[Offering]) -> list[Offering]:
    kept = keeper(facts)
    return on_demand if kept is None else sorted(on_demand, key=lambda each: kind_of(facts, each) != kept.kind)


def _reason(facts: Facts, running: Launch | None, offering: Offering) -> str:
    state = facts.state
    if running is not None and (_is_too_slow_on_spot(facts, running) or _falls_short(facts, running)):
        return f"standby: {kind_of(facts, running.intent.offering)} may be too slow for the deadline"
    if running is not None:
        to_spot = offering.capacity_type is CapacityType.SPOT
        return _reason_to_move(running) if to_spot else "the deadline leaves no time for another loss"
    return _reason_to_replace(state, state.current)


def _reason_to_move(running: Launch) -> str:
    return "return to spot" if choice_of(running) == ON_DEMAND else "cheaper spot"


def _reason_to_replace(state: RunState, current: Attempt | None) -> str:
    if current is None:
        return why_needed(state)
    if is_at_home(state, current) and not current.leaving:
        return f"the deadline leaves no time for {state.launch_of(current).intent.offering.instance_type}"
    return "standby: the instance is leaving" if current.leaving else "standby: the time-to-live is nearly over"


def _because(facts: Facts, moment: Situation, place: Choice, offering: Offering) -> str:
    """Return the reason why the strategy chose `place`, with the figures that it used."""
    spec = facts.spec
    if offering.capacity_type is CapacityType.SPOT:
        if place == ON_DEMAND:
            return "there is no on-demand capacity"
        if (trial := trial_of(facts, offering)) is not None:
            return trial.because
        if moment.running == ON_DEMAND and spec.policy.strategy == "ours":
            return _because_it_pays(moment, name_of(offering.pool))
        if moment.running is not None and moment.running in moment.spot:
            if choice(facts):
                return "a sample costs less on that offering"
            before = to_the_cent(moment.spot[moment.running])
            return f"${plain_usd(offering.price_usd_per_hour)} an hour instead of {before}"
    elif spec.resources.spot_policy == "on-demand":
        return "spot_policy is on-demand"
    elif workload(facts) is None:
        return "the amount of work is not known yet"
    slack = timedelta(seconds=max(0.0, moment.slack_s))
    return f"strategy {spec.policy.strategy}, with {to_the_second(slack)} of slack"


def _because_it_pays(moment: Situation, pool: str) -> str:
    worth, job = return_to(pool, moment), moment.job
    saved = f"{to_the_cent(worth.saved_s * job.on_demand_usd_per_hour / 3600)} saved"
    life, changeover = timedelta(seconds=worth.life_s), timedelta(seconds=job.changeover_s)
    return f"{saved} in the {to_the_second(life)} that it may last pays for {to_the_second(changeover)} of changeover"
