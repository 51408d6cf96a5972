"""
Computes what a night costs in addition to its instances: the Lambda function that runs the night, its log, and its
requests to the store.

The prices come from a dated table, control_plane.json. The numbers of calls and requests were counted in a rehearsal of
a night. Lambda is charged at its list price, although most accounts stay within its free tier.

These are free: the first 14 million calls that EventBridge Scheduler makes in a month, EC2's events on the account's
own event bus, and requests to the APIs of EC2, IAM and EventBridge Scheduler.
"""

from __future__ import annotations

from decimal import Decimal

from spotrun.clouds.night_requests import calls_of_a_night, of_all
from spotrun.folder.run_calls import Calls
from spotrun.run.price_tables import PriceTable, price_table

MEMORY_GB = Decimal("0.25")
"""Memory of the function in GB, as in night.yaml."""
TICK_S = Decimal("0.5")
"""
Seconds that a call of the function takes if its process still has the runner in memory. In this time, S3 and EC2 answer
about ten requests, one after another.
"""
COLD_S = Decimal(6)
"""Seconds that a call takes in a new process, which has to import everything and read the ledger."""
BEGIN_S = Decimal(30)
"""Seconds that the first call takes, which creates the run and requests the first instance."""
LOG_BYTES_A_CALL = 60


def prices() -> PriceTable:
    return price_table(__package__, "control_plane.json", "calls of the runner of a night")


def usd_of_a_night(hours: float) -> Decimal:
    """Return the expected cost of a night whose run takes `hours`."""
    usd = prices().prices
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
    """
    Return the cost of all calls of the function. The requests of only some calls are known. Each other call is assumed
    to cost the average of the known ones.
    """
    usd = prices().prices
    gb_seconds = Decimal(repr(calls.seconds)) * calls.memory_mb / 1024
    counted = (
        calls.calls * usd["lambda_request"]
        + gb_seconds * usd["lambda_gb_second"]
        + calls.reads * usd["s3_get"]
        + calls.writes * usd["s3_put"]
        + calls.log_bytes * usd["log_gb"] / 10**9
    )
    return of_all(counted, calls)
