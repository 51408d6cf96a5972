"""
Chooses the *keeper*, the kind that has to meet the deadline, on demand if need be; and finds the kinds that are too
slow.

A kind is *sure* if it does all the work left in time even at the lower end of its speed interval. The keeper is the
sure kind that costs least on demand for the same work; a measured kind comes before an unmeasured one. If no kind is
sure, the keeper is the kind most likely to be in time, and the run moves to it immediately. With

    z = log(speed / speed needed) / spread of the logarithm

a kind is sure if z >= 2, and out of the question if z < -2. A measured kind that is not sure is too slow.

So the run trains on an uncertain kind only until its speed is measured, and a replacement starts while the instance of
this kind still trains. Therefore the run meets any deadline that the best kind alone would meet with enough time left
for a start and a trial of each other kind.

None of this applies to a run without a deadline or without a choice of kinds.
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
"""Standard deviations on either side of the expected value. This interval holds the true value in 19 of 20 cases."""
HANDOVERS = 2
"""Maximum handovers of a trial: to the tried kind, and perhaps back."""


class Keeper(msgspec.Struct, frozen=True):
    """
    The kind that has to meet the deadline; it is expected to be `times` as fast as the first kind.

    The work left takes `left_s` on this kind, and at worst `doubt_s` more. While the amount of work is unknown, both
    are infinite, and the keeper is the kind that the run begins with.
    """

    kind: Kind
    offering: Offering
    times: float
    left_s: float = inf
    doubt_s: float = inf


def promises(facts: Facts) -> bool:
    """Return whether the run has a deadline and a choice of kinds, and so needs a keeper."""
    return facts.state.created.deadline_at is not None and bool(choice(facts))


@once
def keeper(facts: Facts) -> Keeper | None:
    """Return the keeper; None without a deadline or a choice of kinds, or if no kind is offered on demand."""
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
    """Return the kinds that must not train: they would be late, or the keeper has to be measured first."""
    kept = keeper(facts)
    if kept is None or workload(facts) is None:
        return frozenset()
    others = [kind for kind in choice(facts) if kind != kept.kind]
    if not is_measured(facts, kept.kind) and any(is_measured(facts, kind) for kind in others):
        return frozenset(others)
    return frozenset(kind for kind in others if _z(facts, kind) < (SURE if _is_known(facts, kind) else -SURE))


def is_enough(facts: Facts, offering: Offering) -> bool:
    """
    Return whether to keep an on-demand instance that trains. One of these conditions is enough:

    - the instance will surely be in time
    - no other kind is likelier to be in time
    - the instance is on trial, and there is time left to finish on the keeper
    """
    kept, kind = keeper(facts), kind_of(facts, offering)
    if kept is None or kind is None or workload(facts) is None or kind == kept.kind or _z(facts, kind) >= SURE:
        return True
    return _on_trial(facts, kept, kind) and _spare_s(facts, kept, kind) >= changeover(facts.state)


def leaves_time_to_try(facts: Facts, kind: Kind) -> bool:
    """
    Return whether there would be time to finish even after a trial of `kind` that makes no progress. Count the start of
    the trial's instance, and the start of the keeper after it.
    """
    kept = keeper(facts)
    if kept is None:
        return True
    trial_s = assumptions.TRIAL.total_seconds() + HANDOVERS * assumptions.COMMIT.total_seconds()
    return _on_trial(facts, kept, kind) and _spare_s(facts, kept, kind) >= 2 * changeover(facts.state) + trial_s


def _on_trial(facts: Facts, kept: Keeper, kind: Kind) -> bool:
    """Return whether the speed of `kind` has yet to be learned by a trial, and the speed of the keeper was measured."""
    known = workload(facts) is not None and is_measured(facts, kept.kind)
    return known and not is_measured(facts, kind)


def _spare_s(facts: Facts, kept: Keeper, kind: Kind) -> float:
    """
    Return the seconds to spare before the deadline at worst, if an instance of `kind` is lost with its uncommitted
    steps.
    """
    deadline_at = facts.state.created.deadline_at
    assert deadline_at is not None
    undone_s = rework_s(facts, kept, kind) + (TICKS_TO_LAUNCH + 1) * tick(facts.state).total_seconds()
    return (deadline_at - facts.now).total_seconds() - kept.left_s - kept.doubt_s - undone_s


def times_in_time(facts: Facts, kind: Kind) -> float:
    """Return the share of its expected speed that `kind` needs to be just in time; 0 without a keeper."""
    if not promises(facts) or workload(facts) is None:
        return 0.0
    return exp(-_z(facts, kind) * _spread(facts, kind))


def rework_s(facts: Facts, kept: Keeper, *kinds: Kind) -> float:
    """Return the maximum rework that one loss of an instance of these kinds causes, in seconds on the keeper."""
    known = speeds(facts)
    return rework_max_s(facts) * max([1.0, *(known[kind].times / kept.times for kind in kinds)])


def hopeful_s(facts: Facts) -> float:
    """
    Return the least seconds that the work may take on any kind of the choice, at the upper end of that kind's speed
    interval.
    """
    left = workload(facts)
    assert left is not None
    return min(left.left_s / _times(facts, kind, SURE) for kind in choice(facts))


def is_measured(facts: Facts, kind: Kind) -> bool:
    return speeds(facts)[kind].measured is not None


def _is_known(facts: Facts, kind: Kind) -> bool:
    """Return whether `kind` was measured. While no kind was, `expected_work` makes the first kind count as known."""
    return is_measured(facts, kind) or (kind == choice(facts)[0] and not _any_measured(facts))


def _any_measured(facts: Facts) -> bool:
    return any(is_measured(facts, kind) for kind in choice(facts))


def _spread(facts: Facts, kind: Kind) -> float:
    """Return the spread of the logarithm of the time that the work takes on a kind."""
    if _any_measured(facts):
        return speeds(facts)[kind].spread
    known = assumptions.WORK_DOUBT / 2
    return known if kind == choice(facts)[0] else sqrt(known**2 + 2 * PRIOR_SPREAD**2)


def _times(facts: Facts, kind: Kind, deviations: float) -> float:
    """
    Return the speed of `kind` relative to the first kind, `deviations` standard deviations above the expected speed.
    """
    return speeds(facts)[kind].times * exp(deviations * _spread(facts, kind))


def _z(facts: Facts, kind: Kind) -> float:
    """Return by how many standard deviations the expected speed of `kind` exceeds the speed needed for the deadline."""
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
    """Return the kind of the instance that trains, if it is on demand and is not leaving; else None."""
    state, current = facts.state, facts.state.current
    if current is None or current.leaving or nearly_over(facts, current):
        return None
    offering = state.launch_of(current).intent.offering
    return kind_of(facts, offering) if offering.capacity_type is CapacityType.ON_DEMAND else None


def _on_demand(facts: Facts) -> dict[Kind, Offering]:
    """
    Return the cheapest on-demand offering of each kind that may be requested or that trains. If no kind has such an
    offering, include every kind.
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
    Return the kind to begin with: the one believed cheapest among those that cost no more per hour than the first kind.
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
