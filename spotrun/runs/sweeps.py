"""Finds sweeps by name, reads their runs, and stops or continues all of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from shlex import quote

from msgspec.structs import replace

from spotrun import address
from spotrun.errors import RunNotFound, SpotrunError
from spotrun.folder.sweep_record import SweepRecord, find_sweep, record_trial, replace_sweep, run_of_trial
from spotrun.run.events import ResumeRequested, StopRequested
from spotrun.run.state import RunState
from spotrun.runs.interrupts import request_stop
from spotrun.runs.known import is_known
from spotrun.runs.open_run import OpenRun, absent, default_store, open_each, who, writer
from spotrun.spec.values import NAME_PATTERN
from spotrun.store.opening import open_store
from spotrun.store.port import Store
from spotrun.store.retrying import persist


class NamedSweep:
    """An existing sweep, with the runs of the trials that have begun."""

    def __init__(self, store: Store, record: SweepRecord) -> None:
        self.store = store
        self.record = record

    @property
    def typed(self) -> str:
        """The words that name this sweep on a command line, quoted for a shell."""
        elsewhere = self.store.uri != address.absolute(default_store()).rstrip("/")
        return self.record.name + (f" --store {quote(self.store.uri)}" if elsewhere else "")

    def folders(self) -> set[str]:
        """Return the folders of the runs of all trials that have begun."""
        numbers = range(1, self.record.trials + 1)
        uids = takewhile(bool, (run_of_trial(self.store, self.record, number) for number in numbers))
        return {self.record.folder_of(number, uid) for number, uid in enumerate(uids, 1) if uid is not None}

    def is_over(self, begun: Sequence[OpenRun]) -> bool:
        """Return True if all runs of the sweep (`begun`) have ended, and no further trial will begin."""
        ended = all(run.ledger.refresh().terminal is not None for run in begun)
        return ended and (len(begun) >= self.record.trials or self.record.stopped_by != "")

    def in_a_line(self, begun: Sequence[OpenRun]) -> str:
        record, over = self.record, self.is_over(begun)
        all_over = over and len(begun) >= record.trials
        has = "ended" if all_over else "begun"
        stopped = f"; {record.stopped_by} has asked it to stop" if record.stopped_by else ""
        said = f"{len(begun)} of {record.trials} trials of the sweep {record.name} have {has}{stopped}."
        attend = "" if all_over and not stopped else " The command that began the sweep continues it."
        return f"{said} `spotrun report {self.typed}` shows their results.{attend}"

    def run(self, number: int, role: str = "cli") -> OpenRun | None:
        """Return the run of trial `number`; None if it has not begun, or was deleted."""
        uid = run_of_trial(self.store, self.record, number)
        try:
            return None if uid is None else self._open(self.record.folder_of(number, uid), role)
        except RunNotFound:
            return None

    def _open(self, folder: str, role: str) -> OpenRun:
        return OpenRun(f"{self.store.uri}/{folder}", writer(role))

    def begin(self, run: OpenRun, number: int) -> None:
        """
        Record `run` as the run of trial `number`.

        Raises:
            SpotrunError: the trial already has another run.
        """
        if record_trial(self.store, self.record, number, run.created.uid):
            return
        other = self.run(number)
        if other is not None:
            raise SpotrunError(
                f"another process has begun trial {number} of the sweep {self.record.name} as {other.id}",
                hint=f"if that run is yours, let that process continue the sweep; `spotrun down {other.typed}` ends it",
            )
        record_trial(self.store, self.record, number, run.created.uid, anyway=True)

    def cut_off(self, number: int, role: str) -> list[OpenRun]:
        """
        Find a run that was created for trial `number` but is missing from the sweep's records, because the command that
        created it was killed too soon. Record this run, and return it in a list. The list is empty if there is no such
        run of this user.
        """
        prefix = self.record.folder_of(number, "")
        named = [folder for folder in persist(self.store.folders) if folder.startswith(prefix)]
        for run in open_each(self.store, named)[0]:
            is_of_sweep = run.created.sweep == self.record.name and run.created.clock_epoch >= self.record.began_at
            if is_of_sweep and is_known(run):
                self.begin(run, number)
                return [self._open(run.id, role)]
        return []

    def runs(self, role: str = "cli") -> list[OpenRun]:
        """
        Return the runs of the trials that have begun. Trials begin in the order of their numbers, so the runs are in
        this order too.
        """
        found: list[OpenRun] = []
        while len(found) < self.record.trials and (run := self.run(len(found) + 1, role)) is not None:
            found.append(run)
        return found

    def keep(self, record: SweepRecord) -> None:
        replace_sweep(self.store, record)
        self.record = record

    def request_stop(self) -> None:
        """
        Record that the sweep is to stop, so that no further trial begins. The process that takes care of the sweep
        reads this record.
        """
        self.keep(replace(self.record, stopped_by=who()))

    def stop_all(self) -> list[OpenRun]:
        """Request each run that has not ended to stop, and return these runs."""
        asked = [run for run in self.runs() if run.ledger.refresh().terminal is None]
        for run in asked:
            request_stop(run, self.with_all)
        return asked

    @property
    def with_all(self) -> str:
        """
        The name of the author in the stop requests that are written when the user stops the whole sweep. `go_on`
        continues only runs that this author stopped, and not those that the user stopped individually.
        """
        return f"{self.record.stopped_by or who()}{self._with_all}"

    @property
    def _with_all(self) -> str:
        return f" with all of the sweep {self.record.name}"

    def go_on(self) -> None:
        """
        Undo the stop of the whole sweep: continue each run that was stopped with it, and allow further trials to begin.
        """
        for run in self.runs():
            run.ledger.refresh()
            if stopped_by(run).endswith(self._with_all):
                run.ledger.append(reopening)
        self.keep(replace(self.record, stopped_by=""))


def reopening(state: RunState) -> ResumeRequested | None:
    """Return the event that continues a run that has stopped or is stopping; None for any other run."""
    ended = state.terminal is not None and state.terminal.outcome == "stopped"
    return ResumeRequested(by=who()) if ended or (state.terminal is None and state.stop_requested) else None


def stopped_by(run: OpenRun) -> str:
    """Return the author of the last stop request, if the run has stopped or is stopping; "" otherwise."""
    state, asked = run.ledger.state, ""
    for entry in run.ledger.entries:
        if isinstance(entry.event, StopRequested):
            asked = entry.event.by
        elif isinstance(entry.event, ResumeRequested):
            asked = ""
    ended = state.terminal is None or state.terminal.outcome == "stopped"
    return asked if ended else ""


def sweep_named(name: str, store: str | None) -> NamedSweep | None:
    """
    Return the sweep with exactly this name in a store; None if there is none.

    Raises:
        StoreError: the store cannot be read, or its object with that name is not a sweep.
    """
    folder = store or default_store()
    if not re.fullmatch(NAME_PATTERN, name, re.ASCII) or absent(folder):
        return None
    opened = open_store(folder)
    record = find_sweep(opened, name)
    return None if record is None else NamedSweep(opened, record)
