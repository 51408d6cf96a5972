"""
Runs a sweep in one process. Each trial's runner has its own thread, and one loop starts and stops the trials.

The state of each trial is read from the ledger of its run. So another process can take over the sweep at any time.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

from msgspec.structs import replace

from spotrun.account.summary import summarise
from spotrun.errors import (
    CloudUnavailable,
    LedgerDamaged,
    RunEnded,
    RunNotFound,
    SpecInvalid,
    SpotrunError,
    StoreError,
    StoreUnavailable,
)
from spotrun.folder import setup_cache
from spotrun.folder.agent_statuses import AgentStatuses
from spotrun.folder.sweep_record import find_sweep
from spotrun.run.entry_bytes import RESTORE
from spotrun.run.events import SWEEP, PackDigest
from spotrun.runner.creation import NewRun, prepare_run
from spotrun.runner.tick import Tick
from spotrun.runs.asking import say
from spotrun.runs.background import say_that_it_attends
from spotrun.runs.interrupts import ANSWER_WITHIN_S, STOP_WITHIN_S, Interrupt, request_stop, stop_or_detach
from spotrun.runs.known import create_known
from spotrun.runs.notifying import notifying
from spotrun.runs.open_run import OpenRun, who, writer
from spotrun.runs.signals import Signalled, undisturbed
from spotrun.runs.sweeps import NamedSweep, reopening, stopped_by
from spotrun.runs.termination import take_down
from spotrun.spec.model import RunSpec
from spotrun.spec.trials import trial_spec, with_params
from spotrun.sweep import report
from spotrun.sweep.report import SweepShown, TrialShown
from spotrun.sweep.rungs import (
    Begin,
    CarryOn,
    Over,
    Stop,
    SweepPlan,
    TrialProgress,
    Unknown,
    metric_of,
    next_actions,
    trial_of,
)

LOOK_S = 0.5
"""System seconds from one pass of the loop to the next."""
RECORD_EVERY_S = 10.0
"""System seconds between two reads of the sweep's record, which shows whether another command has stopped the sweep."""
END_WITHIN_S = 60.0
"""
Maximum system seconds to wait for a runner after its run has ended. In this time, the runner sends the last
notifications and removes the run's role.
"""
LEAVE_WITHIN_S = 30.0
"""Maximum system seconds to wait for the current ticks of all runners when this process leaves the sweep."""


class _Left(Exception):
    """Raised in a runner's thread to end it when this process stops taking care of the sweep."""


