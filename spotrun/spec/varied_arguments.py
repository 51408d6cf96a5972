"""
Sets the script arguments that `spotrun bench` varies: batch size, precision and number of devices. Their names differ
from script to script.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from spotrun.errors import SpecInvalid
from spotrun.spec.arguments import Script, plain, replaced
from spotrun.spec.model import RunSpec, TrainSpec

BATCH = ("batch_size", "per_device_train_batch_size", "train_batch_size", "batch", "bs")
PRECISION = ("precision", "mixed_precision", "dtype")
DEVICES = ("devices", "gpus", "num_devices", "nproc_per_node")
"""
BATCH, PRECISION and DEVICES have the names that scripts use for these arguments, the most common names first. `-` and
`_` in a name count as the same.
"""
GONE = "\0"
"""
A value that no real argument can have. `unvaried` uses it as a mark: it gives this value to the arguments that it wants
to remove, and then removes all arguments that have this value.
"""


def unvaried(spec: RunSpec) -> RunSpec:
    """Return the job without its arguments for batch size, precision and number of devices."""
    train, names = spec.train, (*BATCH, *PRECISION, *DEVICES)
    if train.run is not None:
        changed: dict[str, object] = {"run": re.sub(_written(names), "", train.run)}
    else:
        args = train.args
        for name in _given(train, names):
            args = replaced(args, name, GONE) or args
        kept = [word for word, after in pairwise((*args, "")) if GONE not in (word, after)]
        changed = {"args": tuple(word for word in kept if not word.endswith(f"={GONE}"))}
    return spec.model_copy(update={"train": train.model_copy(update=changed)})


def with_argument(
    train: TrainSpec, script: Script, flag: str, named: str | None, names: Sequence[str], value: str
) -> TrainSpec:
    """
    Return `train` with one argument of its script set to `value`. `named` is the argument's name as the user gave it.
    If `named` is None, the argument is looked up under `names`, the names that scripts usually give it.
    """
    wanted = names if named is None else (named.lstrip("-"),)
    if train.run is not None:
        return _in_command(train, train.run, flag, wanted, value)
    for name in _given(train, wanted):
        if (args := replaced(train.args, name, value)) is not None:
            return train.model_copy(update={"args": args})
    added = next((found for name in wanted if (found := script.flag_for(name)) is not None), named)
    if added is None and not script.is_hydra:
        raise SpecInvalid(
            f"{flag}: {train.title} has no argument called {' or '.join(_flags(names[:2]))}",
            hint=f"give its name: {flag}-arg --my-name",
        )
    words = (f"{wanted[0]}={value}",) if added is None else (added, value)
    return train.model_copy(update={"args": (*train.args, *words)})


def _given(train: TrainSpec, names: Sequence[str]) -> Iterator[str]:
    """
    Yield the names that the argument may have in the job: first `names` themselves, and then longer names from the
    job's arguments that end with one of `names`, such as `data.batch_size` in `data.batch_size=64`.
    """
    yield from names
    last = {plain(name) for name in names}
    keys = (word.partition("=")[0] for word in train.args if "=" in word and not word.startswith("-"))
    yield from (key for key in keys if plain(key.rpartition(".")[2]) in last)


def _flags(names: Sequence[str]) -> list[str]:
    return [f"--{plain(name)}" for name in names]


def _in_command(train: TrainSpec, command: str, flag: str, names: Sequence[str], value: str) -> TrainSpec:
    changed, number = re.subn(_written(names), lambda found: f"{found[1]}{found[2]}{value}", command)
    if number != 1:
        how = "lacks this argument" if not number else f"has this argument {number} times"
        raise SpecInvalid(
            f"{flag}: the command under run {how} (spotrun looked for {' or '.join(_flags(names[:2]))} with a value)",
            hint="write it into the command, or write train: {script: …, args: […]} instead of run",
            key=("train", "run"),
        )
    return train.model_copy(update={"run": changed})


def _written(names: Sequence[str]) -> str:
    """Return a regular expression that finds arguments with these names in a shell command, each with its value."""
    words = "|".join("[-_]".join(map(re.escape, plain(name).split("-"))) for name in names)
    return rf"(?<!\S)(--(?:{words}))([ =]+)[^\s;|&]+"


def has_argument(train: TrainSpec, script: Script, names: Sequence[str]) -> bool:
    if train.run is not None:
        return re.search(_written(names), train.run) is not None
    if any(replaced(train.args, name, "") is not None for name in _given(train, names)):
        return True
    return any(script.flag_for(name) is not None for name in names)
