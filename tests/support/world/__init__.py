"""Whole runs, simulated: see `tests.support.world.world`."""

from tests.support.world.faults import Faults
from tests.support.world.market import CalmMarket, CountedMarket, SimulatedMarket, TickMarket
from tests.support.world.result import RunResult
from tests.support.world.timings import Timings, Training
from tests.support.world.world import SimulatedWorld

__all__ = [
    "CalmMarket",
    "CountedMarket",
    "Faults",
    "RunResult",
    "SimulatedMarket",
    "SimulatedWorld",
    "TickMarket",
    "Timings",
    "Training",
]
