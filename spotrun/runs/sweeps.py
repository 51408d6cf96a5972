"""Finds sweeps by name, reads their runs, and stops or continues all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from shlex import quote
from typing import Any

from msgspec.structs import replace

from spotrun import address
from spotrun.errors import RunNotFound, SpotrunError, StoreError, StoreUnavailable
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
        """
        Return the run of trial `number`; None if it has not begun, or was deleted.

        This is the run that the trial's record names. But another writer of the store can change the record. So if the
        record names no known run, and a known run of this trial is not over, that run counts. If the record names no
        run at all, a known run of this trial counts even if it is over.
        """
        recorded, trouble = None, None
        try:
            recorded = self._recorded(number, role)
        except StoreUnavailable:
            raise
        except StoreError as error:
            trouble = error
        if recorded is not None and is_known(recorded):
            return recorded
        ours = self.known_runs(role, number)
        if recorded is not None:
            ours = [run for run in ours if run.ledger.refresh().terminal is None]
        if not ours and trouble is not None:
            raise trouble
        return ours[-1] if ours else recorded

    def _recorded(self, number: int, role: str) -> OpenRun | None:
        """Return the run that the record of trial `number` names; None if there is no such run."""
        uid = run_of_trial(self.store, self.record, number)
        try:
            run = None if uid is None else self._open(self.record.folder_of(number, uid), role)
        except RunNotFound:
            return None
        if run is None:
            return None
        is_of_another = self.record.recorded and run.created.sweep != self.record.name
        return None if is_of_another and is_known(run) else run

    def known_runs(self, role: str = "cli", number: int | None = None) -> list[OpenRun]:
        """
        Return the known runs that were created for this sweep, or only those for trial `number`, oldest first. The
        sweep's records are not needed to find them. Leave out the ended runs of an earlier sweep of this name.
        """
        trial = r"\d+" if number is None else str(number)
        pattern = re.compile(f"{re.escape(self.record.name)}-{trial}-[0-9a-z]+", re.ASCII)
        named = [folder for folder in persist(self.store.folders) if pattern.fullmatch(folder)]
        found = [run for run in open_each(self.store, named)[0] if run.created.sweep == self.record.name]
        ours = [self._open(run.id, role) for run in found if is_known(run)]
        began_at = self.record.began_at
        ours = [run for run in ours if run.created.clock_epoch >= began_at or run.ledger.refresh().terminal is None]
        return sorted(ours, key=lambda run: run.created.clock_epoch)

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
        other = self._recorded(number, "cli")
        if other is not None:
            raise SpotrunError(
                f"another process has begun trial {number} of the sweep {self.record.name} as {other.id}",
                hint=f"if that run is yours, let that process continue the sweep; `spotrun down {other.typed}` ends it",
            )
        record_trial(self.store, self.record, number, run.created.uid, anyway=True)

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

    def to_end(self) -> list[OpenRun]:
        """
        Return the runs to which `stop` and `down` apply: the known runs of the sweep, or all runs in its records if
        none is known on this machine.
        """
        return self.known_runs() or self.runs()

    def stop_all(self) -> list[OpenRun]:
        """
        Request each run that has not ended to stop, and return these runs.

        Raises:
            SpotrunError: a run could not be asked; all others were.
        """
        asked = [run for run in self.to_end() if run.ledger.refresh().terminal is None]
        for_each(asked, lambda run: request_stop(run, self.with_all))
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


def for_each(runs: Sequence[OpenRun], act: Callable[[OpenRun], object]) -> None:
    """
    Call `act` for each run, even if it fails for some of them.

    Raises:
        SpotrunError: the first failure.
    """
    failures = list[SpotrunError]()
    for run in runs:
        try:
            act(run)
        except SpotrunError as error:
            failures.append(error)
    if failures:
        raise failures[0]


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


def sweep_meant(name: str, store: str | None) -> NamedSweep | None:
    """
    Return the sweep that `name` stands for in a command; None if it stands for a run, or for nothing.

    Another writer of the store can put a sweep's record there that has the name of a run of this user, and can
    overwrite the record of a sweep. So runs that are known on this machine decide. If known runs were created for a
    sweep of this name, the name stands for the sweep, even if its record cannot be read. Otherwise, it stands for a
    known run of this name, or for any run whose id it is, if there is one: a night's run, for example, is not known.

    Raises:
        StoreError: as in `sweep_named`, unless known runs show what is meant.
    """
    found, trouble = None, None
    try:
        found = sweep_named(name, store)
    except StoreUnavailable:
        raise
    except StoreError as error:
        trouble = error
    folder = store or default_store()
    if not re.fullmatch(NAME_PATTERN, name, re.ASCII) or absent(folder):
        return found
    opened = open_store(folder)
    by_runs = found or NamedSweep(opened, SweepRecord(name=name, trials=0, recorded=True, **_UNREAD))
    if by_runs.known_runs():
        return by_runs
    if found is None and trouble is None:
        return None
    same_name = [each for each in persist(opened.folders) if name in (each, each.rpartition("-")[0])]
    if any(run.id == name or is_known(run) for run in open_each(opened, same_name)[0]):
        return None
    if trouble is not None:
        raise trouble
    return found


_UNREAD: dict[str, Any] = {"uid": "", "began_at": datetime.fromtimestamp(0, UTC), "time_scale": 1.0, "wanted": {}}
"""The values of a sweep whose record is missing or cannot be read."""
