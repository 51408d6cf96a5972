"""
The cloud's own figures for how often it takes back spot instances of a type in a region, for pools without any
observation yet.
"""

from __future__ import annotations

import re

HIGHEST_PERCENT = 25.0
"""Monthly share, in percent, for the band ">20%": a quarter more than its bound, as it has no upper one."""


def relative_hazard(band: str) -> float:
    """
    Return how often a pool in that band ("<5%", "5-10%", ">20%") is lost, relative to one in the highest band, by the
    middles of the bands.

    The prior of a pool never seen (strategies/history.py) holds for the highest band, so a band can only favour its
    pool; an unknown band counts as 1. A band is of a month, a type and a whole region, while lives that matter here are
    of hours: so it decides between pools of about the same price, and yields to observations.
    """
    bounds = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", band)]
    match bounds:
        case [low, high]:
            middle = (low + high) / 2
        case [high] if band.startswith("<"):
            middle = high / 2
        case _:
            middle = HIGHEST_PERCENT
    return min(1.0, middle / HIGHEST_PERCENT)
