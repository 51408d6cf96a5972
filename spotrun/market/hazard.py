"""
Estimates how often this run loses spot instances, and how often a notice comes early enough to save all steps.
`checkpoint.every: auto` adapts to both.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from math import exp, log

import msgspec
from msgspec.structs import replace

from spotrun.intervals import MEAN_TIME_BETWEEN_INTERRUPTIONS
from spotrun.offering import CapacityType
from spotrun.run.events import Cause
from spotrun.run.state import Attempt, RunState

FOLLOWS_WITHIN = timedelta(minutes=15)
"""
If an instance is lost within this time after a recommendation to rebalance, the recommendation counts as followed by
the loss.
"""
FOLLOWED_PRIOR = 0.5
"""
Assumed share of recommendations that are followed by a loss. Clouds do not publish this share, so a run uses this
figure until it has received recommendations itself.
"""
FOLLOWED_PRIOR_LOSSES = 2.0
"""Weight of the assumption FOLLOWED_PRIOR: the assumption counts as much as this number of observed losses."""


class Hazard(msgspec.Struct, frozen=True):
    """
    The hazard of this run's spot instances, estimated from the losses so far.

    `saved` is the share of losses in which no step was lost, because the notice left time for one more commit. The
    longer the current instance runs without a loss, the longer the estimated mean time between losses becomes. `growth`
    is the number of seconds by which this estimate grows in each second.
    """

    mean_time_between: timedelta = MEAN_TIME_BETWEEN_INTERRUPTIONS
    saved: float = 0.0
    growth: float = 1.0

    def after(self, lived: timedelta) -> timedelta:
        """
        Return what the estimate of the mean time between losses will be if the instance runs for another `lived`
        without a loss.

        Lifetimes are heavy-tailed: the longer an instance has run, the longer it will probably still run. With a Gamma
        prior on the hazard, lifetimes have a Lomax distribution. When an instance has run for the time t, the hazard
        has fallen to (1 + losses) / (MEAN_TIME_BETWEEN_INTERRUPTIONS + time on spot + t).
        """
        return self.mean_time_between + lived * self.growth


def observed_hazard(state: RunState, now: datetime) -> Hazard:
    """
    Estimate the hazard of spot instances as of `now` from the ledger.

    While the run trains on demand, `growth` is 0, because time on demand says nothing about losses on spot. A gang
    stops if any of its members is lost. So a gang's attempt counts as one instance: its time on spot counts once, and
    so does its loss, even if several members are lost at the same time.
    """
    spot = [attempt for attempt in state.attempts.values() if _on_spot(attempt, state)]
    lost = [attempt for attempt in spot if attempt.end is not None and attempt.end.cause is Cause.INTERRUPTED]
    final = {commit.event.attempt for commit in state.commits if commit.event.final}
    up = sum((_until(attempt, now) - _up_from(attempt) for attempt in spot), timedelta())
    found = hazard_of(max(up, timedelta()), len(lost), sum(attempt.number in final for attempt in lost))
    on_demand = state.current is not None and not _on_spot(state.current, state)
    return replace(found, growth=0.0) if on_demand else found


def hazard_of(time_on_spot: timedelta, losses: int, saved: int = 0) -> Hazard:
    """
    Combine the observations with an assumption: one loss without notice in MEAN_TIME_BETWEEN_INTERRUPTIONS. `saved` is
    the number of losses in which no step was lost, because the last step had already been committed.

        mean time between losses = (MEAN_TIME_BETWEEN_INTERRUPTIONS + time on spot) / (1 + losses)
    """
    mean = (MEAN_TIME_BETWEEN_INTERRUPTIONS + time_on_spot) / (1 + losses)
    return Hazard(mean, saved / (1 + losses), 1 / (1 + losses))


def _on_spot(attempt: Attempt, state: RunState) -> bool:
    return state.launch_of(attempt).intent.offering.capacity_type is CapacityType.SPOT


def _up_from(attempt: Attempt) -> datetime:
    """
    Return the moment at which the attempt's time on spot begins: the boot of its instance. For a gang it is the start
    of the attempt instead, because members may already have run in the previous attempt.
    """
    return attempt.booted_at if attempt.gang is None else attempt.started_at


def _until(attempt: Attempt, now: datetime) -> datetime:
    return now if attempt.end is None else attempt.end.stopped_at


# -- after a recommendation to rebalance -------------------------------------------------------------------------------


def probability_to_follow(state: RunState, now: datetime, within: timedelta) -> float:
    """
    Return the probability that an instance is lost within the time `within` after a recommendation. The estimate is
    based on what has followed this run's recommendations so far.

    After a recommendation, an instance is assumed to be lost at a constant rate, which has a Gamma prior. t is the
    total time for which this run's instances were observed after their recommendations, at most FOLLOWS_WITHIN for
    each. n is the number of these instances that were lost in that time. The prior counts as FOLLOWED_PRIOR_LOSSES
    losses in a time `assumed`. Then

        rate = (FOLLOWED_PRIOR_LOSSES + n) / (assumed + t)        probability = 1 - exp(-rate * within)

    If the run itself ended an instance before FOLLOWS_WITHIN had passed, t includes only the time until then.
    """
    told = [attempt for attempt in state.attempts.values() if attempt.rebalance_at is not None]
    assumed_s = FOLLOWED_PRIOR_LOSSES * FOLLOWS_WITHIN.total_seconds() / -log(1 - FOLLOWED_PRIOR)
    watched_s = sum(_watched(attempt, now).total_seconds() for attempt in told)
    rate = (FOLLOWED_PRIOR_LOSSES + sum(map(_was_followed, told))) / (assumed_s + watched_s)
    return 1 - exp(-rate * max(0.0, within.total_seconds()))


def _watched(attempt: Attempt, now: datetime) -> timedelta:
    """Return how long the attempt's instance has been observed after its recommendation, but at most FOLLOWS_WITHIN."""
    assert attempt.rebalance_at is not None
    ended_at = now if attempt.end is None else attempt.end.known_at
    until = ended_at if attempt.notice_at is None else min(ended_at, attempt.notice_at)
    return min(max(until - attempt.rebalance_at, timedelta()), FOLLOWS_WITHIN)


def _was_followed(attempt: Attempt) -> bool:
    """
    Return True if the attempt's instance was lost at most FOLLOWS_WITHIN after its recommendation. An instance with a
    notice counts as lost at the time of the notice.
    """
    assert attempt.rebalance_at is not None
    lost = attempt.end is not None and attempt.end.cause is Cause.INTERRUPTED
    lost_at = attempt.end.known_at if lost and attempt.end is not None else None
    told_at = attempt.notice_at or lost_at
    return told_at is not None and told_at - attempt.rebalance_at < FOLLOWS_WITHIN
