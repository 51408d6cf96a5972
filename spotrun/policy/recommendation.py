"""
Decides whether to replace an instance when its cloud warns that it might take it (EC2's rebalance recommendation).

A move before a loss saves training time: the part of a changeover that exceeds the notice; or, without a notice, the
whole changeover and the rework. If no loss follows, the cost of the move is wasted. The move pays if

    q * saved * price of time  >  (1 - q) * (changeover * price there + handover * price of time
                                             + extra price there + regional traffic at its start)

The price of time is the on-demand price, because time can be bought at that price. q is the probability that a loss
follows within `FOLLOWS_WITHIN`, from the outcomes of this run's recommendations so far. The prior of q is a weak
assumption, because EC2 publishes no figure (docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html:
a recommendation "can arrive sooner" than the notice, or along with it).
"""

from __future__ import annotations

from datetime import timedelta
from statistics import mean

import msgspec

from spotrun.intervals import DRAIN_MARGIN_S, DRAIN_SAFETY
from spotrun.market.hazard import FOLLOWS_WITHIN, observed_hazard, probability_to_follow
from spotrun.offering import CapacityType, Offering
from spotrun.policy import assumptions
from spotrun.policy.cross_region import transfer, usd_per_hour
from spotrun.policy.facts import Facts
from spotrun.policy.lives import life_left
from spotrun.policy.money import life_needed, life_of
from spotrun.policy.pools import at_risk, just_lost
from spotrun.policy.ranking import expected_lives, horizon_s, spot_now
from spotrun.policy.situation import on_demand_usd_per_hour
from spotrun.policy.throughput import times_first
from spotrun.policy.workload import rework_max_s
from spotrun.run.billing import SECONDS_PER_HOUR
from spotrun.run.state import Attempt, RunState
from spotrun.units import to_the_cent

REASON = "standby: the cloud may take the instance"


class Move(msgspec.Struct, frozen=True):
    """A move to `offering` before the loss, with its expected saving and cost in USD."""

    offering: Offering
    followed: float
    saves_usd: float
    costs_usd: float

    @property
    def pays(self) -> bool:
        return self.saves_usd > self.costs_usd

    @property
    def because(self) -> str:
        return (
            f"a loss is {self.followed:.0%} likely within {FOLLOWS_WITHIN // timedelta(minutes=1)} min; leaving first "
            f"should save {to_the_cent(self.saves_usd)} of time, staying {to_the_cent(self.costs_usd)}"
        )


def move_in_time(facts: Facts) -> Move | None:
    """Return the move for a recommendation, if it pays; None if there is none, or the run has acted on it."""
    current = facts.state.current
    if current is None or not _calls_for_a_decision(facts, current):
        return None
    found = _elsewhere(facts)
    if found is None or not _affordable(facts, found):
        return None
    move = priced(facts, found)
    return move if move is not None and move.pays else None


# -- the need for a decision -------------------------------------------------------------------------------------------


def _calls_for_a_decision(facts: Facts, current: Attempt) -> bool:
    """Return whether a spot instance that trains has a fresh recommendation, and no standby was started for it."""
    state = facts.state
    launch, trains = state.launch_of(current), bool(current.trainers) and current.trainers[-1].started_at is not None
    if not trains or current.leaving or launch.intent.offering.capacity_type is not CapacityType.SPOT:
        return False
    fresh = current.rebalance_at is not None and facts.now - current.rebalance_at < FOLLOWS_WITHIN
    return fresh and not _acted_on(state, current)


def _acted_on(state: RunState, current: Attempt) -> bool:
    """Return whether a standby was started for the recommendation. A refused standby does not count."""
    assert current.rebalance_at is not None
    return any(
        launch.intent.beside == current.number
        and launch.intent.reason.startswith(REASON)
        and not (launch.closed is not None and launch.closed.refused)
        for launch in state.launches.values()
    )


