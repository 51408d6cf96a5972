"""
Estimates the requests that a night's runner sends to its store, on any cloud. The numbers come from a rehearsed night,
and tests/cloud/test_night_function.py measures them again.
"""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

from spotrun.folder.run_calls import Calls
from spotrun.run.billing import to_nano

COLD_EVERY_H = Decimal(2)
"""
Hours between two cold starts. A cloud moves a function after some hours even if it is called each minute; then the
runner reads the whole ledger again.
"""


class RequestEstimate(NamedTuple):
    """Numbers of requests to the store: `gets` read, `puts` write or list."""

    gets: Decimal
    puts: Decimal


BEGIN = RequestEstimate(Decimal(40), Decimal(30))
"""Requests to begin a night, with all its calls in the hour that follows."""
TICK = RequestEstimate(Decimal("2.7"), Decimal("0.78"))
"""Requests for each minute of the run."""
COLD = RequestEstimate(Decimal(70), Decimal(5))
"""Requests of a cold start, if the ledger holds the commits of one hour or a few."""


class ExpectedCalls(NamedTuple):
    """The number of runner calls in a night: one a minute, and the cold starts among them."""

    ticks: Decimal
    colds: Decimal

    @property
    def all(self) -> Decimal:
        """All calls, including the calls that begin the night."""
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
    Return the cost of all calls, to the nano-dollar. `usd` is the cost of the counted calls; each uncounted call is
    assumed to cost as much on average.
    """
    return to_nano(usd * (calls.calls + calls.uncounted) / max(calls.calls, 1))
