"""
Chooses the *keeper*: the kind of instance on which the run relies to meet the deadline, on demand if necessary. Also
finds the kinds that are too slow to meet it.

The speed of a kind is known only within an interval. A kind is *sure* if it would finish the remaining work before the
deadline even at the lowest speed in its interval. The keeper is the sure kind that costs least on demand for the same
work; sure kinds whose speed was measured come before the others. If no kind is sure, the keeper is the kind that is
most likely to meet the deadline, and the run moves to it immediately. With

    z = log(speed / speed needed) / standard deviation of log(speed)

a kind is sure if z >= 2. A kind is too slow if z < -2, or if its speed was measured and it is not sure.

So the run trains on a kind of uncertain speed only until the speed is measured. If that kind turns out to be too slow,
its replacement starts while the old instance still trains. Therefore the run meets the deadline if the best kind alone
would meet it with time to spare for one start and one trial of each other kind.

None of this applies to a run without a deadline, or to a job that allows only one kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, inf, log, sqrt

import msgspec

from spotrun.offering import CapacityType, Offering
from spotrun.policy import assumptions
from spotrun.policy.changeovers import changeover
from spotrun.policy.cross_region import reservable, usd_per_hour
from spotrun.policy.facts import Facts, once
from spotrun.policy.lives import nearly_over
from spotrun.policy.patience import TICKS_TO_LAUNCH, tick
from spotrun.policy.pool_cooldown import rests, within_price
from spotrun.policy.throughput import PRIOR_SPREAD, choice, kind_of, speeds
from spotrun.policy.workload import rework_max_s, workload
from spotrun.spec.kinds import Kind

SURE = 2.0
"""
Half the width of a speed interval, in standard deviations. Such an interval contains the true value in 19 of 20 cases.
"""
HANDOVERS = 2
"""
Maximum number of handovers in a trial: one to the kind that is tried, and one back to the previous kind if the tried
kind is not kept.
"""


class Keeper(msgspec.Struct, frozen=True):
    """
    The kind on which the run relies to meet the deadline. It is expected to be `times` times as fast as the first kind
    that the job allows.

    The remaining work is expected to take `left_s` on this kind, and `doubt_s` longer in the worst case. While the
    amount of work is unknown, both are infinite, and the keeper is the kind with which the run begins.
    """

    kind: Kind
    offering: Offering
    times: float
    left_s: float = inf
    doubt_s: float = inf


def promises(facts: Facts) -> bool:
    """
    Return True if the run has a deadline, and its job lets the run choose among several kinds of instances. Only such a
    run needs a keeper.
    """
    return facts.state.created.deadline_at is not None and bool(choice(facts))


@once
def keeper(facts: Facts) -> Keeper | None:
    """
    Return the keeper. Return None if the run does not need a keeper (see `promises`), or if none of the job's kinds can
    be rented on demand.
    """
    if not promises(facts):
        return None
    found = _on_demand(facts)
    usd = {kind: usd_per_hour(facts, offering) / speeds(facts)[kind].times for kind, offering in found.items()}
    if not found:
        return None
    if workload(facts) is None:
        kind = _begun_with(facts, found, usd)
        return Keeper(kind, found[kind], speeds(facts)[kind].times)
    likely = {kind: _z(facts, kind) for kind in found}
    sure = [kind for kind in found if likely[kind] >= SURE]
    if sure:
        kind = min(sure, key=lambda each: (not _is_known(facts, each), usd[each]))
    elif max(likely.values()) >= -SURE:
        kind = max(found, key=likely.__getitem__)
    else:
        kind = max(found, key=lambda each: speeds(facts)[each].times)
    return _keeper(facts, kind, found[kind])


@once
def too_slow(facts: Facts) -> frozenset[Kind]:
    """
    Return the kinds on which the run must not train, because it would miss the deadline on them.

    But if the keeper's speed was not measured, and another kind's was, return all kinds except the keeper: the run
    first has to move to the keeper and measure its speed.
    """
    kept = keeper(facts)
    if kept is None or workload(facts) is None:
        return frozenset()
    others = [kind for kind in choice(facts) if kind != kept.kind]
    if not is_measured(facts, kept.kind) and any(is_measured(facts, kind) for kind in others):
        return frozenset(others)
    return frozenset(kind for kind in others if _z(facts, kind) < (SURE if _is_known(facts, kind) else -SURE))


def is_enough(facts: Facts, offering: Offering) -> bool:
    """
    Return True if the run can keep training on `offering`, an on-demand instance. Return False if it has to move to the
    keeper. It can stay in any of these cases:

    - the run needs no keeper, or it is unknown how much work is left
    - the instance's kind is sure to finish the work in time
    - the instance's kind is the keeper, so no other kind is more likely to meet the deadline
    - the instance was launched for a trial of its kind, and enough time is left to finish the work on the keeper after
      the trial
    """
    kept, kind = keeper(facts), kind_of(facts, offering)
    if kept is None or kind is None or workload(facts) is None or kind == kept.kind or _z(facts, kind) >= SURE:
        return True
    return _on_trial(facts, kept, kind) and _spare_s(facts, kept, kind) >= changeover(facts.state)


def leaves_time_to_try(facts: Facts, kind: Kind) -> bool:
    """
    Return True if the speed of `kind` has to be measured in a trial, and the run would meet the deadline even if the
    trial made no progress.

    The time of the trial includes the start of its instance, and the start of the keeper afterwards.
    """
    kept = keeper(facts)
    if kept is None:
        return True
    trial_s = assumptions.TRIAL.total_seconds() + HANDOVERS * assumptions.COMMIT.total_seconds()
    return _on_trial(facts, kept, kind) and _spare_s(facts, kept, kind) >= 2 * changeover(facts.state) + trial_s


def _on_trial(facts: Facts, kept: Keeper, kind: Kind) -> bool:
    """
    Return True if training on `kind` counts as a trial: the keeper's speed was measured, and the speed of `kind` was
    not measured yet.
    """
    known = workload(facts) is not None and is_measured(facts, kept.kind)
    return known and not is_measured(facts, kind)


def _spare_s(facts: Facts, kept: Keeper, kind: Kind) -> float:
    """
    Return the seconds between the end of the work and the deadline in the worst case: an instance of `kind` is lost
    now, together with its uncommitted steps, and the keeper does all the remaining work. The caller has to subtract the
    keeper's start.
    """
    deadline_at = facts.state.created.deadline_at
    assert deadline_at is not None
    undone_s = rework_s(facts, kept, kind) + (TICKS_TO_LAUNCH + 1) * tick(facts.state).total_seconds()
    return (deadline_at - facts.now).total_seconds() - kept.left_s - kept.doubt_s - undone_s


def times_in_time(facts: Facts, kind: Kind) -> float:
    """
    Return the lowest speed at which `kind` would still meet the deadline, as a share of its expected speed. Return 0 if
    the run needs no keeper, or if the amount of work is unknown.
    """
    if not promises(facts) or workload(facts) is None:
        return 0.0
    return exp(-_z(facts, kind) * _spread(facts, kind))


def rework_s(facts: Facts, kept: Keeper, *kinds: Kind) -> float:
    """
    Return the maximum rework after the loss of an instance of one of these kinds. The rework is the time that the
    keeper takes to repeat the lost steps.
    """
    known = speeds(facts)
    return rework_max_s(facts) * max([1.0, *(known[kind].times / kept.times for kind in kinds)])


def hopeful_s(facts: Facts) -> float:
    """
    Return the shortest time in which the work could be done: on the fastest of the job's kinds, at the highest speed in
    its interval.
    """
    left = workload(facts)
    assert left is not None
    return min(left.left_s / _times(facts, kind, SURE) for kind in choice(facts))


def is_measured(facts: Facts, kind: Kind) -> bool:
    return speeds(facts)[kind].measured is not None


def _is_known(facts: Facts, kind: Kind) -> bool:
    """
    Return True if the speed of `kind` was measured. If no kind was measured, the first kind counts as measured, because
    `expected_work` is the time on that kind.
    """
    return is_measured(facts, kind) or (kind == choice(facts)[0] and not _any_measured(facts))


def _any_measured(facts: Facts) -> bool:
    return any(is_measured(facts, kind) for kind in choice(facts))


def _spread(facts: Facts, kind: Kind) -> float:
    """
    Return the uncertainty of the time that the work takes on `kind`: the standard deviation of the logarithm of this
    time.
    """
    if _any_measured(facts):
        return speeds(facts)[kind].spread
    known = assumptions.WORK_DOUBT / 2
    return known if kind == choice(facts)[0] else sqrt(known**2 + 2 * PRIOR_SPREAD**2)


def _times(facts: Facts, kind: Kind, deviations: float) -> float:
    """
    Return the speed that lies `deviations` standard deviations above the expected speed of `kind`, as a multiple of the
    first kind's speed.
    """
    return speeds(facts)[kind].times * exp(deviations * _spread(facts, kind))


def _z(facts: Facts, kind: Kind) -> float:
    """
    Return the z of `kind` (see the top of this module): by how many standard deviations its expected speed exceeds the
    speed needed.
    """
    left, deadline_at = workload(facts), facts.state.created.deadline_at
    assert left is not None
    assert deadline_at is not None
    start_s = 0.0 if kind == _trains_on_demand(facts) else changeover(facts.state)
    time_s = (deadline_at - facts.now).total_seconds() - start_s
    if left.left_s <= 0:
        return inf
    if time_s <= 0:
        return -inf
    return log(speeds(facts)[kind].times * time_s / left.left_s) / _spread(facts, kind)


def _trains_on_demand(facts: Facts) -> Kind | None:
    """Return the kind of the running instance if it is on demand and does not have to be replaced; else None."""
    state, current = facts.state, facts.state.current
    if current is None or current.leaving or nearly_over(facts, current):
        return None
    offering = state.launch_of(current).intent.offering
    return kind_of(facts, offering) if offering.capacity_type is CapacityType.ON_DEMAND else None


def _on_demand(facts: Facts) -> dict[Kind, Offering]:
    """
    Return the cheapest on-demand offering of each kind. Only offerings that can be requested now, or on which the run
    trains now, are considered. If there are none, consider all on-demand offerings within the job's max_price.
    """
    allowed = [each for each in within_price(facts) if each.capacity_type is CapacityType.ON_DEMAND]
    trains = _trains_on_demand(facts)
    asked = [
        each
        for each in allowed
        if kind_of(facts, each) == trains or (reservable(facts, each) and not rests(facts, each))
    ]
    found: dict[Kind, Offering] = {}
    for offering in sorted(asked or allowed, key=lambda each: each.price_usd_per_hour, reverse=True):
        if (kind := kind_of(facts, offering)) is not None:
            found[kind] = offering
    return found


def _begun_with(facts: Facts, found: Mapping[Kind, Offering], usd: Mapping[Kind, float]) -> Kind:
    """
    Return the kind with which the run begins while the amount of work is unknown: of all kinds that cost no more per
    hour than the first kind, the one expected to cost least for the same work.
    """
    first = choice(facts)[0]
    limit = found[first].price_usd_per_hour if first in found else None
    no_dearer = [kind for kind in found if limit is None or found[kind].price_usd_per_hour <= limit]
    return min(no_dearer, key=usd.__getitem__)


def _keeper(facts: Facts, kind: Kind, offering: Offering) -> Keeper:
    left = workload(facts)
    assert left is not None
    times = speeds(facts)[kind].times
    expected_s, worst_s = left.left_s / times, left.left_s / _times(facts, kind, -SURE)
    return Keeper(kind, offering, times, expected_s, worst_s - expected_s)
