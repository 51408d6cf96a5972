"""
Recorded spot markets. Which number means available differs between publishers, so each reader says its polarity:

    skypilot   the spot-traces JSON of SkyPilot, {"metadata": {"gap_seconds"}, "data": [...]}, 1 = available
    adrs       the copies of them in the ADRS benchmark, 1 = UNavailable
    windows    an npz of aligned windows: up (bits, 1 = available), ticks, price, zone, gap_s
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np

from spotrun.errors import SpotrunError

AVAILABLE = {"skypilot": 1, "adrs": 0}


class Windows(msgspec.Struct, frozen=True):
    """Markets of several zones over equal stretches of time. `up` and `price` have the shape (window, tick, zone)."""

    up: np.ndarray
    price: np.ndarray
    zones: tuple[str, ...]
    tick_s: float
    polarity: str

    def ticks(self, window: int, zones: tuple[int, ...]) -> list[dict[str, float]]:
        """Per tick the zones that have spot, with their price, as the simulator takes it."""
        columns = list(zones)
        up, price = self.up[window][:, columns].tolist(), self.price[window][:, columns].tolist()
        names = [self.zones[zone] for zone in zones]
        return [
            {name: cost for name, has, cost in zip(names, here, costs, strict=True) if has}
            for here, costs in zip(up, price, strict=True)
        ]


def read_windows(path: Path) -> Windows:
    """The npz of aligned windows, 1 = available."""
    if not path.is_file():
        raise SpotrunError(
            f"no market windows at {path}", hint="name the folder that holds the .npz file with --traces"
        )
    with np.load(path, allow_pickle=False) as held:
        ticks = int(held["ticks"])
        up = np.unpackbits(held["up"], axis=1)[:, :ticks].astype(bool)
        zones = tuple(str(zone) for zone in held["zone"])
        price = held["price"].astype(float)
        return Windows(up, price, zones, float(held["gap_s"]), "1 = available")


def read_json(path: Path, published_as: str, price_usd_per_hour: float) -> Windows:
    """One zone's record as one window at a constant price; `published_as`, skypilot or adrs, sets the polarity."""
    held = json.loads(path.read_text())
    available = AVAILABLE[published_as]
    up = (np.asarray(held["data"]) == available)[None, :, None]
    polarity = f"{available} = available ({published_as})"
    return Windows(
        up, np.full(up.shape, price_usd_per_hour), (path.stem,), float(held["metadata"]["gap_seconds"]), polarity
    )
