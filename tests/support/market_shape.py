"""What one sees of a spot market, in the terms in which spotrun/forecast/generator.py was fitted to a record."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import numpy as np

LATER_S = 600.0
"""How long after a loss `shape` looks again."""


class Shape(msgspec.Struct, frozen=True):
    """
    What one sees of a market: hours up, and where spot is ten minutes after a loss in some zone.

    `again` in the same zone, `sibling` in another of its region, `elsewhere` in another region; None where there is
    none.
    """

    up_share: float
    up_median_h: float
    up_mean_h: float
    again: float | None
    sibling: float | None
    elsewhere: float | None


def shape(markets: Sequence[np.ndarray], regions: Sequence[str], tick_s: float) -> Shape:
    """The shape of several markets, each (tick, zone). Stretches that are cut off by the record's ends do not count."""
    later = max(1, round(LATER_S / tick_s))
    lives: list[float] = []
    seen: dict[str, list[bool]] = {"again": [], "sibling": [], "elsewhere": []}
    for up in markets:
        for zone in range(up.shape[1]):
            turns = np.flatnonzero(np.diff(up[:, zone].astype(np.int8)))
            lives += [(b - a) * tick_s / 3600 for a, b in pairwise(turns) if not up[a, zone]]
            for tick in turns[up[turns, zone]]:
                if tick + 1 + later >= len(up):
                    continue
                for other in range(up.shape[1]):
                    near = "sibling" if regions[other] == regions[zone] else "elsewhere"
                    seen["again" if other == zone else near].append(bool(up[tick + 1 + later, other]))
    share = float(np.mean([up.mean() for up in markets]))
    means = {name: float(np.mean(found)) if found else None for name, found in seen.items()}
    return Shape(share, float(np.median(lives)), float(np.mean(lives)), **means)
