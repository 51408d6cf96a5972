"""A job of the tick model as a whole run, so that the two can be compared: same market, same work, same changeover."""

from __future__ import annotations

from spotrun.policy import assumptions
from spotrun.spec.model import RunSpec
from spotrun.strategies.port import Job
from tests.support.world.market import SimulatedMarket
from tests.support.world.timings import Timings, Training
from tests.support.world.world import SimulatedWorld

IDLE_S = 30.0
"""
Seconds between two ticks that would see nothing new; ticks in between are left out: 20 times as fast, for a few seconds
in the figures.
"""
CHECKPOINT_BYTES = 10**8
WARM_SHARE = 0.1
"""The share of a restore that is left at the takeover, after a standby has done the rest."""


def world_of(
    job: Job,
    spec: RunSpec,
    market: SimulatedMarket,
    seed: int,
    *,
    unbilled_s: float = 0.0,
    later_start: float = 1.0,
    bucket_region: str = "",
    checkpoint_bytes: int = CHECKPOINT_BYTES,
) -> SimulatedWorld:
    """
    Return the job under `spec` in a world of that seed, its checkpoints in a bucket of that region.

    The first `unbilled_s` of a changeover cost nothing; boot, set-up and restore share the rest equally. If later
    starts take only the share `later_start` of a changeover, the set-up is so long that unpacking it saves that much.
    """
    pending_s = min(unbilled_s, job.changeover_s)
    spent_s = job.changeover_s - pending_s
    unpacks = later_start < 1
    setup_s = (1 - later_start) * job.changeover_s / (1 - assumptions.UNPACK_SHARE) if unpacks else spent_s / 3
    half = (spent_s - setup_s) / 2
    return SimulatedWorld(
        spec,
        Training(steps=round(job.work_s), step_s=1.0, size_bytes=checkpoint_bytes),
        market,
        seed=seed,
        timings=Timings(
            pending_s=(pending_s, pending_s),
            boot_s=(half, half),
            setup_s=(setup_s, setup_s),
            unpack=assumptions.UNPACK_SHARE if unpacks else 1.0,
            restore_s=(half, half),
            warm_restore_s=(WARM_SHARE * half, WARM_SHARE * half),
        ),
        idle_s=IDLE_S,
        bucket_region=bucket_region,
    )
