"""
Estimates how many requests a night's runner sends to its store, on any cloud. The numbers were measured in a test
night, and tests/cloud/test_night_function.py measures them again.
"""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

from spotrun.folder.run_calls import Calls
from spotrun.run.billing import to_nano

COLD_EVERY_H = Decimal(2)
"""
Hours between two cold starts. A cloud moves a function to another machine after some hours, even if the function is
called each minute. After the move, the runner has an empty memory and reads the whole ledger again.
"""


class RequestEstimate(NamedTuple):
    """An estimated number of requests to the store. `gets` counts reads; `puts` counts writes and listings."""

    gets: Decimal
    puts: Decimal


BEGIN = RequestEstimate(Decimal(40), Decimal(30))
"""
Requests to begin a night. In the following hour, the cloud calls the runner several more times, in case the first call
could not begin the night; the requests of these calls are included.
"""
TICK = RequestEstimate(Decimal("2.7"), Decimal("0.78"))
"""Requests per minute until the run has ended. The runner is called once a minute."""
COLD = RequestEstimate(Decimal(70), Decimal(5))
"""Requests of a cold start, if the run has trained for a few hours. The longer the ledger, the more requests."""


class ExpectedCalls(NamedTuple):
    """
    The expected number of calls to a night's runner. `ticks` are the calls from the start to the end of the run, one a
    minute; `colds` is the number of cold starts among them.
    """

    ticks: Decimal
    colds: Decimal

    @property
    def all(self) -> Decimal:
        """The number of all calls: `ticks`, and the calls that begin the night."""
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
    Return the cost of all calls, to the nano-dollar. `usd` is the cost of the calls whose durations are known; each
    other call is assumed to cost their average.
    """
    return to_nano(usd * (calls.calls + calls.uncounted) / max(calls.calls, 1))
