"""Computes how fast a training runs at a place of a cost study, if necessary from the speed at another place."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from spotrun.estimate.cost_study import CostStudy, Like


def samples_per_second(study: CostStudy, place: str, training: str) -> Decimal | None:
    """
    Return a training's speed at a place; None if it is unknown. If the place is `like` another place, its speed is

        the other place's speed * devices * mean of the training's `times` * speedup of the parts that are faster

    If the other place is in turn `like` a third place, the third place's speed is multiplied by both places' factors.
    """
    times, faster = Decimal(1), dict[str, Decimal]()
    while (like := study.places[place].like) is not None:
        mean = mean_of_times(like, training)
        if mean is None:
            return None
        times *= like.devices * mean
        for part, more in like.faster.items():
            faster[part] = faster.get(part, Decimal(1)) * more
        place = like.place
    speed = study.places[place].samples_per_second.get(training)
    gained = speedup(study.trainings[training].step_s, faster) if faster else Decimal(1)
    return None if speed is None or gained is None else speed * times * gained


def mean_of_times(like: Like, training: str) -> Decimal | None:
    """
    Return the mean of the numbers in `like.times` for a training: 1 if `times` is empty, and None if it has numbers
    only for other trainings.
    """
    if not like.times:
        return Decimal(1)
    times = like.times.get(training)
    return None if times is None else sum(times, Decimal(0)) / len(times)


def speedup(step_s: Mapping[str, Decimal], faster: Mapping[str, Decimal]) -> Decimal | None:
    """
    Return the factor by which a step becomes faster if some of its parts become faster (Amdahl 1967). Return None if
    the seconds of the parts are unknown.

        sum of the parts / sum of the parts, each divided by its factor in `faster`
    """
    if not step_s:
        return None
    return sum(step_s.values()) / sum(
        (part / faster.get(name, Decimal(1)) for name, part in step_s.items()), Decimal(0)
    )
