"""What a cloud takes for calling the runner of a night: a dated table in its own room, control_plane.json."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from spotrun.folder.run_calls import Calls
from spotrun.run.billing import to_nano


class Prices(NamedTuple):
    """US dollars, as they were read on a day."""

    read: str
    usd: dict[str, Decimal]


def of_all(usd: Decimal, calls: Calls) -> Decimal:
    """
    What all calls cost if those that were counted cost so much, to the nano-dollar: the others are taken to cost as
    much.
    """
    return to_nano(usd * (calls.calls + calls.uncounted) / max(calls.calls, 1))


@cache
def prices_of(room: str) -> Prices:
    """Of the cloud whose package it is."""
    table: dict[str, Any] = json.loads(files(room).joinpath("control_plane.json").read_text())
    return Prices(table["read"], {name: Decimal(usd) for name, usd in table["usd"].items()})
