"""The trials of a bench: one for each combination of instance type, batch size, precision and number of devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from itertools import product

import msgspec

from spotrun.spec.arguments import Script, replaced
from spotrun.spec.kinds import AnyOf, Kind
from spotrun.spec.model import (
    BudgetSpec,
    CheckpointSpec,
    LocalMarketSpec,
    OutputsSpec,
    ReportSpec,
    RetrySpec,
    RunSpec,
    TrainSpec,
)
from spotrun.spec.values import Accelerators, name_from
from spotrun.spec.varied_arguments import BATCH, DEVICES, PRECISION, has_argument, with_argument
from spotrun.units import Steps

SELDOM = Steps(1_000_000_000)
"""Number of steps between two checkpoints of a trial. Every trial has fewer steps, so it makes no checkpoint."""


class BenchTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A training to measure. A field that is None keeps the job's value."""

    kind: Kind | None
    devices: int | None = None
    batch: int | None = None
    precision: str | None = None

    @property
    def name(self) -> str:
        """The trial's name, for example `V100:1, batch 16, 16-mixed`."""
        kind = "" if self.kind is None else str(self.kind)
        return ", ".join(filter(None, [kind, self.otherwise])) or "the job"

    @property
    def otherwise(self) -> str:
        """
        The job's settings that the trial changes, except the kind of instance: for example `batch 16, 16-mixed`.
        """
        parts = [
            *([f"{self.devices} devices"] if self.devices is not None and not self._tells_devices else []),
            *([f"batch {self.batch}"] if self.batch is not None else []),
            *([self.precision] if self.precision is not None else []),
        ]
        return ", ".join(parts)

    @property
    def _tells_devices(self) -> bool:
        return isinstance(self.kind, Accelerators)


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """
    The names of the script's arguments for batch size, number of devices and precision, for example `--batch-size`. A
    name that the user did not give is None.
    """

    batch: str | None = None
    devices: str | None = None
    precision: str | None = None


def trials(
    spec: RunSpec,
    kinds: Sequence[Kind],
    devices: Sequence[int],
    batches: Sequence[int],
    precisions: Sequence[str],
) -> list[BenchTrial]:
    """
    Return a trial for each combination of `kinds`, `devices`, `batches` and `precisions`. An empty sequence keeps the
    job's value.
    """
    chosen: list[Kind | None] = [*(kinds or spec.resources.kinds)] or [None]
    found = [
        BenchTrial(kind=_with_devices(kind, number), devices=number, batch=batch, precision=precision)
        for kind, number, batch, precision in product(
            chosen, devices or (None,), batches or (None,), precisions or (None,)
        )
    ]
    return list(dict.fromkeys(found))


def _with_devices(kind: Kind | None, number: int | None) -> Kind | None:
    return Accelerators(kind.name, number) if isinstance(kind, Accelerators) and number is not None else kind


def spec_of(
    spec: RunSpec, script: Script, trial: BenchTrial, names: Arguments, within: timedelta, budget: Decimal | None
) -> RunSpec:
    """
    Return the job of the short run that measures `trial`. It differs from the user's job `spec` in these points:
    - It uses the trial's kind of instance, and passes the trial's values to `script` as arguments.
    - It ends after `within`, or when `budget` is spent.
    - It makes no checkpoints.
    - On the local cloud, it loses no instance.

    Raises:
        SpecInvalid: the script does not have an argument for one of the trial's values.
    """
    train = spec.train
    if trial.batch is not None:
        train = with_argument(train, script, "--batch", names.batch, BATCH, str(trial.batch))
    if trial.precision is not None:
        train = with_argument(train, script, "--precision", names.precision, PRECISION, trial.precision)
    if trial.devices is not None and (names.devices or has_argument(train, script, DEVICES) or _is_bare(trial.kind)):
        train = with_argument(train, script, "--devices", names.devices, DEVICES, str(trial.devices))
    changes: dict[str, object] = {"home": None}
    if trial.kind is not None:
        changes["instance_type"] = None
    accelerators = trial.kind if isinstance(trial.kind, Accelerators | None) else AnyOf((trial.kind,))
    return spec.model_copy(
        update={
            "name": name_from(f"{spec.name[:57]}-bench"),
            "train": train,
            "resources": spec.resources.model_copy(update={"accelerators": accelerators, **changes}),
            "checkpoint": CheckpointSpec(uri=spec.checkpoint.uri, every=SELDOM),
            "policy": spec.policy.model_copy(update={"deadline": None, "strategy": "ours", "expected_work": None}),
            "outputs": OutputsSpec(files=()),
            "max_duration": within,
            "budget": BudgetSpec(max_usd=budget),
            "retry": RetrySpec(max_restarts=0),
            "report": ReportSpec(),
            "notify": (),
            "local": LocalMarketSpec(boot=timedelta()),
        }
    )


def unnamed_arguments(train: TrainSpec, script: Script, names: Arguments, *, devices: bool) -> Iterator[str]:
    """
    Yield a note for each name in `names` that the script may not know, because neither the job nor a file next to the
    script mentions it. Also yield a note if the number of devices varies (`devices`) and the script has no argument for
    it.
    """
    if train.run is not None:
        return
    for named in (names.batch, names.precision, names.devices):
        name = "" if named is None else named.lstrip("-")
        if name and replaced(train.args, name, "") is None and script.flag_for(name) is None:
            yield f"no file next to {train.title} names {named}: check that the script reads it"
    if devices and not names.devices and not has_argument(train, script, DEVICES):
        yield f"{train.title} has no argument for the number of devices: it has to train on all devices that it finds"


def _is_bare(kind: Kind | None) -> bool:
    """
    Return True if `kind` does not say how many devices the trial uses. Only an argument of the script can then set
    their number.
    """
    return not isinstance(kind, Accelerators)
