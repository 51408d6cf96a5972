"""Reads the cloud's published interruption rates of a type in a region, for pools without any observation yet."""

from __future__ import annotations

import re

HIGHEST_PERCENT = 25.0
"""Monthly share, in percent, for the band ">20%", which has no upper bound: a quarter more than its lower bound."""


def relative_hazard(band: str) -> float:
    """
    Return how often a pool in `band` ("<5%", "5-10%", ">20%") is lost, relative to a pool in the highest band, computed
    from the middles of the bands.

    The prior of a pool without observations (strategies/history.py) is for the highest band, so a band can only make
    its pool look better; an unknown band counts as 1. A band covers a month and a whole region, while the instances of
    a run last hours. So a band decides only between pools of about the same price, and only until there are
    observations.
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
