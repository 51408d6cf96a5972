"""
What the runner of a night asks its store for, whichever cloud calls it: the counts of a rehearsed night, which
tests/cloud/test_night_function.py makes anew.
"""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

COLD_EVERY_H = Decimal(2)
"""A cloud moves what it calls after some hours, though it is called each minute; then the ledger is read anew."""


class Asked(NamedTuple):
    """Requests to the store: those that read, and those that write or list."""

    gets: Decimal
    puts: Decimal


BEGIN = Asked(Decimal(40), Decimal(30))
"""To begin a night, with all its calls in the hour that follows."""
TICK = Asked(Decimal("2.7"), Decimal("0.78"))
"""In each minute of its run."""
COLD = Asked(Decimal(70), Decimal(5))
"""With a ledger of an hour's or some hours' commits."""


class ExpectedCalls(NamedTuple):
    """How often a runner is called in a night whose run lives so long, and how often it knows nothing then."""

    ticks: Decimal
    colds: Decimal

    @property
    def all(self) -> Decimal:
        """With those that begin the night."""
        return self.ticks + 5

    @property
    def asked(self) -> Asked:
        return Asked(
            *(
                begin + self.ticks * tick + self.colds * cold
                for begin, tick, cold in zip(BEGIN, TICK, COLD, strict=True)
            )
        )


def calls_of_a_night(hours: float) -> ExpectedCalls:
    lived = Decimal(str(hours))
    return ExpectedCalls(lived * 60, lived / COLD_EVERY_H + 1)
