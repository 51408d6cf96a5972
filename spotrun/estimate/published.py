"""Compares published figures with the figures that a study computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal

import msgspec

from spotrun.estimate.cost_study import CostStudy, Place, Published
from spotrun.estimate.costs import SPOT, Cost, break_even_days, costs_at
from spotrun.estimate.prices import usd_per_hour, usd_per_month
from spotrun.estimate.speeds import mean_of_times, samples_per_second

Figure = Callable[[CostStudy, Published], Decimal | None]


class FigureComparison(msgspec.Struct, frozen=True, kw_only=True):
    """
    A published figure, compared with `ours`, the figure that spotrun computes from the study. `ours` is None if the
    study lacks the facts to compute it. `off` is the relative error, `ours` / `published` - 1.
    """

    figure: str
    published: Decimal
    ours: Decimal | None
    off: Decimal | None
    agrees: bool
    differs: str | None = None


def compared(study: CostStudy) -> list[FigureComparison]:
    """Return the comparisons in the order in which the study lists the published figures."""
    return [_compared(study, each) for each in study.published]


def _compared(study: CostStudy, each: Published) -> FigureComparison:
    ours = _FIGURES[each.figure](study, each)
    off = None if ours is None else ours / each.value - 1
    return FigureComparison(
        figure=title_of(each),
        published=each.value,
        ours=ours,
        off=off,
        agrees=off is not None and abs(off) <= study.within,
        differs=each.differs,
    )


def title_of(each: Published) -> str:
    """Return the title of a figure, such as `box, ResNet50: hours`."""
    of = [name for name in (each.place, each.training) if name is not None]
    against = "" if each.against is None else f" against {each.against}"
    return f"{', '.join(of)}{against}: {each.figure.replace('_', ' ')}"


def _place(study: CostStudy, each: Published) -> Place:
    return study.places[each.place or ""]


def _spot(study: CostStudy, each: Published) -> Decimal | None:
    spot = _place(study, each).spot
    return None if spot is None else spot.usd_per_hour


def _spot_share(study: CostStudy, each: Published) -> Decimal | None:
    spot = _spot(study, each)
    return None if spot is None else _ratio(spot, usd_per_hour(_place(study, each)))


def _price_ratio(study: CostStudy, each: Published) -> Decimal | None:
    return _ratio(usd_per_hour(_place(study, each)), usd_per_hour(study.places[each.against or ""]))


def _ratio(one: Decimal, other: Decimal) -> Decimal | None:
    return one / other if other else None


def _samples(study: CostStudy, each: Published) -> Decimal:
    return study.trainings[each.training or ""].samples_in_all


def _speed(study: CostStudy, each: Published) -> Decimal | None:
    return samples_per_second(study, each.place or "", each.training or "")


def _mean_of_times(study: CostStudy, each: Published) -> Decimal | None:
    like = _place(study, each).like
    return None if like is None else mean_of_times(like, each.training or "")


def _speed_ratio(study: CostStudy, each: Published) -> Decimal | None:
    speed, other = _speed(study, each), samples_per_second(study, each.against or "", each.training or "")
    return None if speed is None or other is None else speed / other


def _cost(study: CostStudy, place: str | None, training: str | None, *, spot: bool = False) -> Cost | None:
    """
    Return the cost of the training at the place: at its spot price if `spot` is set or if it has no other price, and
    otherwise at its ordinary price. Return None if the place lacks that price, or if the training's speed there is
    unknown.
    """
    found = costs_at(study, place or "", training or "")
    return next((cost for cost in found if cost.capacity == SPOT or not spot), None)


def _of_cost(read: Callable[[Cost], Decimal | None], *, spot: bool = False) -> Figure:
    def figure(study: CostStudy, each: Published) -> Decimal | None:
        cost = _cost(study, each.place, each.training, spot=spot)
        return None if cost is None else read(cost)

    return figure


def _normalised(read: Callable[[Cost], Decimal]) -> Figure:
    """
    Return a function that computes a normalised figure. It is relative to the place `against` of the published figure,
    not to the study's base.
    """

    def figure(study: CostStudy, each: Published) -> Decimal | None:
        cost, other = (_cost(study, place, each.training) for place in (each.place, each.against))
        return None if cost is None or other is None else _ratio(read(cost), read(other))

    return figure


def _break_even(study: CostStudy, each: Published) -> Decimal | None:
    rival = _cost(study, each.against, each.training)
    if rival is None or _place(study, each).own is None or _speed(study, each) is None:
        return None
    return break_even_days(study, each.place or "", rival)


_FIGURES: Mapping[str, Figure] = {
    "usd_per_hour": lambda study, each: usd_per_hour(_place(study, each)),
    "usd_per_month": lambda study, each: usd_per_month(study, _place(study, each)),
    "spot_usd_per_hour": _spot,
    "spot_share": _spot_share,
    "price_ratio": _price_ratio,
    "samples": _samples,
    "samples_per_second": _speed,
    "mean_of_times": _mean_of_times,
    "speed_ratio": _speed_ratio,
    "hours": _of_cost(lambda cost: cost.hours),
    "usd": _of_cost(lambda cost: cost.usd),
    "spot_usd": _of_cost(lambda cost: cost.usd, spot=True),
    "samples_per_usd": _of_cost(lambda cost: cost.samples_per_usd),
    "normalised_time": _normalised(lambda cost: cost.hours),
    "normalised_cost": _normalised(lambda cost: cost.usd),
    "break_even_days": _break_even,
}
