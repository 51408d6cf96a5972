"""Lists the assumptions of an estimate as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from spotrun.estimate.cost_study import CostStudy, Like, Place
from spotrun.estimate.costs import base_of
from spotrun.spec.own_machine import Machine
from spotrun.units import format_duration

DECIMALS = 6


def plain_number(number: Decimal) -> str:
    """Format a number without an exponent or trailing zeros: `6,500`, `0.2`, `30.4375`."""
    return f"{round(number, DECIMALS).normalize():,f}"


def money(usd: Decimal) -> str:
    """Format an exact amount of dollars: `$6,500`, `$0.20`, `$0.0475`."""
    whole = usd == usd.to_integral_value()
    return f"${plain_number(usd)}" if whole or round(usd, 1) != usd else f"${usd:,.2f}"


def assumptions(study: CostStudy) -> list[str]:
    """
    Return all assumptions of the study's estimate: first those that the study states, then those that spotrun makes in
    every estimate, then those about each place in the study.
    """
    dated = f"prices are those of {study.as_of}" if study.as_of else "the study gives no date for its prices"
    return [
        *study.assumptions,
        dated,
        f"a month has {plain_number(study.month_days)} days",
        f"normalised times and costs are relative to those at {base_of(study)}",
        "each place trains at one speed from the first sample to the last, and its set-up takes no time",
        "hours are hours of training: a machine that is used only a part of the time needs more calendar time",
        "a month at a rented place has all its hours; a month on your own machine has only the hours of use",
        *_never_interrupted(study),
        *(line for name, place in study.places.items() for line in _of_place(name, place)),
    ]


def _of_place(name: str, place: Place) -> Iterator[str]:
    dated = f" of {place.as_of}" if place.as_of else ""
    if place.source is not None or place.as_of is not None:
        yield f"{name}: prices{dated}{f' from {place.source}' if place.source else ''}"
    if place.own is not None:
        yield f"{name}: {_machine(place.own)}"
    if place.parts is not None:
        parts = (
            f"{plain_number(part.count)} x {part_name} at {money(part.usd_per_hour)}"
            for part_name, part in place.parts.items()
        )
        yield f"{name}: {' + '.join(parts)} an hour"
    if place.subscription is not None:
        hours = plain_number(place.subscription.hours_per_month)
        yield f"{name}: each training pays for whole months, with at most {hours} hours in each"
    if place.spot is not None and place.spot.lost_share:
        rate, restart = plain_number(place.spot.interruptions_per_hour), format_duration(place.spot.restart)
        yield f"{name}: spot is interrupted {rate} times an hour, and each interruption costs {restart}"
    if place.like is not None:
        yield f"{name}: {_speed(place.like)}"


def _machine(machine: Machine) -> str:
    bought = f"{money(machine.purchase_usd)} over {plain_number(machine.months)} months"
    kept = f" and {money(machine.maintenance_usd)} for maintenance" if machine.maintenance_usd else ""
    used = f"{plain_number(machine.days_per_month)} days a month of {plain_number(machine.hours_per_day)} h"
    power = "its power costs nothing"
    if machine.watts is not None and machine.usd_per_kwh is not None:
        power = f"{plain_number(machine.watts)} W at {money(machine.usd_per_kwh)} a kWh"
    return f"{bought}{kept}, used {used}, {power}"


def _never_interrupted(study: CostStudy) -> Iterator[str]:
    """
    Yield a sentence with all places at which spot interruptions are assumed to cost no time. It is a single sentence,
    because a study may have dozens of places.
    """
    names = [name for name, place in study.places.items() if place.spot is not None and not place.spot.lost_share]
    if names:
        yield f"spot interruptions are assumed to cost no time at {', '.join(names)}"


def _speed(like: Like) -> str:
    several = max((len(times) for times in like.times.values()), default=0)
    how = {0: "", 1: ", times the measured ratio"}.get(several, ", times the mean of the measured ratios")
    faster = "".join(
        f", but with the part {part} {plain_number(times)} times as fast" for part, times in like.faster.items()
    )
    return f"as fast as {plain_number(like.devices)} x {like.place}{how}{faster}"
