"""Which trainings are measured: the job itself on each type, with each batch size, precision and number of devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from itertools import product
from pathlib import Path

import msgspec

from spotrun.errors import SpecInvalid
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
from spotrun.units import Steps

SELDOM = Steps(1_000_000_000)
"""No checkpoint is made while it is measured."""
BATCH = ("--batch-size", "--batch_size", "--per_device_train_batch_size", "--train_batch_size", "--batch", "--bs")
PRECISION = ("--precision", "--mixed_precision", "--mixed-precision", "--dtype")
DEVICES = ("--devices", "--gpus", "--num_devices", "--num-devices", "--nproc_per_node", "--nproc-per-node")
"""What scripts call these arguments, the commonest first."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A training to measure; None where the job itself says it."""

    kind: Kind | None
    devices: int | None = None
    batch: int | None = None
    precision: str | None = None

    @property
    def name(self) -> str:
        """`V100:1, batch 16, 16-mixed`."""
        parts = [
            *([str(self.kind)] if self.kind is not None else []),
            *([f"{self.devices} devices"] if self.devices is not None and not self._tells_devices else []),
            *([f"batch {self.batch}"] if self.batch is not None else []),
            *([self.precision] if self.precision is not None else []),
        ]
        return ", ".join(parts) or "the job"

    @property
    def _tells_devices(self) -> bool:
        return isinstance(self.kind, Accelerators)


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """The names of the script's arguments, where the user has said them."""

    batch: str | None = None
    devices: str | None = None
    precision: str | None = None


def trials(
    spec: RunSpec,
    kinds: Sequence[Kind],
    devices: Sequence[int],
    batches: Sequence[int],
    precisions: Sequence[str],
) -> list[Trial]:
    """Each of `kinds`, else of the job's own, with each of the others; an empty sequence leaves it to the job."""
    chosen: list[Kind | None] = [*(kinds or spec.resources.kinds)] or [None]
    found = [
        Trial(kind=_with_devices(kind, number), devices=number, batch=batch, precision=precision)
        for kind, number, batch, precision in product(
            chosen, devices or (None,), batches or (None,), precisions or (None,)
        )
    ]
    return list(dict.fromkeys(found))


def _with_devices(kind: Kind | None, number: int | None) -> Kind | None:
    return Accelerators(kind.name, number) if isinstance(kind, Accelerators) and number is not None else kind


def spec_of(spec: RunSpec, trial: Trial, names: Arguments, within: timedelta, budget: Decimal | None) -> RunSpec:
    """
    The job as a short run that measures `trial`: in a calm market, with no checkpoint, and with limits of its own.

    Raises:
        SpecInvalid: the script has no argument that could say it.
    """
    train = spec.train
    if trial.batch is not None:
        train = _with(train, spec, "--batch", names.batch, BATCH, str(trial.batch))
    if trial.precision is not None:
        train = _with(train, spec, "--precision", names.precision, PRECISION, trial.precision)
    if trial.devices is not None and (names.devices or _has(train, spec, DEVICES) or _is_bare(trial.kind)):
        train = _with(train, spec, "--devices", names.devices, DEVICES, str(trial.devices))
    kind: dict[str, object] = {"instance_type": None} if trial.kind is not None else {}
    accelerators = trial.kind if isinstance(trial.kind, Accelerators | None) else AnyOf((trial.kind,))
    return spec.model_copy(
        update={
            "name": name_from(f"{spec.name[:57]}-bench"),
            "train": train,
            "resources": spec.resources.model_copy(update={"accelerators": accelerators, **kind}),
            "checkpoint": CheckpointSpec(uri=spec.checkpoint.uri, every=SELDOM),
            "policy": spec.policy.model_copy(update={"deadline": None, "expected_work": None}),
            "outputs": OutputsSpec(files=()),
            "max_duration": within,
            "budget": BudgetSpec(max_usd=budget),
            "retry": RetrySpec(max_restarts=0),
            "report": ReportSpec(),
            "notify": (),
            "local": LocalMarketSpec(boot=timedelta()),
        }
    )


def unnamed_arguments(spec: RunSpec, changed: TrainSpec, names: Arguments, *, devices: bool) -> Iterator[str]:
    """What to say of arguments that the script's own source does not name. `changed` is what is to be trained."""
    source = spec.train.source(Path(spec.workdir))
    text = "" if source is None else (Path(spec.workdir) / source).read_text(errors="replace")
    for named in (names.batch, names.precision, names.devices):
        if source is not None and named is not None and named.lstrip("-") not in text:
            yield f"{source} does not say {named} itself: see that something reads it"
    if devices and source is not None and not names.devices and not _has(changed, spec, DEVICES):
        yield f"{source} has no argument for the number of devices: it has to train on all that it finds"


def _is_bare(kind: Kind | None) -> bool:
    """Nothing but an argument could say how many devices train."""
    return not isinstance(kind, Accelerators)


# -- arguments of scripts ----------------------------------------------------------------------------------------------


def _with(train: TrainSpec, spec: RunSpec, flag: str, named: str | None, names: Sequence[str], value: str) -> TrainSpec:
    chosen = [named] if named is not None else names
    if train.run is not None:
        return _in_command(train, train.run, flag, chosen, value)
    args = list(train.args)
    for index, argument in enumerate(args):
        name, is_one, _ = argument.partition("=")
        if is_one and _means(name, chosen):
            args[index] = f"{name}={value}"
        elif argument in chosen and index + 1 < len(args):
            args[index + 1] = value
        else:
            continue
        return train.model_copy(update={"args": tuple(args)})
    found = named or next(_in_source(train, spec, names), None)
    if found is None:
        raise SpecInvalid(
            f"{flag}: {train.title} has no argument that is called {' or '.join(names[:2])}",
            hint=f"say what it is called: {flag}-as --my-name",
        )
    return train.model_copy(update={"args": (*args, found, value)})


def _in_command(train: TrainSpec, command: str, flag: str, names: Sequence[str], value: str) -> TrainSpec:
    pattern = rf"(?<!\S)({'|'.join(map(re.escape, names))})([ =]+)[^\s;|&]+"
    changed, number = re.subn(pattern, lambda found: f"{found[1]}{found[2]}{value}", command)
    if number != 1:
        how = "names it nowhere" if not number else f"names it {number} times"
        raise SpecInvalid(
            f"{flag}: the command {how}, as {' or '.join(names[:2])} and a value",
            hint="write it into the command, or write train: {script: …, args: […]} instead of run",
            key=("train", "run"),
        )
    return train.model_copy(update={"run": changed})


def _means(name: str, names: Sequence[str]) -> bool:
    """`--batch-size=16`, and `data.batch_size=16`, as Hydra has it."""
    if name.startswith("-"):
        return name in names
    return name.rpartition(".")[2] in {each.lstrip("-").replace("-", "_") for each in names}


def _has(train: TrainSpec, spec: RunSpec, names: Sequence[str]) -> bool:
    if train.run is not None:
        return any(re.search(rf"(?<!\S){re.escape(name)}[ =]", train.run) for name in names)
    args = [argument.partition("=")[0] for argument in train.args]
    return any(_means(name, names) for name in args) or next(_in_source(train, spec, names), None) is not None


def _in_source(train: TrainSpec, spec: RunSpec, names: Sequence[str]) -> Iterator[str]:
    """Those of `names` that the script's own source has as strings."""
    source = train.source(Path(spec.workdir))
    if source is None:
        return
    text = (Path(spec.workdir) / source).read_text(errors="replace")
    yield from (name for name in names if f'"{name}"' in text or f"'{name}'" in text)
