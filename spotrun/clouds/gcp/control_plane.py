"""
Computes what a night costs in addition to its instances: the runner's service (which Cloud Scheduler calls), its log,
and its requests to the store.

The prices come from a dated table, control_plane.json. The numbers of calls and requests were counted in a rehearsal of
a night. Free tiers are ignored, although those of Cloud Run and of the log are at least twenty times what a month of
nights needs.

Jobs of Cloud Scheduler are not included, because their price is per month, however often they fire; the first three of
a billing account are free. Requests to Compute Engine, IAM and Cloud Scheduler are free.
"""

from __future__ import annotations

from decimal import Decimal

from spotrun.clouds.gcp.machine import MIB_PER_GIB
from spotrun.clouds.night_requests import calls_of_a_night, of_all
from spotrun.folder.run_calls import Calls
from spotrun.run.price_tables import PriceTable, price_table

MEMORY_MB = 512
"""
Memory of the service in MB (it has one processor). nights.py requests this much memory, and passes the number to the
service.
"""
TICK_S = Decimal("0.5")
"""
Seconds that a call of the service takes if its process still has the runner in memory. In this time, Google answers
about ten requests, one after another.
"""
COLD_S = Decimal(10)
"""
Seconds that a call takes in a new process, which has to fetch the archive, import everything and read the ledger. The
start of the process is billed too.
"""
BEGIN_S = Decimal(60)
"""
Seconds that a night's first call takes. This call creates the run, requests the first instance, and waits until the
instance is launched.
"""
ROUNDED_S = Decimal("0.05")
"""Seconds that rounding adds to a call on average, because Google rounds the time of each call up to the next 0.1 s."""
LOG_BYTES_A_CALL = 1000
"""Bytes that Cloud Run itself logs for each call."""


def prices() -> PriceTable:
    return price_table(__package__, "control_plane.json", "calls of the runner of a night")


def usd_of_a_night(hours: float) -> Decimal:
    """Return the expected cost of a night whose run takes `hours`."""
    calls = calls_of_a_night(hours)
    seconds = calls.ticks * TICK_S + calls.colds * COLD_S + BEGIN_S
    return (
        _usd_of_service(calls.all, seconds, MEMORY_MB)
        + _usd_of_requests(calls.asked.gets, calls.asked.puts)
        + _usd_of_log(calls.all, 0)
    )


def usd_of(calls: Calls) -> Decimal:
    """
    Return the cost of all calls of the service. For some calls, the requests that they made are unknown. Each of these
    is assumed to cost as much as the others on average.
    """
    counted = (
        _usd_of_service(calls.calls, Decimal(repr(calls.seconds)), calls.memory_mb)
        + _usd_of_requests(calls.reads, calls.writes)
        + _usd_of_log(calls.calls, calls.log_bytes)
    )
    return of_all(counted, calls)


def _usd_of_service(calls: Decimal | int, seconds: Decimal, memory_mb: int) -> Decimal:
    usd, gib = prices().prices, Decimal(memory_mb) / MIB_PER_GIB
    a_second = usd["run_vcpu_second"] + gib * usd["run_gib_second"]
    return calls * usd["run_request"] + (seconds + calls * ROUNDED_S) * a_second


def _usd_of_requests(reads: Decimal | int, writes: Decimal | int) -> Decimal:
    usd = prices().prices
    return reads * usd["gcs_class_b"] + writes * usd["gcs_class_a"]


def _usd_of_log(calls: Decimal | int, own_bytes: int) -> Decimal:
    return (calls * LOG_BYTES_A_CALL + own_bytes) * prices().prices["log_gib"] / 2**30
