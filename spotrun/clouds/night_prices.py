"""Prices that a cloud charges for calling the runner of a night: a dated table in its package, control_plane.json."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from spotrun.folder.run_calls import Calls
from spotrun.run.billing import to_nano


class Prices(NamedTuple):
    """Prices in US dollars, as read on the day `read`."""

    read: str
    usd: dict[str, Decimal]


def of_all(usd: Decimal, calls: Calls) -> Decimal:
    """
    Return what all calls cost, to the nano-dollar, if the counted ones cost `usd`: each uncounted call is assumed to
    cost the same.
    """
    return to_nano(usd * (calls.calls + calls.uncounted) / max(calls.calls, 1))


@cache
def prices_of(room: str) -> Prices:
    """Read the prices of the cloud whose package is `room`."""
    table: dict[str, Any] = json.loads(files(room).joinpath("control_plane.json").read_text())
    return Prices(table["read"], {name: Decimal(usd) for name, usd in table["usd"].items()})
