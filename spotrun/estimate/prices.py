"""Computes the prices per hour and per month of the places in a cost study."""

from __future__ import annotations

from decimal import Decimal

from spotrun.estimate.cost_study import CostStudy, Place

HOURS_PER_DAY = 24


def usd_per_hour(place: Place) -> Decimal:
    """
    Return a place's price per hour. For a rented machine, this is the on-demand price; the spot price only if there is
    no other. For a subscription, it is the monthly price divided by the hours that the subscription includes, as if the
    user used them all. The caller must have replaced `rented` and `listed` prices with numbers.
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
    Return a place's price per month: for the user's own machine, the price of the hours of use; for a subscription, the
    monthly price; for any other place, the price of all hours in a month.
    """
    if place.own is not None:
        return usd_per_hour(place) * place.own.days_per_month * place.own.hours_per_day
    if place.subscription is not None:
        return place.subscription.usd_per_month
    return usd_per_hour(place) * HOURS_PER_DAY * study.month_days
