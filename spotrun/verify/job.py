"""
Creates the jobs that a verification runs. Each is the user's job, without the settings that could make two trainings
differ.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Literal

from spotrun.spec.model import (
    BudgetSpec,
    CheckpointSpec,
    LocalMarketSpec,
    OutputsSpec,
    PolicySpec,
    ResourcesSpec,
    RetrySpec,
    RunSpec,
)
from spotrun.units import Steps

TIME_SCALE = 60.0
"""
Ratio of run time to system time in interrupted trainings. Commits are at least half a minute of run time apart; with
this ratio, that is half a second of system time.
"""
HANG_AFTER = timedelta(minutes=5)
"""Maximum system time without progress before a trainer counts as hung."""
SELDOM = Steps(1_000_000_000)
SELDOM_OF_COMMANDS = timedelta(days=30)
RESTARTS_MAX = 1000


def straight(spec: RunSpec, store: Path) -> RunSpec:
    """
    Return the job for the training without interruptions. It runs on demand, with run time passing as fast as system
    time. The interval between checkpoints is so long that none becomes due.
    """
    every = SELDOM_OF_COMMANDS if spec.train.state else SELDOM
    return _calm(spec, store, "on-demand", every, time_scale=1.0)


def interrupted(spec: RunSpec, store: Path, every: Steps) -> RunSpec:
    """Return the job for the training with kills. It runs on spot, and makes a checkpoint every `every` steps."""
    return _calm(spec, store, "spot", every, time_scale=TIME_SCALE)


def interrupted_command(spec: RunSpec, store: Path, every_s: float) -> RunSpec:
    """
    Return the job that runs the command with kills. It runs on spot, with a checkpoint every `every_s` seconds of
    system time. A checkpoint that is due while the command's files are changing is skipped.
    """
    return _calm(spec, store, "spot", timedelta(seconds=every_s * TIME_SCALE), time_scale=TIME_SCALE)


def _calm(
    spec: RunSpec,
    store: Path,
    policy: Literal["spot", "on-demand"],
    every: Steps | timedelta,
    *,
    time_scale: float,
) -> RunSpec:
    """
    Return a version of the job in which only the verification's kills can end an instance early: the simulated market
    never takes an instance back, and time and cost are not limited. What no checkpoint holds is named, not refused.
    """
    exact: Literal["off", "tell"] = "off" if spec.checkpoint.exact == "off" else "tell"
    return spec.model_copy(
        update={
            "resources": ResourcesSpec(spot_policy=policy, image_id=spec.resources.image_id),
            "checkpoint": CheckpointSpec(uri=str(store), every=every, files=spec.checkpoint.files, exact=exact),
            "policy": PolicySpec(hang_after=HANG_AFTER * time_scale),
            "outputs": OutputsSpec(files=()),
            "max_duration": None,
            "budget": BudgetSpec(),
            "retry": RetrySpec(max_restarts=RESTARTS_MAX),
            "local": LocalMarketSpec(time_scale=time_scale, boot=timedelta()),
        }
    )
