"""
What nights cost apart from what they rent: the function, its log, and what it asks the store. The prices are those of a
dated table, control_plane.json; the calls are those of a rehearsed night, which tests/cloud/test_night_function.py
counts. Lambda is taken at its list price, although most accounts stay below its free tier.

Free are the first 14 million calls of EventBridge Scheduler a month, EC2's events on the account's own bus, and what is
asked of EC2, IAM and the schedules' own API.
"""

from __future__ import annotations

import json
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

MEMORY_GB = Decimal("0.25")
"""Of the function, in night.yaml."""
TICK_S = Decimal("0.5")
"""Of a call that finds its runner in memory: about ten answers of S3 and EC2, one after another."""
COLD_S = Decimal(6)
"""Of one that has to import everything and to read the ledger."""
BEGIN_S = Decimal(30)
"""Of one that creates the run and asks for the first instance."""
COLD_EVERY_H = Decimal(2)
"""AWS moves a function after some hours, though it is called each minute; then the ledger is read anew."""
LOG_BYTES_A_CALL = 60


class Asked(NamedTuple):
    """Requests to the store: those that read, and those that write or list."""

    gets: Decimal
    puts: Decimal


BEGIN = Asked(Decimal(40), Decimal(30))
"""To begin a night, with all its calls in the hour that follows."""
TICK = Asked(Decimal("3.9"), Decimal("0.78"))
"""In each minute of its run."""
COLD = Asked(Decimal(70), Decimal(5))
"""With a ledger of an hour's or some hours' commits."""


class Prices(NamedTuple):
    """US dollars, as they were read on a day."""

    read: str
    usd: dict[str, Decimal]


@cache
def prices() -> Prices:
    table: dict[str, Any] = json.loads(files(__package__).joinpath("control_plane.json").read_text())
    return Prices(table["read"], {name: Decimal(usd) for name, usd in table["usd"].items()})


def usd_of_a_night(hours: float) -> Decimal:
    """For a run that lives so long."""
    usd = prices().usd
    ticks = Decimal(str(hours)) * 60
    colds = Decimal(str(hours)) / COLD_EVERY_H + 1
    calls = ticks + 5
    seconds = ticks * TICK_S + colds * COLD_S + BEGIN_S
    gets = BEGIN.gets + ticks * TICK.gets + colds * COLD.gets
    puts = BEGIN.puts + ticks * TICK.puts + colds * COLD.puts
    return (
        calls * usd["lambda_request"]
        + seconds * MEMORY_GB * usd["lambda_gb_second"]
        + gets * usd["s3_get"]
        + puts * usd["s3_put"]
        + calls * LOG_BYTES_A_CALL * usd["log_gb"] / 10**9
    )
