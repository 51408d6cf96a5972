"""
Makes the pages of `spotrun view` from the store, and writes nothing. After the first reading of a run, only new entries
are read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from spotrun.errors import SpotrunError, Unreckonable
from spotrun.folder.final_status import is_final
from spotrun.folder.machine_use import machine_use
from spotrun.folder.run_calls import read_calls
from spotrun.report.html.document import document
from spotrun.report.html.markup import Markup, element, head, join, table
from spotrun.report.html.page import page
from spotrun.report.overview import HEADS, cells, notes
from spotrun.runs.open_run import NO_RUNS, OpenRun, Unreadable, open_each, set_copies_apart
from spotrun.runs.status_rows import StatusRows, unreadable_row
from spotrun.store.opening import open_store
from spotrun.store.retrying import persist

FRESH_FOR_S = 4.0
"""
Maximum age, in seconds of system time, at which a page still answers a request. Because pages are reused, the number of
requests to the store does not grow with the number of open tabs.
"""
LIST = ""
"""The name of the page that lists all runs. The page of a run has the run's id as its name."""


class Made(NamedTuple):
    """A page, or an error that is shown in its place. `at_s` is the system time at which it was made."""

    text: str
    failed: bool
    at_s: float


class Pages:
    """The pages of the runs in one store. Several threads may ask for them at the same time."""

    def __init__(self, store: str, opened: Iterable[OpenRun] = ()) -> None:
        self._store = open_store(store)
        self._runs = {run.id: run for run in opened}
        self._rows = StatusRows()
        self._made: dict[str, Made] = {}
        self._final: dict[str, tuple[int, str]] = {}
        """The pages of runs that have ended, each with the number of entries that the run had then."""
        self._lock = threading.Lock()

    def page(self, name: str) -> Made | None:
        """Return a page that is at most FRESH_FOR_S old; None if there is no such run."""
        with self._lock:
            if name != LIST and name not in self._runs:
                self._fresh(LIST)  # the run may be new
            return self._fresh(name) if name == LIST or name in self._runs else None

    def _fresh(self, name: str) -> Made:
        before = self._made.get(name)
        if before is None or time.monotonic() - before.at_s >= FRESH_FOR_S:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Made:
        try:
            text, failed = self._list() if name == LIST else self._report(self._runs[name]), False
        except SpotrunError as error:
            text, failed = error.one_line, True
        except ArithmeticError as error:
            text, failed = Unreckonable(error, self._runs[name].typed if name in self._runs else "RUN").one_line, True
        return Made(text, failed, time.monotonic())

    def _list(self) -> str:
        runs, unreadable = self._look()
        newest_first = sorted(runs, key=lambda run: run.created.clock_epoch, reverse=True)
        rows = [*self._rows.of(newest_first), *map(unreadable_row, unreadable)]
        listed = table("Runs", [*map(head, HEADS)], [*map(self._row, rows)], class_="words")
        title = f"Runs in {self._store.uri}"
        return document(title, element("main", element("h1", title), listed, _lines(notes(rows))), live=True)

    def _row(self, row: dict[str, Any]) -> Markup:
        name = row["run"]
        shown = element("a", name, href=name) if name in self._runs else name
        return element("tr", element("th", shown, scope="row"), *(element("td", cell) for cell in cells(row)))

    def _look(self) -> tuple[list[OpenRun], list[Unreadable]]:
        """Return the runs in the store, and the folders that cannot be read. Open only runs that are new."""
        names = [name for name in persist(self._store.folders) if name not in NO_RUNS]
        new, unreadable = open_each(self._store, [name for name in names if name not in self._runs])
        known = [self._runs[name] for name in names if name in self._runs]
        runs, copies = set_copies_apart([*known, *new])
        self._runs = {run.id: run for run in runs}
        return runs, unreadable + copies

    def _report(self, run: OpenRun) -> str:
        state, now = run.ledger.refresh(), run.clock.now()
        entries, text = self._final.get(run.id, (0, ""))
        if entries == state.next_number:
            return text
        machines, counted = machine_use(run.store, state), read_calls(run.store)
        calls = None if counted is None else run.cloud.runner_calls(counted)
        top = join(element("nav", element("a", "All runs", href="./")), _lines(notes(self._rows.of([run]))))
        text = page(state, run.ledger.entries, now, None, machines, calls, top)
        if is_final(state):
            self._final[run.id] = state.next_number, text
        return text


def _lines(lines: Iterable[str]) -> Markup:
    return element("ul", *(element("li", line) for line in lines))
