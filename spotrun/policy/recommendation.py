"""
Decides whether to replace an instance when its cloud warns that it might take the instance (EC2's rebalance
recommendation).

If the instance is lost later, a move right after the recommendation has saved training time. If the loss comes without
a notice, the move saves a whole changeover and the rework. If the loss comes with a notice, the changeover begins at
the notice, so the move saves only the time by which a changeover is longer than the notice. If the instance is not
lost, the cost of the move is wasted. So the move pays if

    q * saved * price of time  >  (1 - q) * (changeover * new price + handover * price of time
                                             + price increase + traffic between regions at the start)

`saved` is the expected saving above. `new price` is the price of the new instance, and `price increase` is its
additional cost over its lifetime, compared with the old instance. The price of time is the on-demand price, because
training time can always be bought at that price. q is the probability that a loss follows within `FOLLOWS_WITHIN`,
estimated from this run's earlier recommendations. Before the run's first recommendation, q is only an assumption,
because EC2 publishes no figure (docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html: a
recommendation "can arrive sooner" than the notice, or along with it).
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
    """
    A move to `offering` before a possible loss. `followed` is the probability of the loss. `saves_usd` is the saving if
    the loss follows, times `followed`. `costs_usd` is the waste if no loss follows, times (1 - `followed`).
    """

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
    """
    Return the move with which the run should react to the newest recommendation. Return None if there is no
    recommendation, if the run has already reacted to it, or if no move pays.
    """
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
    """
    Return True if the spot instance that trains has received a recommendation within the last FOLLOWS_WITHIN, and no
    standby was launched because of it.
    """
    state = facts.state
    launch, trains = state.launch_of(current), bool(current.trainers) and current.trainers[-1].started_at is not None
    if not trains or current.leaving or launch.intent.offering.capacity_type is not CapacityType.SPOT:
        return False
    fresh = current.rebalance_at is not None and facts.now - current.rebalance_at < FOLLOWS_WITHIN
    return fresh and not _acted_on(state, current)


def _acted_on(state: RunState, current: Attempt) -> bool:
    """
    Return True if a standby was launched because of the recommendation. A standby whose request was refused does not
    count.
    """
    assert current.rebalance_at is not None
    return any(
        launch.intent.beside == current.number
        and launch.intent.reason.startswith(REASON)
        and not (launch.closed is not None and launch.closed.refused)
        for launch in state.launches.values()
    )


def _elsewhere(facts: Facts) -> Offering | None:
    """
    Return the best spot offering for the move; None if there is none. Its pool must have had no recent loss, refusal or
    recommendation, and must not have been requested before as a replacement for this instance.
    """
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
    Return True if the budget allows the move. The rest of the budget has to pay for the new instance until the
    remaining work is done, or for the rest of the old instance's time-to-live, whichever is shorter. If the amount of
    remaining work is unknown, half of that time-to-live is enough.
    """
    current, life = facts.state.current, life_of(facts, found)
    assert current is not None
    if life is None or facts.state.created.budget_usd is None:
        return life is not None
    left, needed = life_left(facts, current), life_needed(facts, found)
    return life >= (left / 2 if needed is None else min(left, needed))


# -- the value of a move -----------------------------------------------------------------------------------------------


def priced(facts: Facts, found: Offering) -> Move | None:
    """
    Return the move to `found`, with its expected saving and cost. Return None if so little work is left that a
    changeover is not worth it.
    """
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
    Return how many seconds of training an early move saves if the instance is then lost.

    If the loss comes with a notice, the move saves the time by which a start is longer than the notice. If it comes
    without one, the move saves the whole start and the rework. The result is the mean of both cases, weighted by how
    often losses in this run came with a notice.
    """
    state, spec = facts.state, facts.spec
    hazard, rework_s = observed_hazard(state, facts.now), rework_max_s(facts) / 2
    noticed = hazard.saved + hazard.growth * assumptions.NOTICED
    usable_s = max(0.0, spec.cloud.notice.total_seconds() - DRAIN_SAFETY * _commit_s(state) - DRAIN_MARGIN_S)
    late_s = mean(max(0.0, took_s - usable_s) for took_s in starts)
    return noticed * late_s + (1 - noticed) * (mean(starts) + rework_s)


def _starts_s(state: RunState) -> list[float]:
    """
    Return the durations of starts in seconds: each is the time from the request for an instance to its first new step.
    The first duration in the list is an assumption, and all others were measured.

    The time of a standby that was ready early includes its wait for the takeover. This does no harm: such a standby
    takes over by the end of the notice, and only the part of a start that is longer than the notice counts.
    """
    measured = [
        (attempt.trainers[0].started_at - state.asked_last(attempt).intended_at).total_seconds()
        for attempt in state.attempts.values()
        if attempt.trainers and attempt.trainers[0].started_at is not None
    ]
    return [assumptions.CHANGEOVER.total_seconds(), *measured]


def _handover_s(state: RunState) -> float:
    """
    Return the number of seconds for which no instance trains while a ready standby takes over: the time of one commit,
    plus that of a restore without fetching, because the standby has already fetched the checkpoint.
    """
    return _commit_s(state) + assumptions.WARM_RESTORE.total_seconds()


def _commit_s(state: RunState) -> float:
    latest = state.latest_commit()
    return assumptions.COMMIT.total_seconds() if latest is None else latest.event.durable_s
