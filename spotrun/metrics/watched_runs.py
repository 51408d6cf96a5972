"""
Reads the runs of a store repeatedly. After the first reading, only new entries are read. Nothing is written.

Background threads read the runs, because each reading has a time limit. A thread that does not finish in time
continues, and the next reading uses its result.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from shlex import quote
from typing import TypeVar

from spotrun.errors import RunNotFound, SpotrunError, StoreUnavailable, Unreckonable
from spotrun.folder.final_status import is_final
from spotrun.folder.keys import FOLDER as KEYS
from spotrun.folder.machine_use import machine_use
from spotrun.folder.market_record import FOLDER as MARKET
from spotrun.metrics.figures import Figures, Reading, figures_of
from spotrun.runs.open_run import OPENERS, OpenRun, set_copies_apart, writer
from spotrun.store.opening import open_store
from spotrun.store.port import Store
from spotrun.store.retrying import persist

T = TypeVar("T")


class WatchedRun:
    """A run's folder in a store, with the run's figures as last read, or the error that prevented reading them."""

    def __init__(self, name: str, uri: str, run: OpenRun | None = None) -> None:
        self.name = name
        self.uri = uri
        self.run = run
        self.figures: Figures | None = None
        self.error: SpotrunError | None = None
        self.settled_s = float("-inf")
        """System time at which `figures` or `error` was last set."""
        self._entries_final = 0

    def open(self) -> None:
        """Read the first entry of the run, unless it was read before."""
        if self.run is None:
            self._settle(self._open)

    def read(self) -> None:
        """Read new entries, and recompute the figures if they may have changed."""
        self._settle(self._read)

    def _open(self) -> None:
        self.run = OpenRun(self.uri, writer("metrics"))

    def _read(self) -> None:
        assert self.run is not None
        state = self.run.ledger.refresh()
        if self.figures is None or state.next_number != self._entries_final:
            self.figures = figures_of(state, self.run.clock.now(), machine_use(self.run.store, state))
            self._entries_final = state.next_number if is_final(state) else 0
        self.error, self.settled_s = None, time.monotonic()

    def _settle(self, act: Callable[[], None]) -> None:
        """
        Call `act`, and record any error that it raises. But if the store is unavailable, keep the last result.
        """
        try:
            act()
            return
        except StoreUnavailable:
            return
        except RunNotFound:
            self.error = None  # not a run's folder, or a run that is being created
        except SpotrunError as error:
            self.figures, self.error = None, error
        except ArithmeticError as error:
            self.figures, self.error = None, Unreckonable(error, quote(self.uri))
        self.settled_s = time.monotonic()


class WatchedRuns:
    """
    The runs that `spotrun metrics` reads. If `runs` is not empty, these runs are read; otherwise the newest runs of a
    store, at most `newest` of them. Two threads must not call `read` at the same time.
    """

    def __init__(self, store: str, newest: int, runs: Sequence[OpenRun] = ()) -> None:
        self._runs_store = None if runs else open_store(store)
        self._newest = newest
        self._watched = {run.uri: WatchedRun(run.id, run.uri, run) for run in runs}
        self._under_way: dict[str, Future[None]] = {}
        self._names: Future[tuple[str, ...]] | None = None
        self._crew = _Crew(OPENERS)

    def read(self, within: timedelta) -> Reading:
        """
        Read the runs, for at most the system time `within`.

        Raises:
            StoreError: the store cannot be listed, or did not answer in time.
        """
        began_s = time.monotonic()
        until_s = began_s + within.total_seconds()
        if self._runs_store is not None:
            self._look_for_runs(self._runs_store, until_s)
        unopened = [each for each in self._watched.values() if each.run is None]
        self._all(WatchedRun.open, unopened, until_s)
        runs, copies = set_copies_apart([each.run for each in self._watched.values() if each.run is not None])
        runs.sort(key=lambda run: run.created.clock_epoch, reverse=True)
        alone = [self._watched[run.uri] for run in runs]
        newest = alone if self._runs_store is None else alone[: self._newest]
        self._all(WatchedRun.read, newest, until_s)
        errors = {each.name: each.error.one_line for each in self._watched.values() if each.error is not None}
        return Reading(
            runs=[each.figures for each in newest if each.figures is not None],
            unreadable=errors | {copy.name: copy.error.one_line for copy in copies},
            late=sum(each.settled_s < began_s for each in {*unopened, *newest}),
            left_out=len(alone) - len(newest),
            at=datetime.now(UTC),
            took_s=time.monotonic() - began_s,
        )

    def _look_for_runs(self, store: Store, until_s: float) -> None:
        self._names = self._names or self._crew.begin(lambda: persist(store.folders))
        wait([self._names], max(0.0, until_s - time.monotonic()))
        if not self._names.done():
            raise StoreUnavailable(f"{store.uri} has not answered in time", hint="allow more time with --within")
        listed, self._names = self._names, None
        uris = {f"{store.uri}/{name}": name for name in listed.result() if name not in (MARKET, KEYS)}
        self._watched = {uri: self._watched.get(uri) or WatchedRun(name, uri) for uri, name in uris.items()}

    def _all(self, act: Callable[[WatchedRun], None], watched: Sequence[WatchedRun], until_s: float) -> None:
        """
        Call `act` with each run, in background threads. Skip a run if an earlier call for it is still in progress.
        Return when all calls have ended, or at `until_s` in system time.
        """
        for each in watched:
            before = self._under_way.get(each.uri)
            if before is None or before.done():
                self._under_way[each.uri] = self._crew.begin(lambda each=each: act(each))  # type: ignore[misc]
        begun = [self._under_way[each.uri] for each in watched]
        for done in wait(begun, max(0.0, until_s - time.monotonic())).done:
            done.result()


class _Crew:
    """
    A pool of threads that never delay the process's exit, not even while they wait for a store. With an executor from
    `concurrent.futures`, Python would wait for the executor's threads at exit.
    """

    def __init__(self, size: int) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        for _ in range(size):
            threading.Thread(target=self._go_on, daemon=True).start()

    def begin(self, act: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(act())
            except Exception as error:  # noqa: BLE001  the future raises it where its result is read
                future.set_exception(error)

        self._work.put(work)
        return future

    def _go_on(self) -> None:
        while True:
            self._work.get()()
