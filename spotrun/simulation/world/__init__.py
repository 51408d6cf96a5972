"""Whole runs, simulated: see `spotrun.simulation.world.world`."""

from spotrun.simulation.world.faults import Faults
from spotrun.simulation.world.market import CalmMarket, SimulatedMarket, TickMarket
from spotrun.simulation.world.result import RunResult
from spotrun.simulation.world.timings import Timings, Training
from spotrun.simulation.world.world import SimulatedWorld

__all__ = [
    "CalmMarket",
    "Faults",
    "RunResult",
    "SimulatedMarket",
    "SimulatedWorld",
    "TickMarket",
    "Timings",
    "Training",
]
