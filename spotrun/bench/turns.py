"""Which trials of a bench begin together, and with how much of its budget. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_DOWN, Decimal

from spotrun.spec.kinds import Kind

AT_ONCE_MAX = 8
"""So many types are rented at once, if nobody says how many."""
CENT = Decimal("0.01")


def next_ones(waiting: Sequence[Kind | None], going: Sequence[Kind | None], at_once: int | None) -> list[int]:
    """
    The places among those that wait of the trials that begin beside those that go on, by the kinds of both: `at_once`
    in all, and first those of a kind of which the fewest go on. None is one of each kind: a quota seldom allows two.
    """
    chosen: list[int] = []
    while len(going) + len(chosen) < (at_once or AT_ONCE_MAX):
        beside = [*going, *(waiting[place] for place in chosen)]
        left = [place for place in range(len(waiting)) if place not in chosen]
        if at_once is None:
            left = [place for place in left if waiting[place] not in beside]
        if not left:
            break
        chosen.append(min(left, key=lambda place: beside.count(waiting[place])))
    return chosen


def shares(left_usd: Decimal, leasts_usd: Sequence[Decimal | None]) -> list[Decimal]:
    """
    How much of what is left each of those that begin together may spend: so much that all may last equally long, by
    what each needs to begin. Fewer shares than asked for, if it is not enough for all of them.
    """
    leasts = [least or CENT for least in leasts_usd]
    while sum(leasts) > left_usd:
        leasts.pop()
    whole = sum(leasts)
    return [max(least, (left_usd * least / whole).quantize(CENT, ROUND_DOWN)) for least in leasts]
