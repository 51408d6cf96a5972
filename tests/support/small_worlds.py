"""Simulated worlds of an hour's work in two zones."""

from __future__ import annotations

from spotrun.offering import CapacityType
from spotrun.spec.model import RunSpec
from tests.support.world import Faults, SimulatedWorld, TickMarket, Timings, Training
from tests.support.worlds import offer

SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND


HOUR_S = 3600.0


STEADY = Timings(
    pending_s=(30.0, 30.0),
    boot_s=(60.0, 60.0),
    setup_s=(60.0, 60.0),
    restore_s=(30.0, 30.0),
    warm_restore_s=(5.0, 5.0),
    unannounced=0.0,
)


SUDDEN = Timings(unannounced=1.0)


ALL_FAULTS = Faults(
    launch_lost=0.3, hidden_s=(0, 30), cloud_fails=0.1, store_fails=0.05, store_slow_s=0.02, runner_killed=0.02
)


ZONES = {zone: offer(zone, SPOT, "1.00") for zone in ("a", "b")}


DEAR = [offer(zone, ON_DEMAND, "3.00") for zone in ("a", "b")]


def spec(**policy: object) -> RunSpec:
    wanted = {"deadline": "2h", "expected_work": "1h", **policy}
    job = {"name": "demo", "workdir": "/tmp", "train": {"run": "true"}, "policy": wanted, "checkpoint": {"every": "5m"}}
    return RunSpec.model_validate(job)


def market(*pattern: str, tick_s: float = 600.0) -> TickMarket:
    """One word for each tick, one letter for each zone that has spot: "ab", "b", "-". Spot costs a dollar an hour."""
    ticks = [{zone: 1.0 for zone in ZONES if zone in tick} for tick in pattern]
    return TickMarket(ticks, tick_s, ZONES, DEAR)


CHANGING = ("ab", "ab", "b", "b", "ab", "a", "-", "-", "ab", "ab", "a", "b", "a", "ab")


def world(seed: int = 0, *pattern: str, **more: object) -> SimulatedWorld:
    """An hour of work that is due in two."""
    more.setdefault("idle_s", 30.0)
    return SimulatedWorld(spec(), Training(steps=3600), market(*(pattern or CHANGING), tick_s=601.5), seed=seed, **more)
