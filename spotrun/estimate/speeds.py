"""How fast a place trains: measured there, or by the speed of another place."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from spotrun.spec.cost_study import CostStudy, Like, Training


def samples_per_second(study: CostStudy, place: str, training: str) -> Decimal | None:
    """None if the study does not say it, nor for any place that this one is like."""
    found = study.places[place]
    if found.like is None:
        return found.samples_per_second.get(training)
    other = samples_per_second(study, found.like.place, training)
    times = times_as_fast(found.like, study.trainings[training], training)
    return None if other is None or times is None else other * times


def times_as_fast(like: Like, training: Training, name: str) -> Decimal | None:
    """
    devices * mean of the `times` of this training * speedup of the parts that are faster

    None if the place says it of other trainings only.
    """
    times = mean_of_times(like, name)
    gained = speedup(training.step_s, like.faster) if like.faster else Decimal(1)
    return None if times is None or gained is None else like.devices * times * gained


def mean_of_times(like: Like, training: str) -> Decimal | None:
    """1 where a place is like the other one in all trainings."""
    if not like.times:
        return Decimal(1)
    times = like.times.get(training)
    return None if times is None else sum(times, Decimal(0)) / len(times)


def speedup(step_s: Mapping[str, Decimal], faster: Mapping[str, Decimal]) -> Decimal | None:
    """
    How much faster a step is of which some parts are (Amdahl 1967); None if its parts are not known.

        sum of the parts / sum of the parts, each divided by how much faster it is
    """
    if not step_s:
        return None
    return sum(step_s.values()) / sum(
        (part / faster.get(name, Decimal(1)) for name, part in step_s.items()), Decimal(0)
    )
