"""Reads the earlier runs of a name before another one begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from spotrun.errors import (
    StoreError,
)
from spotrun.folder.final_status import read_final_status
from spotrun.report.unattended import attended_to, left_alone
from spotrun.run.state import RunState
from spotrun.runs.open_run import OpenRun, absent, attended, open_each
from spotrun.spec.model import RunSpec
from spotrun.store.opening import open_store
from spotrun.store.port import Store

Answer = TypeVar("Answer")
RUNS_MAX = 10
"""Maximum runs of the name that are read, the newest first."""


def earlier_run(spec: RunSpec) -> RunState | None:
    """Return the newest run of that name that can be read, if there is one in its store."""
    return ask_store(
        spec.checkpoint.uri, lambda store: next((run.ledger.refresh() for run in _runs(spec, store)), None)
    )


def going_on(spec: RunSpec) -> list[str]:
    """Return a note on each run of that name that trains or may be billed, the newest first."""

    def said(store: Store) -> list[str]:
        runs = [run for run in _runs(spec, store)[:RUNS_MAX] if not read_final_status(run.store, run.created.uid)]
        found = [(run, run.ledger.refresh(), attended(run)) for run in runs]
        return [
            attended_to(run.typed, state) if looked_after else left_alone(run.typed, state)
            for run, state, looked_after in found
            if state.terminal is None and (looked_after or not all(each.settled for each in state.launches.values()))
        ]

    return ask_store(spec.checkpoint.uri, said) or []


def _runs(spec: RunSpec, store: Store) -> list[OpenRun]:
    """Return the runs of that name that can be read, the newest first."""
    runs, _ = open_each(store, [name for name in store.folders() if name.rpartition("-")[0] == spec.name])
    return sorted(runs, key=lambda run: run.created.clock_epoch, reverse=True)


def ask_store(folder: str, question: Callable[[Store], Answer]) -> Answer | None:
    """Return the answer of a store; None if it cannot be read, because only the launch needs it."""
    if absent(folder):
        return None
    try:
        return question(open_store(folder))
    except StoreError:
        return None
