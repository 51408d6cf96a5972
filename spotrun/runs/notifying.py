"""Sends a run's notifications to the receivers that its job names, while a command takes care of the run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from spotrun.notify.notifier import Notifier
from spotrun.report.tables import plain
from spotrun.runs.known import is_known
from spotrun.runs.open_run import OpenRun


@contextlib.contextmanager
def notifying(run: OpenRun, *, ours: bool = False) -> Iterator[Notifier]:
    """
    Send notifications while this block runs, to the receivers that the job names. At the end of the block, print each
    failure.

    A run that is not known (known.py) sends no notifications, because a receiver can be any command. The caller sets
    `ours` if it has checked in another way that the run is the user's.
    """
    told = run.spec
    if told.notify and not ours and not is_known(run):
        print(f"note: no notifications: {run.id} was not created by this user on this machine", file=sys.stderr)
        told = told.model_copy(update={"notify": ()})
    notifier = Notifier(told, run.store, run.owner)
    with notifier:
        yield notifier
    for failure in notifier.failures:
        print(f"note: {plain(failure)}", file=sys.stderr)
