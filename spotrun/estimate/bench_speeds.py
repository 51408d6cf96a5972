"""Fills in a cost study's speeds from the results of `spotrun bench`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

from spotrun.estimate.cost_study import CostStudy, Measured, Place


class BenchedSpeed(NamedTuple):
    """
    The training speed of one instance, the run that measured it, and the time of the measurement.
    """

    samples_per_second: Decimal
    run: str
    at: datetime


def with_benches(study: CostStudy, found_for: Callable[[str, Measured], BenchedSpeed]) -> CostStudy:
    """
    Return the study with each `measured` speed replaced by the speed that `spotrun bench` measured. `found_for` looks
    it up; it is called with the place's name and the value of `measured`.
    """
    told: list[str] = []

    def measured(name: str, place: Place) -> Place:
        speeds = dict(place.samples_per_second)
        for training, by in place.measured.items():
            found = found_for(name, by)
            speeds[training] = found.samples_per_second * by.count
            told.append(f"{name}: the speed of {training} was measured on {found.at:%Y-%m-%d}, in run {found.run}")
        return place.model_copy(update={"samples_per_second": speeds, "measured": {}})

    changed = study.with_places(measured)
    return changed.model_copy(update={"assumptions": (*changed.assumptions, *told)})
