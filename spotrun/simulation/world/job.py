"""A job of the tick model as a whole run, so that the two can be compared: same market, same work, same changeover."""

from __future__ import annotations

from spotrun.simulation.world.habits import Habits, Training
from spotrun.simulation.world.market import Market
from spotrun.simulation.world.world import SimulatedWorld
from spotrun.spec import RunSpec
from spotrun.strategies.port import Job

IDLE_S = 30.0
"""Looks that would see nothing new are left out for so long: 20 times as fast, for a few seconds in the figures."""
CHECKPOINT_BYTES = 10**8
WARM_SHARE = 0.1
"""Of a restore, where a standby had done the rest before it took over."""


def world_of(
    job: Job,
    spec: RunSpec,
    market: Market,
    seed: int,
    *,
    unbilled_s: float = 0.0,
    bucket_region: str = "",
    checkpoint_bytes: int = CHECKPOINT_BYTES,
) -> SimulatedWorld:
    """
    The job under `spec` in a world of that seed, its checkpoints in a bucket of that region.

    The first `unbilled_s` of a changeover cost nothing; the rest is spent on boot, set-up and restore alike.
    """
    pending_s = min(unbilled_s, job.changeover_s)
    third = (job.changeover_s - pending_s) / 3
    return SimulatedWorld(
        spec,
        Training(steps=round(job.work_s), step_s=1.0, size_bytes=checkpoint_bytes),
        market,
        seed=seed,
        habits=Habits(
            pending_s=(pending_s, pending_s),
            boot_s=(third, third),
            setup_s=(third, third),
            restore_s=(third, third),
            warm_restore_s=(WARM_SHARE * third, WARM_SHARE * third),
        ),
        idle_s=IDLE_S,
        bucket_region=bucket_region,
    )
