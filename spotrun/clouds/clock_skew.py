"""Measures how far this machine's clock differs from a cloud's clock, which is taken as correct."""

from __future__ import annotations

from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime

from spotrun.doctor.finding import Finding, ok, warned

SKEW_WARNED = timedelta(seconds=30)
SET_CLOCK = "set this machine's clock, for example by `timedatectl set-ntp true`"


def told_at(date: str) -> datetime | None:
    """Return the time in a `Date` header, which is precise to the second; None if the header is unreadable."""
    try:
        found = parsedate_to_datetime(date)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def skew_of(before: datetime, after: datetime, told: datetime) -> timedelta:
    """
    Return how far this machine's clock is ahead of a cloud's, with the precision of a Date header, 1 s. The result is
    negative if this clock is behind.
    """
    if told > after:
        return after - told
    return max(before - told - timedelta(seconds=1), timedelta(0))


def in_words(skew: timedelta, whose: str) -> str:
    side = "ahead of" if skew > timedelta(0) else "behind"
    return f"this machine's clock is {abs(skew).total_seconds():,.0f} s {side} {whose}'s"


def clock_finding(name: str, skew: timedelta, whose: str) -> Finding:
    if abs(skew) > SKEW_WARNED:
        return warned(name, in_words(skew, whose), SET_CLOCK)
    return ok(name, f"this machine's clock agrees with {whose}'s")
