"""
Decides whether to train for a while on a kind of instance in order to measure its speed (a trial), although another
kind is known or believed to be cheaper.

Let i be the best kind known so far, and let c_k be the cost, in dollars on kind k, of the work that the first kind in
the job's list does in an hour. A trial of kind j is expected to save

    E[max(0, c_i - c_j)] * work left, in hours on the first kind

where log c_j has the same uncertainty as the logarithm of j's speed. If the intervals of the speeds of i and j do not
overlap, the expected saving is close to 0. If the run would miss its deadline at some speed of j, that speed
contributes no saving. If j turns out to cost more than i, the cost of the trial and of moving back to i is wasted.

The cost of a trial depends on the moment:

- At an interruption, the run has to pay for the start of a new instance in any case, so the trial costs no extra start.
- While an instance trains, the trial could also wait for the next interruption. So the saving until then has to exceed
  the cost of the start.
- While the run is on demand, its next start will be on spot, where the same trial costs far less. So the saving until
  then has to exceed the cost of the whole trial.

A trial pays if its expected saving exceeds its expected loss. The loss has three parts: the cost of the start; the cost
of moving back, if j costs more; and the extra cost of training on j instead of i.

The *reserve* of kind j is the value of c_i, the cost of the best known kind, at which a trial of j would just pay. If
c_i is lower, the trial does not pay. The kind with the lowest reserve is tried first. There are no more trials when c_i
is below all reserves. This rule is optimal (Weitzman 1979, Optimal search for the best alternative).

All trials together, including the moves back, are expected to lose at most the share EXPLORED of the run's cost. The
loss is measured against the first kind in the job's list, because a job that allowed only one kind would use that one.
So these limits apply:

- a trial of the first kind is always allowed
- if the first kind is the best known, a trial of another kind is allowed only if it cannot lose more than EXPLORED,
  even if it makes no progress
- the run does not begin with a kind that costs more per hour than the first kind, unless that kind is almost certainly
  cheaper for the same work, or its possible loss is within EXPLORED
- if there is a deadline, a trial has to leave enough time to finish the training, whatever the trial's outcome
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import erf, exp, inf, log, sqrt

import msgspec

from spotrun.market.wishes import kind_among
from spotrun.offering import Offering
from spotrun.policy import assumptions
from spotrun.policy.changeovers import changeover
from spotrun.policy.deadline_guarantee import leaves_time_to_try, times_in_time
from spotrun.policy.facts import Facts
from spotrun.policy.throughput import choice, kind_of, speeds, trained_kinds
from spotrun.policy.workload import pace, workload
from spotrun.run.billing import SECONDS_PER_HOUR
from spotrun.spec.kinds import Kind
from spotrun.units import to_the_cent

EXPLORED = 0.02
"""Maximum share of a run's cost that trials are allowed to lose."""
HALVINGS = 40

Work = Mapping[Offering, float]
"""The cost of each offering, in USD, for the work that the first kind does in an hour."""


class KindTrial(msgspec.Struct, frozen=True):
    """
    A kind that is worth a trial. `saves_usd` is the expected saving, and `loses_usd` is the loss if the kind turns out
    to cost more. `reserve_usd` is the kind's reserve (explained at the top of this module).
    """

    kind: Kind
    saves_usd: float
    loses_usd: float
    reserve_usd: float

    @property
    def because(self) -> str:
        saved, lost = to_the_cent(self.saves_usd), to_the_cent(self.loses_usd)
        return f"{self.kind} is tried: this is expected to save {saved}, and loses {lost} if the kind is dearer"


