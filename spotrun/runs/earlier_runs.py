"""Reads a store of runs before a new run of a job begins: the earlier runs with the job's name, and measured speeds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from spotrun.clock import ScaledClock
from spotrun.errors import StoreError
from spotrun.folder.final_status import read_final_status
from spotrun.report.unattended import attended_to, left_alone
from spotrun.run.state import RunState
from spotrun.runner.creation import benched_steps, newborn, region_of
from spotrun.runs.open_run import OpenRun, absent, attended, open_each
from spotrun.spec.model import RunSpec
from spotrun.store.opening import open_store
from spotrun.store.port import Store

Answer = TypeVar("Answer")
RUNS_MAX = 10
"""Maximum number of runs with the job's name that are read, the newest first."""


def earlier_runs(spec: RunSpec) -> list[OpenRun]:
    """Return the readable runs with the name of `spec` in its store, the newest first."""

    def named(store: Store) -> list[OpenRun]:
        runs, _ = open_each(store, [name for name in store.folders() if name.rpartition("-")[0] == spec.name])
        return sorted(runs, key=lambda run: run.created.clock_epoch, reverse=True)

    return ask_store(spec.checkpoint.uri, named) or []


def newest_state(runs: Sequence[OpenRun]) -> RunState | None:
    """Return the state of the first of `runs`; None if there is none, or it cannot be read."""
    with contextlib.suppress(StoreError):
        return runs[0].ledger.refresh() if runs else None
    return None


def going_on(runs: Sequence[OpenRun]) -> list[str]:
    """Return a note on each of `runs` that trains or may be billed; no notes at all if one of `runs` cannot be read."""
    try:
        unended = [run for run in runs[:RUNS_MAX] if not read_final_status(run.store, run.created.uid)]
        found = [(run, run.ledger.refresh(), attended(run)) for run in unended]
    except StoreError:
        return []
    return [
        attended_to(run.typed, state) if looked_after else left_alone(run.typed, state)
        for run, state, looked_after in found
        if state.terminal is None and (looked_after or not all(each.settled for each in state.launches.values()))
    ]


def unborn_in(folder: str, spec: RunSpec, clock: ScaledClock) -> RunState:
    """
    Return the first state of a run of `spec`, with the measurements of the store of runs at `folder`, if this store
    can be read.
    """
    steps = ask_store(folder, lambda store: benched_steps(store, spec, clock)) or {}
    return newborn(spec, clock, ask_store(folder, region_of) or "", steps)


def ask_store(folder: str, question: Callable[[Store], Answer]) -> Answer | None:
    """
    Return the store's answer to `question`; None if the store cannot be read. Only a launch needs a readable store.
    """
    if absent(folder):
        return None
    try:
        return question(open_store(folder))
    except StoreError:
        return None
