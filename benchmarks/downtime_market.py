"""
The spot market of `benchmarks.downtime`: where there is capacity, when it is taken, how long machines take to start.

Zones come and go as in `spotrun.simulation.generator`, which was fitted to a record of nine V100 zones in three
regions. A loss that is announced is announced `notice_s` before, and from then on the zone gives out nothing more.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import ceil

import numpy as np

from spotrun.simulation.generator import generate

REGIONS = ("east",) * 4 + ("mid",) * 2 + ("west",) * 3
ZONES = tuple(f"{region}-{number}" for number, region in enumerate(REGIONS))
REGION_OF = dict(zip(ZONES, REGIONS, strict=True))
TICK_S = 7.3
"""No multiple of anything that polls."""


@dataclass(frozen=True)
class Setting:
    """
    What is the same for all; seconds. Of all losses, the share `unannounced` comes without a notice.

    A restore is the imports of the training script with the download of the checkpoint beside them. A checkpoint is
    taken every `every_s` and is durable `commit_s` later; training does not stand still for it.
    """

    notice_s: float = 120.0
    unannounced: float = 0.1
    boot_s: tuple[float, float] = (60.0, 120.0)
    setup_s: tuple[float, float] = (0.0, 180.0)
    imports_s: float = 8.0
    fetch_s: float = 4.0
    every_s: float = 85.0
    commit_s: float = 10.0
    horizon_s: float = 12 * 3600.0


@dataclass(frozen=True)
class Loss:
    """A zone's capacity is taken at `at_s`; `told_s` is when that was announced, None where it was not."""

    at_s: float
    told_s: float | None


class Market:
    """One market, by its seed. Times are seconds since the job was launched."""

    def __init__(self, seed: int, setting: Setting) -> None:
        self.setting = setting
        self._seed = seed
        self._up = generate(REGIONS, ceil(setting.horizon_s / TICK_S) + 1, TICK_S, seed)
        dice = np.random.default_rng([seed, 1])
        self._losses = {zone: self._losses_of(number, dice) for number, zone in enumerate(ZONES)}

    def _losses_of(self, number: int, dice: np.random.Generator) -> list[Loss]:
        falls = np.flatnonzero(self._up[:-1, number] & ~self._up[1:, number]) + 1
        moments = [float(tick) * TICK_S for tick in falls]
        told = dice.random(len(moments)) >= self.setting.unannounced
        return [
            Loss(at_s, at_s - self.setting.notice_s if is_told else None)
            for at_s, is_told in zip(moments, told, strict=True)
        ]

    def has(self, zone: str, now_s: float) -> bool:
        """Whether an instance asked for now would be given."""
        loss = self.loss_after(zone, now_s)
        going = loss is not None and loss.told_s is not None and loss.told_s <= now_s
        return bool(self._up[int(now_s / TICK_S), ZONES.index(zone)]) and not going

    def loss_after(self, zone: str, now_s: float) -> Loss | None:
        """The end of what runs in `zone` now."""
        losses = self._losses[zone]
        number = bisect_right(losses, now_s, key=lambda loss: loss.at_s)
        return losses[number] if number < len(losses) else None

    def start_s(self, ordinal: int) -> tuple[float, float]:
        """Boot and set-up of the job's instance number `ordinal`: the same whoever launches it, and wherever."""
        dice = np.random.default_rng([self._seed, 2, ordinal])
        return float(dice.uniform(*self.setting.boot_s)), float(dice.uniform(*self.setting.setup_s))
