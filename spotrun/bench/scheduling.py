"""Chooses which trials of a bench begin next, and how much of the budget each of them may spend. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_DOWN, Decimal

from spotrun.spec.kinds import Kind

MAX_PARALLEL = 8
"""Maximum number of trials at the same time, unless the user sets another number."""
CENT = Decimal("0.01")


def next_ones(waiting: Sequence[Kind | None], going: Sequence[Kind | None], max_parallel: int | None) -> list[int]:
    """
    Choose which of the waiting trials begin now, and return their positions in `waiting`. `waiting` lists the kinds of
    instance that the waiting trials need; `going` lists the kinds of the running trials.

    At most `max_parallel` trials run at the same time. If it is None, at most MAX_PARALLEL trials run, and only one of
    each kind, because a quota seldom allows two instances of a kind. Trials whose kind has the
    fewest running trials begin first.
    """
    chosen: list[int] = []
    while len(going) + len(chosen) < (max_parallel or MAX_PARALLEL):
        beside = [*going, *(waiting[place] for place in chosen)]
        left = [place for place in range(len(waiting)) if place not in chosen]
        if max_parallel is None:
            left = [place for place in left if waiting[place] not in beside]
        if not left:
            break
        chosen.append(min(left, key=lambda place: beside.count(waiting[place])))
    return chosen


def shares(left_usd: Decimal, leasts_usd: Sequence[Decimal | None]) -> list[Decimal]:
    """
    Divide the rest of the budget among the trials that begin together, and return their shares in order.

    `leasts_usd` are the smallest budgets with which the trials can begin. The shares are proportional to them, so that
    all trials run equally long. If the rest is less than their sum, the list is shorter, and the last trials get
    nothing.
    """
    leasts = [least or CENT for least in leasts_usd]
    while sum(leasts) > left_usd:
        leasts.pop()
    whole = sum(leasts)
    return [max(least, (left_usd * least / whole).quantize(CENT, ROUND_DOWN)) for least in leasts]
