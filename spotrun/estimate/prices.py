"""Computes the price of an hour and of a month at a place."""

from __future__ import annotations

from decimal import Decimal

from spotrun.estimate.cost_study import CostStudy, Place

HOURS_PER_DAY = 24


def usd_per_hour(place: Place) -> Decimal:
    """
    Return the ordinary price of an hour at a place: on demand, on the user's own machine, or in a subscription. An hour
    in a subscription costs the month's price divided by the hours that it includes, as if all of them were used. If the
    place has only a spot price, return that price. Before this call, `rented` and `listed` prices must have been
    replaced by numbers.
    """
    if place.own is not None:
        return place.own.usd_per_hour()
    if place.subscription is not None:
        return place.subscription.usd_per_month / place.subscription.hours_per_month
    if place.parts is not None:
        return sum((part.usd_per_hour * part.count for part in place.parts.values()), Decimal(0))
    if place.usd_per_hour is not None:
        return place.usd_per_hour
    assert place.spot is not None, "a rented or listed place was not looked up"
    return place.spot.usd_per_hour


def usd_per_month(study: CostStudy, place: Place) -> Decimal:
    """
    Return the price of a month. The user's own machine is paid for the hours in which it is used, a subscription by its
    monthly price, and any other place for all hours of the month.
    """
    if place.own is not None:
        return usd_per_hour(place) * place.own.days_per_month * place.own.hours_per_day
    if place.subscription is not None:
        return place.subscription.usd_per_month
    return usd_per_hour(place) * HOURS_PER_DAY * study.month_days
