"""What a cloud takes for calling the runner of a night: a dated table in its own room, control_plane.json."""

from __future__ import annotations

import json
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple


class Prices(NamedTuple):
    """US dollars, as they were read on a day."""

    read: str
    usd: dict[str, Decimal]


@cache
def prices_of(room: str) -> Prices:
    """Of the cloud whose package it is."""
    table: dict[str, Any] = json.loads(files(room).joinpath("control_plane.json").read_text())
    return Prices(table["read"], {name: Decimal(usd) for name, usd in table["usd"].items()})
