"""Measures how far this machine's clock is from a cloud's, which is the one that counts."""

from __future__ import annotations

from datetime import datetime, timedelta

SKEW_WARNED = timedelta(seconds=30)
SET_CLOCK = "set this machine's clock, for example by `timedatectl set-ntp true`"


def skew_of(before: datetime, after: datetime, told: datetime) -> timedelta:
    """Return how far this machine is ahead of a cloud (below 0: behind), to the second, as precise as a Date header."""
    if told > after:
        return after - told
    return max(before - told - timedelta(seconds=1), timedelta(0))


def in_words(skew: timedelta, whose: str) -> str:
    side = "ahead of" if skew > timedelta(0) else "behind"
    return f"this machine's clock is {abs(skew).total_seconds():,.0f} s {side} {whose}'s"
