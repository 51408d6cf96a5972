"""
Reads recorded spot markets. Each format encodes the availability of spot in its own way. These formats are supported:

    skypilot   the spot-traces JSON of SkyPilot, {"metadata": {"gap_seconds"}, "data": [...]}: either 1 = available, or
               the number of running instances; then spot is available while at least `nodes` instances run
    adrs       copies of SkyPilot's records in the ADRS benchmark: 0 = available, 1 = UNavailable
    windows    an npz of several zones, cut into windows of equal length with the same ticks in all zones: up (bits,
               1 = available), ticks, price, zone, gap_s
    bamboo     the csv of Bamboo, `ms,add|remove,node`: available while at least `nodes` nodes run
    counts     `date, time, running instances` (.txt): available while at least `nodes` instances run
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from spotrun.errors import SpotrunError
from spotrun.units import count_of, parse_json

Row = TypeVar("Row")
AVAILABLE = {"skypilot": 1, "adrs": 0}
COUNT_TICK_S = 60.0
"""
Tick length, in seconds, for records that have no ticks. Such a record lists only the times at which the number of
running instances changed.
"""


class Windows(msgspec.Struct, frozen=True):
    """Markets of several zones in windows of equal length. `up` and `price` have the shape (window, tick, zone)."""

    up: np.ndarray
    price: np.ndarray
    zones: tuple[str, ...]
    tick_s: float
    polarity: str

    def ticks(self, window: int, zones: tuple[int, ...]) -> list[dict[str, float]]:
        """
        Return one window in the form that the simulator reads: for each tick, the zones among `zones` that have spot,
        with their prices.
        """
        columns = list(zones)
        up, price = self.up[window][:, columns].tolist(), self.price[window][:, columns].tolist()
        names = [self.zones[zone] for zone in zones]
        found: list[dict[str, float]] = []
        for here, costs in zip(up, price, strict=True):
            spot = {name: cost for name, has, cost in zip(names, here, costs, strict=True) if has}
            found.append(found[-1] if found and found[-1] == spot else spot)
        return found


def read_windows(path: Path) -> Windows:
    """Read an npz file in the format `windows` (see the top of this file), in which 1 means available."""
    if not path.is_file():
        raise SpotrunError(f"no market windows at {path}", hint="use --traces to name the folder of the .npz file")
    with np.load(path, allow_pickle=False) as held:
        ticks = int(held["ticks"])
        up = np.unpackbits(held["up"], axis=1)[:, :ticks].astype(bool)
        zones = tuple(str(zone) for zone in held["zone"])
        price = held["price"].astype(float)
        return Windows(up, price, zones, float(held["gap_s"]), "1 = available")


def read_json(path: Path, published_as: str, nodes: int, price_usd_per_hour: float) -> Windows:
    """
    Read the record of one zone as one window at a constant price. `published_as` is the record's format (skypilot or
    adrs), which decides what number means "available".

    Raises:
        ValueError: a value is not a number of instances, or is above 1 in a format that has only 0 and 1.
    """
    held = parse_json(path.read_text())
    seen, gap_s = np.asarray(held["data"]), float(held["metadata"]["gap_seconds"])
    if seen.ndim != 1 or not seen.size or seen.dtype.kind not in "biuf" or not ((seen >= 0) & (seen % 1 == 0)).all():
        raise ValueError("data is not a list of whole numbers from 0 up")
    if not 0 < gap_s < float("inf"):
        raise ValueError(f"gap_seconds is {gap_s:g}")
    most, available = int(seen.max()), AVAILABLE[published_as]
    if most > 1 and not available:
        raise ValueError(
            f"it counts up to {most} instances, but a record in the format {published_as} has only 0 and 1"
        )
    up = (seen >= nodes if available else seen == available)[None, :, None]
    counted = available and max(nodes, most) > 1
    polarity = _at_least(nodes) if counted else f"{available} = available ({published_as})"
    return Windows(up, np.full(up.shape, price_usd_per_hour), (path.stem,), gap_s, polarity)


def _at_least(nodes: int) -> str:
    return f"at least {nodes} running = available"


def read_bamboo(path: Path, nodes: int, price_usd_per_hour: float) -> Windows:
    """
    Read a list of instances that join and leave a group. The result has one zone. Spot is available there while at
    least `nodes` instances are in the group.
    """

    def change(at_ms: str, what: str, node: str) -> tuple[float, int]:
        if what not in ("add", "remove"):
            raise ValueError(f"{what!r} is neither add nor remove")
        return float(at_ms) / 1000, 1 if what == "add" else -1

    changes = _rows(path, change)
    running = accumulate(step for _, step in changes)
    return _counted(
        path, [(at_s, now) for (at_s, _), now in zip(changes, running, strict=True)], nodes, price_usd_per_hour
    )


def read_counts(path: Path, nodes: int, price_usd_per_hour: float) -> Windows:
    """
    Read a list of times and the number of instances running at each. The result has one zone. Spot is available there
    while at least `nodes` instances run.
    """

    def moment(day: str, at: str, count: str) -> tuple[datetime, int]:
        return datetime.fromisoformat(f"{day.strip()} {at.strip()}"), int(count)

    rows = _rows(path, moment)
    first = min(at for at, _ in rows)
    return _counted(
        path, sorted(((at - first).total_seconds(), count) for at, count in rows), nodes, price_usd_per_hour
    )


def _rows(path: Path, read: Callable[[str, str, str], Row]) -> list[Row]:
    """
    Read a file with three columns. `read` converts the three texts of a line to a row.

    Raises:
        ValueError: a line cannot be read, or the file is empty.
    """
    found = []
    with path.open(newline="") as lines:
        for number, columns in enumerate(csv.reader(lines), 1):
            if len(columns) != 3:
                raise ValueError(f"line {number} has {count_of(len(columns), 'column')}, not 3")
            try:
                found.append(read(*columns))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
    if not found:
        raise ValueError("it is empty")
    return found


def _counted(path: Path, seen: list[tuple[float, int]], nodes: int, price_usd_per_hour: float) -> Windows:
    changes = np.array([at_s for at_s, _ in seen])
    counts = np.array([count for _, count in seen])
    moments = np.arange(changes[0], changes[-1], COUNT_TICK_S)
    up = (counts[np.searchsorted(changes, moments, side="right") - 1] >= nodes)[None, :, None]
    return Windows(up, np.full(up.shape, price_usd_per_hour), (path.stem,), COUNT_TICK_S, _at_least(nodes))


def read_any(path: Path, published_as: str, nodes: int, price_usd_per_hour: float) -> Windows:
    """
    Read a record in any of the formats that the module's docstring lists. The suffix of the file's name decides which
    format it is.

    Raises:
        SpotrunError: the file cannot be read, or is not such a record.
    """
    try:
        match path.suffix:
            case ".npz":
                return read_windows(path)
            case ".json":
                return read_json(path, published_as, nodes, price_usd_per_hour)
            case ".csv":
                return read_bamboo(path, nodes, price_usd_per_hour)
            case _:
                return read_counts(path, nodes, price_usd_per_hour)
    except IsADirectoryError as error:
        raise SpotrunError(f"{path} is a folder", hint="name a file in this folder instead") from error
    except OSError as error:
        raise SpotrunError(f"{path} cannot be read: {error.strerror}", hint="name the file of a market") from error
    except (ValueError, KeyError, TypeError, IndexError) as error:
        hint = "known formats: skypilot and adrs JSON, windows as npz, Bamboo's csv, and counts as txt"
        raise SpotrunError(f"{path} is not a record of a market: {error}", hint=hint) from error