def begun_with(facts: Facts, work: Work) -> Kind | None:
    """
    Return the kind with which the run begins if no kind was measured yet: the one that is believed to be cheapest,
    among the kinds whose possible loss is within the limits.
    """
    cheapest, first = cheapest_of_kinds(facts, work), choice(facts)[0]
    if first not in cheapest:
        return None
    left = workload(facts)
    whole_usd = 0.0 if left is None else work[cheapest[first]] * _hours(left.left_s)
    for kind in sorted(cheapest, key=lambda kind: work[cheapest[kind]]):
        no_dearer = cheapest[kind].price_usd_per_hour <= cheapest[first].price_usd_per_hour
        certain = work[cheapest[first]] > work[cheapest[kind]] * exp(2 * _spread(facts, kind, first))
        if no_dearer or certain or _trial_usd(facts, cheapest[kind], cheapest[first], starts=2) <= EXPLORED * whole_usd:
            return kind
    return first


class Until(msgspec.Struct, frozen=True):
    """
    The time until the run has to start another instance anyway. `work_h` is the work that is done until then, in hours
    of training on the first kind. `could_wait` is True if a trial could also begin at that start.
    """

    work_h: float
    could_wait: bool


def worth_a_trial(facts: Facts, work: Work, asked: Work, until: Until | None = None) -> KindTrial | None:
    """
    Return the best next trial. Only kinds in `asked` that were not measured are considered. Return None if no trial
    pays, or if the amount of remaining work is unknown.

    `until` is None if an instance has to start now in any case.
    """
    return min(_trials(facts, work, asked, until), key=lambda trial: trial.reserve_usd, default=None)


def best_known(facts: Facts, work: Work) -> Kind | None:
    """Return the cheapest measured kind in `work`; None if none was measured."""
    cheapest = cheapest_of_kinds(facts, work)
    known = (kind for kind in cheapest if speeds(facts)[kind].measured is not None)
    return min(known, key=lambda kind: work[cheapest[kind]], default=None)


def cheapest_of_kinds(facts: Facts, work: Work) -> dict[Kind, Offering]:
    found: dict[Kind, Offering] = {}
    for offering in sorted(work, key=work.__getitem__, reverse=True):
        if (kind := kind_of(facts, offering)) is not None:
            found[kind] = offering
    return found


def _trials(facts: Facts, work: Work, asked: Work, until: Until | None) -> Iterator[KindTrial]:
    best, left, kinds = best_known(facts, work), workload(facts), cheapest_of_kinds(facts, work)
    if best is None or left is None or work[kinds[best]] <= 0:
        return
    here_usd, left_h, starts = work[kinds[best]], _hours(left.left_s), 1 if until is None else 2
    for_h = left_h if until is None or until.could_wait else until.work_h
    allowed_usd = EXPLORED * (_paid_usd(facts) + here_usd * left_h) - lost_usd(facts, best, here_usd)
    for kind, offering in cheapest_of_kinds(facts, asked).items():
        if speeds(facts)[kind].measured is not None or kind in trained_kinds(facts.state, choice(facts)):
            continue
        if not leaves_time_to_try(facts, kind):
            continue
        spread = _spread(facts, kind, best)
        needed = times_in_time(facts, kind)
        gain_usd = expected_gain(here_usd, asked[offering], spread, asked[offering] / needed if needed else inf)
        saves_usd = gain_usd * for_h
        loses_usd = _trial_usd(facts, offering, kinds[best], starts)
        costs_usd = _expected_usd(facts, offering, kinds[best], starts, asked[offering] / here_usd, spread)
        risked_usd = loses_usd if best == choice(facts)[0] else costs_usd
        affordable = risked_usd <= allowed_usd or kind == choice(facts)[0]
        spared_usd = min(_start_usd(facts, offering), _start_usd(facts, kinds[best]))
        in_time = until is None or gain_usd * until.work_h > spared_usd
        if affordable and in_time and saves_usd > costs_usd:
            yield KindTrial(kind, saves_usd, loses_usd, reserve_usd(asked[offering], spread, costs_usd / for_h))


def _spread(facts: Facts, one: Kind, other: Kind) -> float:
    """Return the standard deviation of the logarithm of the ratio of two kinds' speeds."""
    return sqrt(speeds(facts)[one].spread ** 2 + speeds(facts)[other].spread ** 2)


