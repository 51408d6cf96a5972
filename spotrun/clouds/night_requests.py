"""
The number of requests that the runner of a night sends to its store, on any cloud: the counts of a rehearsed night,
which tests/cloud/test_night_function.py measures again.
"""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

from spotrun.folder.run_calls import Calls
from spotrun.run.billing import to_nano

COLD_EVERY_H = Decimal(2)
"""
Hours between two cold starts. A cloud moves a function after some hours although it is called each minute; then the
runner reads the whole ledger again.
"""


class RequestEstimate(NamedTuple):
    """Requests to the store: those that read, and those that write or list."""

    gets: Decimal
    puts: Decimal


BEGIN = RequestEstimate(Decimal(40), Decimal(30))
"""Requests to begin a night, with all its calls in the hour that follows."""
TICK = RequestEstimate(Decimal("2.7"), Decimal("0.78"))
"""Requests in each minute of its run."""
COLD = RequestEstimate(Decimal(70), Decimal(5))
"""Requests of a cold start, with a ledger of an hour's or some hours' commits."""


class ExpectedCalls(NamedTuple):
    """The number of calls of a runner in a night, and how many of them are cold starts."""

    ticks: Decimal
    colds: Decimal

    @property
    def all(self) -> Decimal:
        """All calls, including those that begin the night."""
        return self.ticks + 5

    @property
    def asked(self) -> RequestEstimate:
        return RequestEstimate(
            *(
                begin + self.ticks * tick + self.colds * cold
                for begin, tick, cold in zip(BEGIN, TICK, COLD, strict=True)
            )
        )


def calls_of_a_night(hours: float) -> ExpectedCalls:
    lived = Decimal(str(hours))
    return ExpectedCalls(lived * 60, lived / COLD_EVERY_H + 1)


def of_all(usd: Decimal, calls: Calls) -> Decimal:
    """
    Return what all calls cost, to the nano-dollar, if the counted ones cost `usd`: each uncounted call is assumed to
    cost the same.
    """
    return to_nano(usd * (calls.calls + calls.uncounted) / max(calls.calls, 1))
