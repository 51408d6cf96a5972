"""
Handles Ctrl-C and signals to a runner. Before the runner's process ends, it prints the run's state, and the commands
that continue or end the run.

    Ctrl-C    ask whether to stop or to detach, and wait ANSWER_WITHIN_S for an answer; without a terminal: stop
    SIGTERM   stop, within STOP_WITHIN_S
    SIGHUP    detach: a runner in the background takes over

If another runner also takes care of the run, Ctrl-C and signals end only this process, and the run continues. If the
run is already stopping, another Ctrl-C or signal ends this process immediately. Even then, the agent on the instance
tries to save a last checkpoint, because it does not depend on this process.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NoReturn

from spotrun.account.outcome import is_plain
from spotrun.errors import SpotrunError, StoreError
from spotrun.folder.attendance import other_runner, process_of
from spotrun.folder.ledger import EntryRefused
from spotrun.folder.status_objects import RunnerStatus
from spotrun.folder.store_capacity import shortage
from spotrun.report.unattended import attended_to, left_alone
from spotrun.run.events import StopRequested
from spotrun.runs.asking import choose, say
from spotrun.runs.background import leave_behind, log_of, open_to_append
from spotrun.runs.open_run import OpenRun, who
from spotrun.runs.signals import Signalled, undisturbed

STOP_WITHIN_S = 60.0
"""Maximum seconds of system time for a stop: less than 90, because systemd sends SIGKILL 90 s after SIGTERM."""
ANSWER_WITHIN_S = 20.0
"""Maximum seconds of system time for an answer. No runner takes care of the run while the question is open."""
Interrupt = KeyboardInterrupt | Signalled


class Interrupts:
    """
    Handles Ctrl-C and signals to one runner. `background` is True if the runner has no terminal, because it was started
    in the background.
    """

    def __init__(self, run: OpenRun, *, background: bool) -> None:
        self._run = run
        self._background = background
        self._stopped_by: Interrupt | None = None

    def answer(self, caught: Interrupt) -> bool:
        """
        Handle an interrupt. Return True if this runner is to continue, and False if a background runner has taken over.

        Raises:
            KeyboardInterrupt, Signalled: this process has to end.
        """
        number = caught.signal if isinstance(caught, Signalled) else signal.SIGINT
        if self._stopped_by is None and _attends_elsewhere(self._run):
            self._leave(caught)
        if number == signal.SIGHUP:
            return self._hung_up()
        if self._stopped_by is not None:
            self._leave(self._stopped_by)
        if number == signal.SIGINT and sys.stdin.isatty() and sys.stdout.isatty():
            try:
                answered = stop_or_detach()
            except Signalled as later:
                return self.answer(later)
            if answered is None:
                say(f"\nno answer within {ANSWER_WITHIN_S:.0f} s, so the run continues as before; Ctrl-C asks again")
                return True
            if answered == "detach":
                return self._detach()
        return self._stop(caught)

    def done(self) -> None:
        """Cancel the timer that ends a stop after STOP_WITHIN_S."""
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _hung_up(self) -> bool:
        if self._background:
            say("SIGHUP: this runner has no terminal, and continues")
            return True
        self._note("SIGHUP: the terminal is gone; a runner in the background takes over")
        try:
            return self._detach()
        except SpotrunError as error:
            self._note(f"{error.message}. {what_is_left(self._run)}")
            raise

    def _detach(self) -> bool:
        with undisturbed():
            leave_behind(self._run)
        return False

    def _stop(self, caught: Interrupt) -> bool:
        by = f"{caught.signal.name}: " if isinstance(caught, Signalled) else ""
        try:
            with undisturbed():
                request_stop(self._run)
        except StoreError as error:
            failure = f"{by}the stop could not be written ({error.message})"
            if isinstance(caught, Signalled):
                say(failure)
                self._leave(caught)
            say(f"{failure}; the run continues: try Ctrl-C again")
            return True
        self._stopped_by = caught
        limit = ""
        if isinstance(caught, Signalled):
            signal.setitimer(signal.ITIMER_REAL, STOP_WITHIN_S)
            limit = f", within {STOP_WITHIN_S:.0f} s"
        say(f"{by}stopping {self._run.id}: {last_act(self._run)}, and leaves nothing running{limit}")
        return True

    def _leave(self, caught: Interrupt) -> NoReturn:
        say(what_is_left(self._run))
        raise caught

    def _note(self, line: str) -> None:
        """
        Print a line, and write it to the log of the background runner too, because the terminal may already be closed.
        """
        say(line)
        with contextlib.suppress(OSError), open_to_append(log_of(self._run)) as log:
            log.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {line}\n".encode())


@contextlib.contextmanager
def told(run: OpenRun) -> Iterator[None]:
    """If Ctrl-C or a signal ends this block, print the run's state, and the commands that continue or end the run."""
    try:
        yield
    except (KeyboardInterrupt, Signalled):
        say(what_is_left(run))
        raise


def what_is_left(run: OpenRun) -> str:
    """Describe the state in which this process leaves the run, and name the commands that continue or end it."""
    state, other = run.ledger.state, _attends_elsewhere(run)
    if other is None or state.terminal is not None:
        return left_alone(run.typed, state)
    return f"this process ends. {attended_to(run.typed, state, process_of(other))}"


def _attends_elsewhere(run: OpenRun) -> RunnerStatus | None:
    """Return another runner that takes care of the run; None if there is none, or the store cannot be read now."""
    try:
        return other_runner(run.store, run.clock)
    except StoreError:
        return None


def last_act(run: OpenRun) -> str:
    """
    Describe what spotrun still does for a stopping run before its instances end, such as saving a last checkpoint.
    """
    state = run.ledger.state
    no_room = shortage(run.store, state)
    if state.current is None:
        return "spotrun has no instance that trains it now"
    if is_plain(state):
        act, saved = "spotrun asks its command to end, stores its files", "files"
    else:
        act, saved = "spotrun saves a last checkpoint", "checkpoint"
    return f"spotrun can store no {saved} now ({no_room})" if no_room else act


def request_stop(run: OpenRun, by: str | None = None) -> bool:
    """
    Append to the ledger a request to stop the run. The entry names its author: `by`, or this user if `by` is None.
    Return False if no entry was needed, because the run has ended or a stop was already requested.
    """
    event = StopRequested(by=by or who())
    try:
        entry = run.ledger.append(lambda state: None if state.stop_requested or state.terminal else event)
    except EntryRefused:
        return False
    return entry is not None


def stop_or_detach(what: str = "the run") -> str | None:
    """
    Ask whether to stop or to detach, and return the answer; None if there was no answer within ANSWER_WITHIN_S. A
    second Ctrl-C means stop. End of input (Ctrl-D) means detach, because the user did not decide to stop.
    """
    signal.setitimer(signal.ITIMER_REAL, ANSWER_WITHIN_S)
    try:
        return choose(f"Stop {what}, or detach and let it continue? [s/d]: ", ("stop", "detach"))
    except Signalled as caught:
        if caught.signal == signal.SIGALRM:
            return None
        raise
    except KeyboardInterrupt:
        print()
        return "stop"
    except EOFError:
        return "detach"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
