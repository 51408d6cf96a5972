"""The job to verify: its spec without everything that could make two trainings differ."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Literal

from spotrun.errors import SpecInvalid
from spotrun.spec.file import load_spec
from spotrun.spec.model import (
    BudgetSpec,
    CheckpointSpec,
    LocalMarketSpec,
    PolicySpec,
    ResourcesSpec,
    RetrySpec,
    RunSpec,
)
from spotrun.spec.values import name_from
from spotrun.units import Steps

TIME_SCALE = 60.0
"""For interrupted trainings: commits are half a minute of run time apart, which then takes half a second."""
HANG_AFTER = timedelta(minutes=5)
"""System time without progress."""
SELDOM = Steps(1_000_000_000)
RESTARTS_MAX = 1000


def load_job(path: Path, arguments: Sequence[str]) -> RunSpec:
    """
    The spec of a YAML file, or one made for a Python script. `arguments`, if any, replace the job's own.

    Raises:
        SpecInvalid: lists every problem of the file, or says that there is no such file; nothing was started.
    """
    if path.suffix in (".yaml", ".yml"):
        spec = load_spec(path)
        return _with_arguments(spec, arguments) if arguments else spec
    if not path.is_file():
        raise SpecInvalid(f"{path}: no such file", hint="name a Python script or a JOB.yaml")
    made = {
        "name": name_from(path.stem),
        "workdir": str(path.absolute().parent),
        "train": {"script": path.name, "args": list(arguments)},
    }
    return RunSpec.from_dict(made)


def _with_arguments(spec: RunSpec, arguments: Sequence[str]) -> RunSpec:
    if spec.train.script is None:
        raise SpecInvalid("the job is a command, and takes no arguments", hint="change run in the YAML")
    return RunSpec.from_dict(spec.to_dict() | {"train": {"script": spec.train.script, "args": list(arguments)}})


def straight(spec: RunSpec, store: Path) -> RunSpec:
    """The job without interruptions: on demand, in real time, with hardly a checkpoint."""
    return _calm(spec, store, "on-demand", SELDOM, time_scale=1.0)


def interrupted(spec: RunSpec, store: Path, every: Steps) -> RunSpec:
    """The job as it trains when instances are lost: on spot, with a checkpoint each `every` steps."""
    return _calm(spec, store, "spot", every, time_scale=TIME_SCALE)


def _calm(
    spec: RunSpec, store: Path, policy: Literal["spot", "on-demand"], every: Steps, *, time_scale: float
) -> RunSpec:
    """The same training in a calm market, and with no limit that could end it."""
    return spec.model_copy(
        update={
            "resources": ResourcesSpec(spot_policy=policy),
            "checkpoint": CheckpointSpec(uri=str(store), every=every),
            "policy": PolicySpec(hang_after=HANG_AFTER * time_scale),
            "max_duration": None,
            "budget": BudgetSpec(),
            "retry": RetrySpec(max_restarts=RESTARTS_MAX),
            "local": LocalMarketSpec(time_scale=time_scale, boot=timedelta()),
        }
    )
