"""How far this machine's clock is from that of a cloud, whose moments are the ones that count."""

from __future__ import annotations

from datetime import datetime, timedelta

SKEW_WARNED = timedelta(seconds=30)
SET_CLOCK = "set this machine's clock, for example by `timedatectl set-ntp true`"


def skew_of(before: datetime, after: datetime, told: datetime) -> timedelta:
    """How far this machine is ahead of a cloud, to the second; a Date header has no more. Below 0 it is behind."""
    if told > after:
        return after - told
    return max(before - told - timedelta(seconds=1), timedelta(0))


def in_words(skew: timedelta, whose: str) -> str:
    side = "ahead of" if skew > timedelta(0) else "behind"
    return f"this machine's clock is {abs(skew).total_seconds():,.0f} s {side} {whose}'s"
