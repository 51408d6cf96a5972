"""
Estimates the speed of each kind of instance that a job allows: at first from published figures, and later from the
measurements of this run.

Only the ratios of the published figures are used. Each figure is assumed to be wrong by a factor of at most
PUBLISHED_DOUBT, in either direction, and all factors in this range are assumed to be equally likely. This determines
the standard deviation of the logarithm of each speed (PRIOR_SPREAD). Once one kind has been measured, its steps per
second and the published ratios give the speeds of the other kinds. The speed of a measured kind is computed only from
its own steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from math import exp, log, sqrt
from statistics import fmean

import msgspec
from msgspec import UNSET

from spotrun.account.summary import CHANGED
from spotrun.market.published_speeds import published_speed
from spotrun.market.wishes import is_of, kind_among
from spotrun.offering import Offering
from spotrun.policy.facts import Facts, once
from spotrun.policy.pace import Pace, measured_pace
from spotrun.run.state import Attempt, RunState
from spotrun.spec.kinds import Kind

PUBLISHED_DOUBT = 3.0
"""
Maximum error of a published speed, as a factor. For comparison: depending on the training, a V100 was .86 to 3.1 times
as fast as a 1080 Ti.
"""
PRIOR_SPREAD = log(PUBLISHED_DOUBT) / sqrt(3)
"""
Standard deviation of the logarithm of a published speed, if all errors up to the factor PUBLISHED_DOUBT are equally
likely.
"""
BENCH_DOUBT = 0.1
"""
Maximum error of a bench in 19 of 20 cases, as a share of the time of a step. It is large because a bench lasts only
minutes, on one instance.
"""
UNPUBLISHED = 1.0
"""The speed that is assumed for a kind without a published speed. It is that of a V100."""


class Speed(msgspec.Struct, frozen=True):
    """
    The speed of a kind. `times` is this speed as a multiple of the speed of the first kind that the job allows.
    `spread` is the standard deviation of the speed's logarithm.
    """

    times: float
    spread: float
    measured: Pace | None = None

    @property
    def low(self) -> float:
        """The lower end of the interval that contains the true speed with a probability of 95 %."""
        return self.times * exp(-2 * self.spread)

    @property
    def high(self) -> float:
        return self.times * exp(2 * self.spread)


@once
def choice(facts: Facts) -> tuple[Kind, ...]:
    """Return the kinds of instances among which the job lets the run choose; empty if the job allows only one."""
    wanted = facts.spec.resources
    return wanted.kinds if wanted.is_choice else ()


def kind_of(facts: Facts, offering: Offering) -> Kind | None:
    return kind_among(offering, choice(facts))


@once
def bound_kind(facts: Facts) -> Kind | None:
    """
    Return the only kind on which the run may train from now on: the kind of its first checkpoint, if `checkpoint.exact`
    is `bits`. Return None if the run may train on every kind that the job allows.
    """
    if facts.spec.checkpoint.exact != "bits" or not choice(facts):
        return None
    state = facts.state
    made = (state.launch_of(state.attempts[commit.event.attempt]).intent.offering for commit in state.commits)
    return next((kind_of(facts, offering) for offering in made), None)


@once
def speeds(facts: Facts) -> Mapping[Kind, Speed]:
    """Return the speed of each kind that the job allows."""
    kinds = choice(facts)
    believed = {kind: _believed(facts.world.offerings, kind) for kind in kinds}
    paces = {kind: pace for kind in kinds if (pace := pace_on(facts, kind)) is not None}
    worth = fmean(-log(pace.step_s) - log(believed[kind]) for kind, pace in paces.items()) if paces else 0.0
    steps = {kind: 1 / paces[kind].step_s if kind in paces else believed[kind] * exp(worth) for kind in kinds}
    unknown = PRIOR_SPREAD * sqrt(1 + (1 / len(paces) if paces else 0))
    return {
        kind: Speed(steps[kind] / steps[kinds[0]], paces[kind].doubt / 2 if kind in paces else unknown, paces.get(kind))
        for kind in kinds
    }


def times_first(facts: Facts, offering: Offering) -> float:
    """
    Return the expected speed of `offering` as a multiple of the first kind's speed; 1 if the job allows only one kind.
    """
    kind = kind_of(facts, offering)
    return 1.0 if kind is None else speeds(facts)[kind].times


def works_of_hours(facts: Facts, offerings: Sequence[Offering]) -> dict[Offering, Decimal]:
    """
    Return the cost of one unit of work on each offering, in USD. One unit is the amount of work that an instance of the
    job's first kind does in an hour. Only the instance's price is counted. Return an empty mapping if the job allows
    only one kind.
    """
    if not choice(facts):
        return {}
    return {each: each.price_usd_per_hour / Decimal(times_first(facts, each)) for each in offerings}


def of_first_choice(facts: Facts, first: Offering) -> tuple[Sequence[Offering], float]:
    """
    Return all offerings of the same kind as `first`, and this kind's expected speed as a multiple of the speed of the
    job's first kind.
    """
    kind, offerings = kind_of(facts, first), facts.world.offerings
    if kind is None:
        return offerings, 1.0
    return [each for each in offerings if kind_of(facts, each) == kind], times_first(facts, first)


def another_kind(facts: Facts, offering: Offering) -> str:
    """Return a remark if the newest checkpoint was made on another kind of instance than `offering`; else ""."""
    latest, kind = facts.state.latest_commit(), kind_of(facts, offering)
    if latest is None or kind is None:
        return ""
    before = kind_of(facts, facts.state.launch_of(facts.state.attempts[latest.event.attempt]).intent.offering)
    return "" if before in (None, kind) else f"; {kind} after {before}: {CHANGED}"


def pace_on(facts: Facts, kind: Kind) -> Pace | None:
    """
    Return the pace of `kind`. If the run has trained on this kind, compute the pace from its steps there; otherwise
    return the pace that `spotrun bench` measured. Return None if there is no measurement of `kind`.
    """
    state = facts.state
    own = measured_pace(state, facts.world, lambda attempt: is_of(state.launch_of(attempt).intent.offering, kind))
    step_s = None if state.created.benched is UNSET else state.created.benched.get(str(kind))
    return Pace(step_s, BENCH_DOUBT) if own is None and step_s else own


def pace_on_first(facts: Facts) -> Pace | None:
    """
    Return the pace on the first kind, converted from the pace of the kind that was measured most precisely. Return None
    if no kind was measured.
    """
    known = [(speed.measured, speed) for speed in speeds(facts).values() if speed.measured is not None]
    if not known:
        return None
    pace, speed = min(known, key=lambda each: each[1].spread)
    return Pace(pace.step_s * speed.times, pace.doubt, pace.steps)


def trained_kinds(state: RunState, kinds: Sequence[Kind]) -> list[Kind]:
    """Return the kinds on which the run has trained at least one step, in the order of their first steps."""
    stepped = (state.launch_of(each).intent.offering for each in state.attempts.values() if _steps(each))
    return list(dict.fromkeys(kind for each in stepped if (kind := kind_among(each, kinds)) is not None))


def _steps(attempt: Attempt) -> bool:
    return any(trainer.started_at is not None or trainer.began_at is not None for trainer in attempt.trainers)


def _believed(offerings: Sequence[Offering], kind: Kind) -> float:
    """Return the published speed of the cheapest offering of `kind`; if none is published, return UNPUBLISHED."""
    of_kind = min((each for each in offerings if is_of(each, kind)), key=_price, default=None)
    return UNPUBLISHED if of_kind is None else published_speed(of_kind) or UNPUBLISHED


def _price(offering: Offering) -> tuple[Decimal, str]:
    return offering.price_usd_per_hour, offering.instance_type