def expected_gain(known: float, believed: float, spread: float, most: float = inf) -> float:
    """
    Return E[max(0, known - x)] for a log-normal x with the median `believed`. An x above `most` contributes no gain.
    """
    if min(known, believed, most) <= 0:
        return 0.0
    edge = log(min(known, most) / believed) / spread
    return known * _phi(edge) - believed * exp(spread * spread / 2) * _phi(edge - spread)


def reserve_usd(believed: float, spread: float, cost: float) -> float:
    """Return the value of `known` for which `expected_gain` equals `cost`."""
    low, high = 0.0, believed * exp(6 * spread) + cost
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_gain(middle, believed, spread) < cost else (low, middle)
    return high


def _phi(z: float) -> float:
    """Return the share of a standard normal distribution that lies below z."""
    return 0.5 * (1 + erf(z / sqrt(2)))


def _trial_usd(facts: Facts, tried: Offering, known: Offering, starts: int) -> float:
    """
    Return the maximum loss of a trial of `tried`. In the worst case, the trial makes no progress at all. The run then
    loses the cost of three things: the start of `tried`, the time on `tried`, and the start of `known` afterwards.
    """
    return _there_usd(facts, tried, known, starts) + _stay_usd(facts, tried) + _start_usd(facts, known)


def _expected_usd(facts: Facts, tried: Offering, known: Offering, starts: int, dearer: float, spread: float) -> float:
    """
    Return the expected loss of a trial. `dearer` is the estimated cost of the work on `tried`, divided by its cost on
    `known`.
    """
    in_vain = expected_gain(1.0, 1 / dearer, spread)
    worse = _phi(log(dearer) / spread)
    back_usd = worse * _start_usd(facts, known)
    return _there_usd(facts, tried, known, starts) + in_vain * _stay_usd(facts, tried) + back_usd


def _there_usd(facts: Facts, tried: Offering, known: Offering, starts: int) -> float:
    """
    Return the extra cost of starting `tried`. After an interruption, an instance has to start in any case. Then the
    extra cost is the cost of starting `tried`, minus the cost of starting `known`.
    """
    instead_usd = 0.0 if starts > 1 else _start_usd(facts, known)
    return max(0.0, _start_usd(facts, tried) - instead_usd)


def _stay_usd(facts: Facts, tried: Offering) -> float:
    """
    Return the cost of training on `tried` until its speed is measured, and of keeping it until its replacement has
    started.
    """
    return float(tried.price_usd_per_hour) * _hours(assumptions.TRIAL.total_seconds() + changeover(facts.state))


def _start_usd(facts: Facts, offering: Offering) -> float:
    return float(offering.price_usd_per_hour) * _hours(changeover(facts.state))


def _hours(seconds: float) -> float:
    return seconds / SECONDS_PER_HOUR


def lost_usd(facts: Facts, best: Kind, usd: float) -> float:
    """
    Return the extra cost of the trials so far: what they cost, minus the cost of the same work on the best kind. `usd`
    is the cost, on the best kind, of the work that the first kind does in an hour. The kind on which the run first
    trained does not count as a trial.
    """
    tried = [kind for kind in trained_kinds(facts.state, choice(facts))[1:] if kind != best]
    return sum(max(0.0, _paid_usd(facts, kind) - usd * _made_h(facts, kind)) for kind in tried)


def _paid_usd(facts: Facts, kind: Kind | None = None) -> float:
    """Return the USD spent so far on all instances, or on the instances of `kind`."""
    rule, kinds = facts.state.created.billing, choice(facts)
    launches = facts.state.launches.values()
    counted = (each for each in launches if kind is None or kind_among(each.intent.offering, kinds) == kind)
    return float(sum(each.cost_until(facts.now, rule) for each in counted))


def _made_h(facts: Facts, kind: Kind) -> float:
    """Return how much work was done on `kind`, in hours of the first kind."""
    made, first = speeds(facts)[kind].measured, pace(facts)
    return 0.0 if made is None or first is None else _hours(made.steps * first.step_s)
