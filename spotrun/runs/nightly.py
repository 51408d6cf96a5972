"""
Starts or continues a nightly run, for `spotrun launch JOB.yaml --nightly`, a command that users run from cron. Its
effect depends on last night's run:

    that run still has a runner                   start nothing, exit 11
    that run has not finished, and has no runner  continue it, because its work is already paid for
    that run has finished                         end its remaining instances, and start a new run
    there is no such run                          start a new run
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

from spotrun import address
from spotrun.account.summary import summarise
from spotrun.errors import NightUnderWay
from spotrun.notify.news import night
from spotrun.run.events import RunCreated
from spotrun.runner.creation import differences, in_what, would_be_created
from spotrun.runs import attend
from spotrun.runs.interrupts import told
from spotrun.runs.known import is_known
from spotrun.runs.locks import alone, lock_of
from spotrun.runs.notifying import notifying
from spotrun.runs.open_run import OpenRun, attended, newest_of
from spotrun.runs.pinning import with_baseline_price, with_image
from spotrun.runs.prepared import Prepared
from spotrun.spec.model import RunSpec


def attend_tonight(spec: RunSpec, start: Path | None, prepare: Callable[[], Prepared]) -> None:
    """
    Take care of the newest nightly run of `spec` if it has not finished. Otherwise create a new one with `prepare`, and
    take care of it until it ends.

    Raises:
        NightUnderWay: another process already takes care of a nightly run of this job.
        RunEnded, LimitExceeded: see `attend`.
    """
    with one_at_a_time(spec):
        found = newest_of(spec.name, spec.checkpoint.uri, "runner")
        if found is not None:
            last, knows = found

            def as_now() -> RunCreated:
                stored, _ = with_image(with_baseline_price(spec), os.environ)
                return would_be_created(stored, last.created.uid, start)

            unfinished = _unfinished(last)
            ours = is_known(last) if knows else may_carry_on(last, as_now)
            if unfinished and not ours:
                raise _strange(last, as_now)
            if unfinished:
                print(f"continuing {last.id}, which was not finished{_if_late(last)}", flush=True)
                attend.attend(last, nightly=True)
                return
            if ours:
                clean_up(last)
        prepared = prepare()
        prepared.show()
        attend.attend(prepared.create(), nightly=True)


@contextlib.contextmanager
def one_at_a_time(spec: RunSpec) -> Iterator[None]:
    """
    Hold a lock during this block, so that only one process takes care of the nightly runs with this job's name in this
    store.

    Raises:
        NightUnderWay: another process on this machine holds the lock.
    """
    with alone(_lock_path(spec), _under_way(spec.name)):
        yield


def _lock_path(spec: RunSpec) -> Path:
    """
    Return the path of the lock. If the store is a folder, the lock is in that folder, where all users of the store find
    the same lock.
    """
    place = spec.checkpoint.place
    if isinstance(place, str):
        return Path(address.absolute(place)) / f".night-{spec.name}.lock"
    return lock_of(f"{spec.name}-{sha256(str(place).encode()).hexdigest()[:16]}")


def _unfinished(run: OpenRun) -> bool:
    """
    Return True if the nightly run has not finished and can be continued.

    Raises:
        NightUnderWay: another runner takes care of it.
    """
    state = run.ledger.refresh()
    if state.terminal is None and attended(run):
        raise _under_way(run.id)
    return state.terminal is None and not state.stop_requested


def may_carry_on(run: OpenRun, as_now: Callable[[], RunCreated]) -> bool:
    """
    Return True if the run can be continued without asking the user. This is so in two cases: the run is known on this
    machine as the user's own (known.py); or its code is executed only on other machines, and its entry 0 is the same as
    the one that `as_now` makes from the current job.

    The second case is for a scheduler that starts each night on a new machine, on which no run is known. On a machine
    that knows a run of the job, such a run was created elsewhere, and does not count. The run does not become known
    there, because the job may change: each night has to compare the entries again.
    """
    return is_known(run) or (not run.trains_here and not differences(run.created, as_now()))


def _strange(run: OpenRun, as_now: Callable[[], RunCreated]) -> NightUnderWay:
    here = ", and its code would run on this machine" if run.trains_here else ""
    why = here or in_what(differences(run.created, as_now()))
    return NightUnderWay(
        f"{run.id} is not finished, and was created elsewhere or from another job{why}",
        hint=f"if it is yours, `spotrun resume {run.typed} --yes` continues it; `spotrun down {run.typed}` ends it",
    )


def _under_way(what: str) -> NightUnderWay:
    hint = "see `spotrun status`; the next call after the end of this run starts a new one"
    return NightUnderWay(f"a nightly run of {what} is still in progress", hint=hint)


def _if_late(run: OpenRun) -> str:
    deadline_at = run.created.deadline_at
    if deadline_at is None or run.clock.now() < deadline_at:
        return ""
    return f"; its deadline has passed, so it trains on demand within its budget (`spotrun down {run.typed}` ends it)"


def clean_up(run: OpenRun) -> None:
    """End all instances of a run that has ended or has been asked to stop, and send all its notifications."""
    with told(run), notifying(run, ours=True) as notifier:
        last = run.runner.run(lambda _: notifier.show(run.ledger.entries))
        notifier.tell(night(last.state, summarise(last.state, run.clock.now())))
