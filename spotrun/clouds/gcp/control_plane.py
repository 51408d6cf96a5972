"""
What nights cost apart from what they rent: the service that is called, and what it asks the store. The prices are those
of a dated table, control_plane.json; the calls are those of a rehearsed night. Cloud Run is taken at its list price,
although its free tier is twenty times what a month of nights needs.

The jobs of Cloud Scheduler are not in it: they cost by the month, whether they fire or not, and the first three of a
billing account are free. What is asked of Compute Engine, IAM and Cloud Scheduler is free.
"""

from __future__ import annotations

from decimal import Decimal

from spotrun.clouds.night_prices import Prices, prices_of
from spotrun.clouds.night_requests import calls_of_a_night

MEMORY_GIB = Decimal("0.5")
"""Of the service, in nights.py, which has one processor."""
TICK_S = Decimal("0.5")
"""Of a call that finds its runner in memory: about ten answers of Google, one after another."""
COLD_S = Decimal(10)
"""Of one that has to fetch the archive, to import everything and to read the ledger. Starting is billed too."""
BEGIN_S = Decimal(60)
"""Of one that creates the run and asks for the first instance, whose launch is waited for."""


def prices() -> Prices:
    return prices_of(__package__)


def usd_of_a_night(hours: float) -> Decimal:
    """For a run that lives so long."""
    usd = prices().usd
    calls = calls_of_a_night(hours)
    seconds = calls.ticks * TICK_S + calls.colds * COLD_S + BEGIN_S
    return (
        calls.all * usd["run_request"]
        + seconds * (usd["run_vcpu_second"] + MEMORY_GIB * usd["run_gib_second"])
        + calls.asked.gets * usd["gcs_class_b"]
        + calls.asked.puts * usd["gcs_class_a"]
    )