def _elsewhere(facts: Facts) -> Offering | None:
    """Return the best spot pool that is not in danger and was not tried for this instance before; else None."""
    state = facts.state
    if facts.spec.resources.spot_policy == "on-demand":
        return None
    current = state.current
    assert current is not None
    asked = {each.intent.offering.pool for each in state.launches.values() if each.intent.beside == current.number}
    shunned = asked | at_risk(facts) | set(just_lost(facts))
    return next((found for found in spot_now(facts) if found.pool not in shunned), None)


def _affordable(facts: Facts, found: Offering) -> bool:
    """
    Return whether the budget allows the move. If it is tight, the run stays, because a move pays for a second life.
    """
    current, life = facts.state.current, life_of(facts, found)
    assert current is not None
    if life is None or facts.state.created.budget_usd is None:
        return life is not None
    left, needed = life_left(facts, current), life_needed(facts, found)
    return life >= (left / 2 if needed is None else min(left, needed))


# -- the value of a move -----------------------------------------------------------------------------------------------


def priced(facts: Facts, found: Offering) -> Move | None:
    """Price a move to `found` before a loss follows; None if too little work is left for a changeover."""
    state, now = facts.state, facts.now
    current = state.current
    assert current is not None
    assert current.rebalance_at is not None
    starts, left_s = _starts_s(state), horizon_s(facts)
    changeover_s = mean(starts)
    if left_s <= 2 * changeover_s:
        return None
    stays = state.launch_of(current).intent.offering
    here, there = (usd_per_hour(facts, each) / times_first(facts, each) for each in (stays, found))
    time = max(there, on_demand_usd_per_hour(facts))
    lives = expected_lives(facts, [found, stays])
    dearer_s = 1 / (1 / lives[found.pool] + 1 / lives[stays.pool])
    paid = changeover_s * there + _handover_s(state) * time + dearer_s * max(0.0, there - here)
    in_vain_usd = paid / SECONDS_PER_HOUR + transfer(facts, found.region).start_usd
    saved_usd = _saved_s(facts, starts) * time / SECONDS_PER_HOUR
    q = probability_to_follow(state, now, FOLLOWS_WITHIN - (now - current.rebalance_at))
    return Move(found, q, q * saved_usd, (1 - q) * in_vain_usd)


def _saved_s(facts: Facts, starts: list[float]) -> float:
    """
    Return how many seconds longer a loss stops training than a handover does: the part of a start that exceeds the
    notice, or the whole start.
    """
    state, spec = facts.state, facts.spec
    hazard, rework_s = observed_hazard(state, facts.now), rework_max_s(facts) / 2
    noticed = hazard.saved + hazard.growth * assumptions.NOTICED
    usable_s = max(0.0, spec.cloud.notice.total_seconds() - DRAIN_SAFETY * _commit_s(state) - DRAIN_MARGIN_S)
    late_s = mean(max(0.0, took_s - usable_s) for took_s in starts)
    return noticed * late_s + (1 - noticed) * (mean(starts) + rework_s)


def _starts_s(state: RunState) -> list[float]:
    """
    Return the seconds from the request for each instance to its first new step. The first value of the list is an
    assumed one.

    For a standby that was ready in time, the wait for its predecessor is included: the value is at most the notice, and
    its exact size does not matter.
    """
    measured = [
        (attempt.trainers[0].started_at - state.asked_last(attempt).intended_at).total_seconds()
        for attempt in state.attempts.values()
        if attempt.trainers and attempt.trainers[0].started_at is not None
    ]
    return [assumptions.CHANGEOVER.total_seconds(), *measured]


def _handover_s(state: RunState) -> float:
    """
    Return the seconds that training stops while a ready standby takes over: for the last commit, and a warm restore.
    """
    return _commit_s(state) + assumptions.WARM_RESTORE.total_seconds()


def _commit_s(state: RunState) -> float:
    latest = state.latest_commit()
    return assumptions.COMMIT.total_seconds() if latest is None else latest.event.durable_s
