"""
Kills of a training at moments that are counted within it, by tests/batteries/kill_moments, and what its files say then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from spotrun.checkpoint.snapshot import read_image
from spotrun.exactness.folders import Folder, first_difference, names_of
from spotrun.runs.open_run import OpenRun
from tests.support.checkpoint_entries import restored
from tests.support.repository import ROOT

SHIM = ROOT / "tests" / "batteries" / "kill_moments"
WALL_CLOCK = re.compile(r'("?\w*(?:_runtime|_per_second|_preparation_time)"?: )[0-9.e+-]+')
"""What no two trainings have in common."""
OF_THE_FOLDER = re.compile(r"/[^\s\"']*/work(?=/|$)")
STARTED = re.compile(r"\d{4}-\d\d-\d\d[_/ ]\d\d[-:]\d\d[-:]\d\d(,\d+)?")
"""When each run was: in the name of its folder, and in lines of its log."""
LOGS = "['spotrun']['logs']"
"""Files of loggers, which are compared as files: what the run has cost is in some of them."""
NOT_COMPARED = ("training_args.bin",)
"""It has the time of its start in it, and the folder of the instance."""


class Reached(NamedTuple):
    """The process `pid` has come to the moment at which `victim` is to be killed."""

    pid: int
    victim: str


class Plan:
    """The kills of one run, each `n`, or `n VICTIM`: the n-th moment of a process."""

    def __init__(self, path: Path, kills: Sequence[object]) -> None:
        self.path = path
        path.write_text("\n".join(map(str, kills)))

    @property
    def environment(self) -> dict[str, str]:
        return {
            "KILL_MOMENTS": str(self.path),
            "PYTHONPATH": f"{SHIM}{os.pathsep}{ROOT}",
            "PYTHONHASHSEED": "1",
        }

    @property
    def left(self) -> list[str]:
        """The kills that no process has taken yet."""
        return self.path.read_text().splitlines()

    @property
    def moments(self) -> int:
        """How many moments the process had that was not killed."""
        return int(self._beside("count").read_text())

    @property
    def steps(self) -> list[int]:
        """The process of each step of an optimizer, in their order."""
        steps = self._beside("steps")
        return [int(line) for line in steps.read_text().split()] if steps.exists() else []

    @property
    def reached(self) -> Reached | None:
        try:
            pid, victim = self._beside("reached").read_text().split()
        except FileNotFoundError:
            return None
        return Reached(int(pid), victim)

    def release(self) -> None:
        """Whoever waits at its moment goes on."""
        self._beside("reached").unlink()

    def _beside(self, name: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{name}")


def files_in(folder: Path) -> Folder:
    """All that lie there. A folder that is named by the time has the same name in each run."""
    for named in [path for path in folder.rglob("*") if path.is_dir() and STARTED.fullmatch(path.name)]:
        named.rename(named.with_name("now"))
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return Folder(folder, frozenset(path for path in paths if not path.endswith(NOT_COMPARED)))


def difference(calm: Folder, other: Folder) -> str:
    """What differs first, and where; "" if nothing does."""
    found = first_difference(calm, other, names_of(calm.paths | other.paths), _clean)
    if found is None:
        return ""
    return f"{found.path}, {found.where}: {found.straight[:300]} in peace, {found.interrupted[:300]} after kills"


def _clean(text: str) -> str:
    return STARTED.sub("<now>", OF_THE_FOLDER.sub("<work>", WALL_CLOCK.sub(r"\1-", text)))


def tensors_of(run: OpenRun) -> dict[str, bytes]:
    """What a completed run's last checkpoint has in tensors, by their places: weights, optimizers and all the rest."""
    state = run.ledger.refresh()
    assert state.terminal is not None
    assert state.terminal.final_commit is not None
    commit = state.commit(state.terminal.final_commit)
    assert commit is not None
    found = _tensors_in(read_image(bytearray(restored(run.store, commit)))[0], "")
    return {_clean(name): content for name, content in found if not name.startswith(LOGS)}


def _tensors_in(value: Any, place: str) -> Iterator[tuple[str, bytes]]:
    if isinstance(value, torch.Tensor):
        yield place, value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _tensors_in(each, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _tensors_in(each, f"{place}[{number}]")
