"""
Decides whether a run replaces its training instance with an instance of another kind (a move). There are two reasons
for a move: the other kind is known to cost less per sample, or its cost is unknown and the run wants to measure it.

For a move, the runner launches a standby of the other kind while the old instance still trains. A move costs the
standby's start and a handover. It saves money only until the old instance would be lost, or replaced with a spot
instance: at that moment, the run would change to the best kind anyway, at no extra cost.

If the speeds of both kinds were measured, the run moves if the saving exceeds the cost of the move. The saving is
computed from the smallest cost difference that is consistent with the measurements.
"""

from __future__ import annotations

from datetime import datetime
from math import exp, inf

import msgspec

from spotrun.offering import CapacityType, Offering
from spotrun.policy import assumptions
from spotrun.policy.changeovers import changeover
from spotrun.policy.facts import Facts
from spotrun.policy.pools import at_risk, just_lost
from spotrun.policy.ranking import expected_lives, on_demand_work, spot_work
from spotrun.policy.throughput import choice, kind_of, speeds, times_first
from spotrun.policy.trials import Until, Work, best_known, cheapest_of_kinds, worth_a_trial
from spotrun.policy.workload import workload
from spotrun.run.billing import SECONDS_PER_HOUR
from spotrun.run.state import Attempt, RunState

REASON = "standby: another kind of instance"


class KindMove(msgspec.Struct, frozen=True):
    """A move to an instance of another kind: the offering to rent, and the reason for the move."""

    offering: Offering
    because: str


def move_to_another_kind(facts: Facts) -> KindMove | None:
    """
    Return the offering of another kind to which the run should move now; the runner then launches a standby of this
    offering. Return None if the instance that trains should continue.
    """
    current = facts.state.current
    if not choice(facts) or current is None or not _may_be_left(facts, current):
        return None
    here = facts.state.launch_of(current).intent.offering
    trouble = {*just_lost(facts), *at_risk(facts)}
    asked = spot_work(facts) if here.capacity_type is CapacityType.SPOT else on_demand_work(facts)
    work = {each: usd for each, usd in asked.items() if each.pool not in trouble or each.pool == here.pool}
    return _known_to_be_cheaper(facts, work, here) or _worth_a_trial(facts, work, here)


def _may_be_left(facts: Facts, current: Attempt) -> bool:
    """
    Return True if a move can replace the running attempt: the attempt is not already ending, and the speed of its kind
    was measured.
    """
    kind = kind_of(facts, facts.state.launch_of(current).intent.offering)
    return not current.leaving and kind is not None and speeds(facts)[kind].measured is not None


def _work_until_lost_h(facts: Facts, here: Offering) -> float | None:
    """
    Return the amount of work that the running instance will still do if the run does not move. The unit is the work
    that the job's first kind does in an hour. Return None if it is unknown how much work is left.
    """
    left = workload(facts)
    if left is None:
        return None
    left_h = left.left_s / SECONDS_PER_HOUR
    if here.capacity_type is not CapacityType.SPOT:
        return min(left_h, _on_demand_h(facts) * times_first(facts, here))
    life_s = expected_lives(facts, [here])[here.pool]
    return min(left_h, life_s / SECONDS_PER_HOUR * times_first(facts, here))


def _on_demand_h(facts: Facts) -> float:
    """
    Return the number of hours for which the run is expected to stay on demand from now on. If it is allowed to return
    to spot, assume that it will stay on demand for as long as it has already been on demand.
    """
    current, spec = facts.state.current, facts.spec
    assert current is not None
    if spec.resources.spot_policy == "on-demand" or not spec.policy.return_to_spot:
        return inf
    kept = max(spec.policy.return_cooldown, facts.now - _on_demand_since(facts.state, current))
    return kept.total_seconds() / SECONDS_PER_HOUR


def _on_demand_since(state: RunState, current: Attempt) -> datetime:
    """Return the time at which the run changed from spot to on-demand. Later moves to another kind do not count."""
    since = current.started_at
    for attempt in reversed(state.attempts.values()):
        if state.launch_of(attempt).intent.offering.capacity_type is CapacityType.SPOT:
            break
        since = attempt.started_at
    return since


def _known_to_be_cheaper(facts: Facts, work: Work, here: Offering) -> KindMove | None:
    best, kind, left_h = best_known(facts, work), kind_of(facts, here), _work_until_lost_h(facts, here)
    if best is None or kind is None or best == kind or left_h is None:
        return None
    there = cheapest_of_kinds(facts, work)[best]
    doubt = exp(speeds(facts)[kind].spread + speeds(facts)[best].spread)
    stays_usd, moves_usd = _usd_here(facts, work, here), work[there]
    saved = (stays_usd / doubt - moves_usd) * left_h
    if saved <= _move_usd(facts, here, there):
        return None
    times = stays_usd / moves_usd if moves_usd else 0.0
    return KindMove(there, f"a sample costs {times:.1f} x as much on {kind} as on {best}, as measured in this run")


def _move_usd(facts: Facts, here: Offering, there: Offering) -> float:
    """
    Return the cost of a move in USD: the start of the instance `there`, and the handover, during which both instances
    are billed and neither trains.
    """
    handover_s = (assumptions.COMMIT + assumptions.WARM_RESTORE).total_seconds()
    to_usd, from_usd = float(there.price_usd_per_hour), float(here.price_usd_per_hour)
    return (to_usd * changeover(facts.state) + (to_usd + from_usd) * handover_s) / SECONDS_PER_HOUR


def _worth_a_trial(facts: Facts, work: Work, here: Offering) -> KindMove | None:
    """
    Return a move to a kind whose speed is worth measuring in a trial; None if there is no such kind.

    The run begins a trial only while it trains on the best kind whose speed was measured. If it trains on another kind,
    it first has to move to the best one; if not even that move saves money, neither does a trial.
    """
    left_h = _work_until_lost_h(facts, here)
    if best_known(facts, work) != kind_of(facts, here) or left_h is None:
        return None
    trial = worth_a_trial(facts, work, work, Until(left_h, here.capacity_type is CapacityType.SPOT))
    return None if trial is None else KindMove(cheapest_of_kinds(facts, work)[trial.kind], trial.because)


def _usd_here(facts: Facts, work: Work, here: Offering) -> float:
    """
    Return the cost, in USD on the current instance, of the work that the job's first kind does in an hour. The current
    pool need not be one that the run is allowed to request now.
    """
    offered = next((each for each in work if each.pool == here.pool), None)
    if offered is not None:
        return work[offered]
    kind = kind_of(facts, here)
    assert kind is not None
    return float(here.price_usd_per_hour) / speeds(facts)[kind].times
