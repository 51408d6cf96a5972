"""
Estimates hazards from the interruption rates that a cloud publishes for each instance type in a region. The estimates
are used for pools that have not been observed yet.
"""

from __future__ import annotations

import re

HIGHEST_PERCENT = 25.0
"""
The share of instances lost in a month, in percent, that is assumed for the band ">20%". The band has no upper bound, so
a quarter is added to its lower bound.
"""


def relative_hazard(band: str) -> float:
    """
    Return how often a pool in `band` ("<5%", "5-10%", ">20%") is lost, relative to a pool in the highest band. The
    middle of each band is used.

    A pool without observations is assumed to be in the highest band (strategies/history.py), and so is a pool whose
    band is unknown. So knowing a pool's band can only improve its estimate.

    A band is an average over a month and a whole region, while a run's instances last hours. So it has little
    weight: it only decides between pools of about the same price, and only until there are observations.
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
