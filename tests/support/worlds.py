"""The market that tests of the runner share, and a run with a deadline in a simulated world."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from decimal import Decimal

from spotrun.offering import CapacityType, Offering
from spotrun.spec.model import RunSpec
from tests.support.world import SimulatedWorld, TickMarket, Timings, Training

SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND


def offer(zone: str, capacity_type: CapacityType = SPOT, price: str = "1.00", instance_type: str = "gpu") -> Offering:
    return Offering(
        cloud="local",
        region="local-1",
        zone=zone,
        instance_type=instance_type,
        capacity_type=capacity_type,
        price_usd_per_hour=Decimal(price),
        cpus=4,
        memory_gib=16,
        simulated=True,
    )


MARKET = (
    offer("local-1a", SPOT, "1.00"),
    offer("local-1b", SPOT, "1.10"),
    offer("local-1a", ON_DEMAND, "3.00"),
    offer("local-1b", ON_DEMAND, "3.00"),
)
ZONES = {each.zone: each for each in MARKET if each.capacity_type is SPOT}
EVERYWHERE, NOWHERE = frozenset(ZONES), frozenset[str]()


def weather(pattern: Sequence[Collection[str]], hold_s: float = 3600.0) -> TickMarket:
    """MARKET, with spot in the zones of each entry of `pattern` for `hold_s`, over and over."""
    ticks = [{zone: float(ZONES[zone].price_usd_per_hour) for zone in sorted(zones)} for zones in pattern]
    return TickMarket(ticks, hold_s, ZONES, [each for each in MARKET if each.capacity_type is ON_DEMAND])


def calm() -> TickMarket:
    return weather([EVERYWHERE])


def no_spot() -> TickMarket:
    return weather([NOWHERE])


class DeadlineWorld(SimulatedWorld):
    """
    One run of `steps` steps, a second each, that is due in `deadline_s`. Instances boot and restore for `changeover_s`
    together, and are lost without notice. The runner ticks every `tick_s`.
    """

    def __init__(
        self, steps: int, changeover_s: float, tick_s: float, market: TickMarket, deadline_s: float, **policy: object
    ) -> None:
        every_s, half = max(30.0, steps / 10), (changeover_s / 2, changeover_s / 2)
        wanted = {
            "name": "demo",
            "workdir": "/tmp",
            "train": {"run": "true"},
            "policy": {"deadline": timedelta(seconds=deadline_s), **policy},
            "checkpoint": {"every": f"{every_s:.3f}s"},
        }
        at_once = (0.0, 0.0)
        super().__init__(
            RunSpec.from_dict(wanted),
            Training(steps=steps, epochs=4, stall_s=0.0, upload_s=0.0),
            market,
            timings=Timings(
                pending_s=half,
                boot_s=at_once,
                setup_s=at_once,
                restore_s=half,
                warm_restore_s=half,
                unannounced=1.0,
            ),
            tick_s=tick_s,
        )

    def finished_s(self, within_s: float) -> float | None:
        """When the training was completed, in seconds after the launch; None if it was not."""
        return self.run(within_s).finished_s

    @property
    def bought(self) -> list[str]:
        """The capacity type of each attempt."""
        return list(self.result.bought)
