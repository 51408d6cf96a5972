"""
What nights cost apart from what they rent: the function, its log, and what it asks the store. The prices are those of a
dated table, control_plane.json; the calls are those of a rehearsed night. Lambda is taken at its list price, although
most accounts stay below its free tier.

Free are the first 14 million calls of EventBridge Scheduler a month, EC2's events on the account's own bus, and what is
asked of EC2, IAM and the schedules' own API.
"""

from __future__ import annotations

from decimal import Decimal

from spotrun.clouds.night_prices import Prices, of_all, prices_of
from spotrun.clouds.night_requests import calls_of_a_night
from spotrun.folder.run_calls import Calls

MEMORY_GB = Decimal("0.25")
"""Of the function, in night.yaml."""
TICK_S = Decimal("0.5")
"""Of a call that finds its runner in memory: about ten answers of S3 and EC2, one after another."""
COLD_S = Decimal(6)
"""Of one that has to import everything and to read the ledger."""
BEGIN_S = Decimal(30)
"""Of one that creates the run and asks for the first instance."""
LOG_BYTES_A_CALL = 60


def prices() -> Prices:
    return prices_of(__package__)


def usd_of_a_night(hours: float) -> Decimal:
    """For a run that lives so long."""
    usd = prices().usd
    calls = calls_of_a_night(hours)
    seconds = calls.ticks * TICK_S + calls.colds * COLD_S + BEGIN_S
    return (
        calls.all * usd["lambda_request"]
        + seconds * MEMORY_GB * usd["lambda_gb_second"]
        + calls.asked.gets * usd["s3_get"]
        + calls.asked.puts * usd["s3_put"]
        + calls.all * LOG_BYTES_A_CALL * usd["log_gb"] / 10**9
    )


def usd_of(calls: Calls) -> Decimal:
    """For what was counted, and for the calls that nobody counted."""
    usd = prices().usd
    gb_seconds = Decimal(repr(calls.seconds)) * calls.memory_mb / 1024
    counted = (
        calls.calls * usd["lambda_request"]
        + gb_seconds * usd["lambda_gb_second"]
        + calls.reads * usd["s3_get"]
        + calls.writes * usd["s3_put"]
        + calls.log_bytes * usd["log_gb"] / 10**9
    )
    return of_all(counted, calls)