class Attendant:
    """Runs the runner of one trial in a separate thread, and reads the trial's state."""

    def __init__(self, run: OpenRun, sweep_name: str, number: int, params: Mapping[str, str]) -> None:
        assert run.created.budget_usd is not None, "each trial has one"
        self.run, self.number, self.params = run, number, params
        self._sweep_name = sweep_name
        self.failure: SpotrunError | None = None
        self._budget_usd = run.created.budget_usd
        self._epochs_total: int | None = None
        self._leave = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen = -1
        self._last: TrialProgress | None = None
        run.ledger.refresh()
        with contextlib.suppress(StoreUnavailable):
            self._epochs_total = AgentStatuses(run.store).epochs_total(run.ledger.state)

    @property
    def attends(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """
        Start a thread that takes care of the run. Do nothing if such a thread is already running or the trial is
        settled.
        """
        if self.seen().settled or self.attends:
            return
        self._thread = threading.Thread(target=self._attend, name=self.run.id, daemon=True)
        self._thread.start()

    def carry_on(self) -> None:
        """Reopen this trial's run, which the sweep had stopped."""
        self.join(END_WITHIN_S)
        before = self.run.first_sha256
        self.run = OpenRun(self.run.uri, writer("runner"))
        if self.run.first_sha256 != before:
            raise LedgerDamaged(f"another process has replaced the first entry of {self.run.uri}", hint=RESTORE)
        self.run.ledger.refresh()
        self.run.ledger.append(reopening)
        self._last = None

    def leave(self) -> None:
        self._leave.set()

    def join(self, within_s: float) -> None:
        if self._thread is not None:
            self._thread.join(within_s)

    def _attend(self) -> None:
        try:
            with notifying(self.run) as notifier:

                def watch(tick: Tick) -> None:
                    self._epochs_total = tick.epochs_total or self._epochs_total
                    notifier.show(self.run.ledger.entries)
                    if self._leave.is_set():
                        raise _Left

                self.run.runner.run(watch)
        except _Left:
            pass
        except SpotrunError as error:
            self.failure = error

    def seen(self) -> TrialProgress:
        """
        Return the progress of the trial according to its ledger. If an error has ended the thread of the trial's
        runner, return a failed trial that has spent its whole budget, because its instances may still spend that money.
        """
        state = self.run.ledger.state
        changed = self._last is None or state.next_number != self._seen or not self._last.settled
        if changed:
            now, total = self.run.clock.now(), self._epochs_total
            summary = summarise(state, now)
            asked = state.stop_requested or state.terminal is not None
            judged = asked and stopped_by(self.run).startswith(decided(self._sweep_name, ""))
            budget_usd = self._budget_usd
            self._last = trial_of(
                self.number, state, summary, now, epochs_total=total, budget_usd=budget_usd, judged=judged
            )
            self._seen = state.next_number
        assert self._last is not None
        if self.failure is None or self._last.settled:
            return self._last
        return replace(self._last, outcome="failed", settled=True, spent_usd=self._budget_usd)

    def shown(self) -> TrialShown:
        return TrialShown(self.seen(), self.run.id, self.params, self._why())

    def _why(self) -> str:
        end = self.run.ledger.state.terminal
        if self.failure is not None:
            return self.failure.one_line
        if end is None or end.outcome == "completed":
            return ""
        asked, ours = stopped_by(self.run), decided(self._sweep_name, "")
        by = asked.removeprefix(ours) if asked.startswith(ours) else asked and f"by {asked}"
        return by or end.detail


def decided(sweep_name: str, reason: str) -> str:
    """
    Return the text that names the sweep in its stop requests, in place of a user's name. `reason` is the reason for the
    stop.
    """
    return f"sweep {sweep_name}: {reason}"


class SweepJob(NamedTuple):
    """A sweep as the user requests it: the job without parameters, each trial's parameters, and the limits."""

    spec: RunSpec
    params: Sequence[Mapping[str, str]]
    plan: SweepPlan


class Sweeping:
    """Takes care of a sweep in this process."""

    def __init__(self, sweep: NamedSweep, wanted: SweepJob, runs: Sequence[OpenRun]) -> None:
        """Take over the `runs` that have already begun. They are in the order of their trials."""
        seconds = sweep.record.deadline_s
        time_s = None if seconds is None else timedelta(seconds=seconds)
        self._sweep, self._wanted = sweep, wanted._replace(plan=replace(wanted.plan, time=time_s))
        name, params = sweep.record.name, wanted.params
        self._attendants = [Attendant(run, name, number, params[number - 1]) for number, run in enumerate(runs, 1)]
        self._told = {each.number: each.seen() for each in self._attendants}
        self._new: NewRun | None = None
        """The run of the next trial, if this process has begun to create it, but has not finished."""
        self._stopping = False
        self._failed: SpecInvalid | None = None
        self._over: Over | None = None
        self._looked_s = time.monotonic()
        self._trouble = ""

    # -- the record and the trials of the sweep -----------------------------------------------------------------------

    @property
    def _record_name(self) -> str:
        return self._sweep.record.name

    def _trials(self) -> list[TrialProgress]:
        return [each.seen() for each in self._attendants]

    def time_left(self) -> timedelta | None:
        """Return the run time until the deadline; None without a deadline."""
        record = self._sweep.record
        if record.deadline_s is None:
            return None
        passed = (datetime.now(UTC) - record.began_at) * record.time_scale
        return timedelta(seconds=record.deadline_s) - passed

    def shown(self) -> SweepShown:
        simulated = any(each.run.created.simulated for each in self._attendants)
        trials = tuple(each.shown() for each in self._attendants)
        ended = self._over.reason if self._over is not None else "it was asked to stop" if self._stopping else None
        return SweepShown(self._record_name, self._wanted.plan, trials, tuple(self._wanted.params), simulated, ended)

    # -- the main loop ------------------------------------------------------------------------------------------------

    def attend(self, *, background: bool) -> bool:
        """
        Run the sweep until it is over. Return False if the user wants a background process to take over.

        Raises:
            SpecInvalid: no trial logs the metric.
            RunEnded: the sweep was stopped, or no trial is complete.
            LedgerDamaged, SpotrunError: a trial could not begin (see `_begin`).
            KeyboardInterrupt, Signalled: this process was interrupted.
        """
        stopped_by_signal: Interrupt | None = None
        try:
            while True:
                try:
                    self._until_over()
                    break
                except (KeyboardInterrupt, Signalled) as caught:
                    if stopped_by_signal is not None:
                        say(self.what_is_left())
                        raise stopped_by_signal from None
                    answer = _answer(caught, background)
                    if answer == "detach":
                        self._leave()
                        return False
                    if answer == "stop":
                        stopped_by_signal = caught
                        self._ask_all_to_stop()
                        if isinstance(caught, Signalled):
                            signal.setitimer(signal.ITIMER_REAL, STOP_WITHIN_S)
        except SpotrunError:
            self._leave()
            say(self.what_is_left())
            raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._report_end()
        return True

    def _until_over(self) -> None:
        for each in self._attendants:
            each.start()
        while not self._is_over():
            say_that_it_attends()
            self._act()
            self._tell()
            time.sleep(LOOK_S)
        for each in self._attendants:
            each.join(END_WITHIN_S)
        self._tell()

    def _is_over(self) -> bool:
        settled = all(each.settled for each in self._trials())
        return (self._over is not None or self._stopping) and settled

    def _act(self) -> None:
        left = self.time_left()
        actions = [] if self._stopping else next_actions(self._wanted.plan, self._trials(), left)
        final = any(isinstance(action, Begin | Over) for action in actions)
        if self._is_stopped_elsewhere(at_once=final):
            say(f"{self._sweep.record.stopped_by} has requested that {self._record_name} stop")
            self._stopping = True
            return
        for action in actions:
            if isinstance(action, Begin):
                if not self._begin(action, left):
                    return
            elif isinstance(action, Stop):
                self._stop(action)
            elif isinstance(action, CarryOn):
                self._carry_on(action)
            elif isinstance(action, Unknown):
                self._refuse(action)
            else:
                self._over = action

    def _begin(self, begin: Begin, left: timedelta | None) -> bool:
        """
        Begin a trial. Return False if the store or the cloud does not answer; the next pass of the loop then tries
        again.

        Raises:
            LedgerDamaged: another process has created a different run in this run's folder.
            SpotrunError: another process has begun this trial.
        """
        params, record = self._wanted.params[begin.number - 1], self._sweep.record
        name = record.run_name(begin.number)
        spec = trial_spec(with_params(self._wanted.spec, params), name, begin.budget_usd, begin.work, left)
        try:
            if self._new is None:
                packs = self._packs_of_earlier_trials()
                self._new = prepare_run(spec, f"cli:{who()}", part_of=f"{SWEEP}{record.name}", setup_packs=packs)
            run = create_known(self._new)
            self._record(run, begin.number)
        except (StoreUnavailable, CloudUnavailable) as error:
            if error.one_line != self._trouble:
                self._trouble = error.one_line
                say(f"{name} cannot begin yet: {error.one_line}")
            return False
        self._share_setup(run)
        attendant = Attendant(run, record.name, begin.number, params)
        self._attendants.append(attendant)
        self._new = None
        print(report.begun(run.id, params, attendant.run.created.budget_usd or Decimal(0)), flush=True)
        attendant.start()
        return True

    def _record(self, run: OpenRun, number: int) -> None:
        """
        Record in the sweep that `run` belongs to trial `number`. If another process has already recorded a different
        run for this trial, end `run`.

        Raises:
            SpotrunError: another process has already recorded a run for this trial.
        """
        try:
            self._sweep.begin(run, number)
        except StoreError:
            raise
        except SpotrunError:
            take_down(run)
            raise

    def _packs_of_earlier_trials(self) -> tuple[PackDigest, ...]:
        """
        Return the setup caches of an earlier trial for which its ledger vouches. Entry 0 of the next trial names them,
        so that no instance of that trial uses anything else in their place (protocol 31).
        """
        if self._wanted.spec.setup is None:
            return ()
        with contextlib.suppress(StoreError):  # without a copy, the instance runs the setup itself
            for each in self._attendants:
                vouched = each.run.ledger.state.vouched_packs
                if found := tuple(pack for pack, _ in setup_cache.stored_of(each.run.store, vouched)):
                    return found
        return ()

    def _share_setup(self, run: OpenRun) -> None:
        """
        Copy the setup caches that the run's entry 0 names from an earlier trial, so that its instance does not repeat
        the job's `setup`. If both runs are in one bucket, the bucket itself makes the copy.
        """
        with contextlib.suppress(StoreError):
            for each in self._attendants:
                if setup_cache.copy(each.run.store, run.store, run.created.copied_packs):
                    return

    def _stop(self, stop: Stop) -> None:
        run = self._attendants[stop.number - 1].run
        if request_stop(run, decided(self._record_name, stop.reason)):
            print(f"{run.id} stops: {stop.reason}", flush=True)

    def _carry_on(self, carry_on: CarryOn) -> None:
        attendant = self._attendants[carry_on.number - 1]
        attendant.carry_on()
        print(f"{attendant.run.id} continues: the rest of the budget pays for it", flush=True)
        attendant.start()

    def _refuse(self, unknown: Unknown) -> None:
        """Stop all trials, because no trial logs the metric by which the trials would be compared."""
        said = f"has logged {', '.join(unknown.known)}" if unknown.known else "has logged no metric"
        meant = f"--metric {unknown.meant or (unknown.known or ('NAME',))[0]}"
        what = f"the metric {unknown.metric!r}" if unknown.metric else "a loss"
        otherwise = "" if unknown.metric else ", or with --reduction-factor 0, which compares no trials"
        self._failed = SpecInvalid(
            f"no trial has logged {what} by the end of epoch {unknown.epoch}; each trial {said}",
            hint=f"repeat the command with {meant}{otherwise}; if validation runs only every N epochs, "
            "add --grace-epochs N",
        )
        self._ask_all_to_stop()

    def _ask_all_to_stop(self) -> None:
        self._stopping = True
        with undisturbed(), contextlib.suppress(StoreUnavailable):
            self._sweep.request_stop()
            for each in self._attendants:
                if each.seen().outcome == "running":
                    request_stop(each.run, self._sweep.with_all)
            self._take_up_the_last()
        say(f"stopping {self._record_name}: each of its runs saves a last checkpoint, and leaves nothing running")

    def _take_up_the_last(self) -> None:
        """
        Handle a run that this process was creating when the sweep was stopped. Record it as its trial's run, start its
        runner, and stop the run. Do nothing if the run's entry 0 was not written.
        """
        new, number = self._new, len(self._attendants) + 1
        if new is None or new.created.name != self._sweep.record.run_name(number):
            return
        try:
            run = OpenRun(new.uri, writer("runner"))
        except RunNotFound:
            return
        if run.first_sha256 == new.first_sha256:
            self._record(run, number)
            self._attendants.append(Attendant(run, self._record_name, number, self._wanted.params[number - 1]))
            self._attendants[-1].start()
            request_stop(run, self._sweep.with_all)

    def _is_stopped_elsewhere(self, *, at_once: bool) -> bool:
        """
        Return True if another command has stopped the sweep, according to the sweep's record. The record is read every
        RECORD_EVERY_S, or immediately if `at_once` is True.
        """
        if self._stopping or (not at_once and time.monotonic() - self._looked_s < RECORD_EVERY_S):
            return False
        self._looked_s = time.monotonic()
        with contextlib.suppress(StoreError):  # the record may be damaged; all else of it is known here
            found = find_sweep(self._sweep.store, self._record_name)
            if found is not None and found.stopped_by:
                self._sweep.record = replace(self._sweep.record, stopped_by=found.stopped_by)
                return True
        return False

    def _leave(self) -> None:
        for each in self._attendants:
            each.leave()
        ends_s = time.monotonic() + LEAVE_WITHIN_S
        for each in self._attendants:
            each.join(max(0.0, ends_s - time.monotonic()))

    def _tell(self) -> None:
        metric = metric_of(self._wanted.plan, self._trials())
        for each in self._attendants:
            now, before = each.seen(), self._told.get(each.number)
            for line in report.progress(each.run.id, before, now, metric):
                print(line, flush=True)
            self._told[each.number] = now

    # -- the end ------------------------------------------------------------------------------------------------------

    def what_is_left(self) -> str:
        going = [each.run.id for each in self._attendants if not each.seen().settled]
        if not going:
            return f"nothing of {self._record_name} is left running; the same command continues the sweep"
        return (
            f"{', '.join(going)} may still be running; the same command continues the sweep, "
            f"`spotrun down {self._sweep.typed}` ends it"
        )

    def _report_end(self) -> None:
        """
        Raise the error with which the sweep ended, if there is one.

        Raises:
            SpecInvalid, RunEnded: see `attend`.
        """
        if self._failed is not None:
            raise self._failed
        name, trials = self._record_name, self._trials()
        if self._stopping:
            raise RunEnded(f"{name} was stopped", hint="the same command continues it")
        if not any(each.outcome == "completed" for each in trials):
            why = next(
                (shown.why for shown in self.shown().trials if shown.why), self._over.reason if self._over else ""
            )
            raise RunEnded(
                f"no trial of {name} is complete: {why}", hint=f"see `spotrun status {name}` and `spotrun logs`"
            )


def _answer(caught: Interrupt, background: bool) -> str:
    """Return what to do after Ctrl-C or a signal: `stop`, `detach`, or `on` (continue)."""
    number = caught.signal if isinstance(caught, Signalled) else signal.SIGINT
    if number == signal.SIGHUP:
        return "on" if background else "detach"
    if number != signal.SIGINT or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return "stop"
    try:
        answered = stop_or_detach("all trials")
    except Signalled as later:
        return _answer(later, background)
    if answered is None:
        say(f"\nno answer within {ANSWER_WITHIN_S:.0f} s, so the sweep continues as before; Ctrl-C asks again")
    return answered or "on"
