"""Telling those whom a job names of its run, while a command attends to it."""

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
    Tells those whom the job names of what happens meanwhile; and this terminal of what they were not told.

    Of a run that is not known here nobody is told: its job may name any command. `ours`: it is known, or was compared.
    """
    told = run.spec
    if told.notify and not ours and not is_known(run):
        print(f"note: nobody is notified: {run.id} was not created by this user on this machine", file=sys.stderr)
        told = told.model_copy(update={"notify": ()})
    notifier = Notifier(told, run.store)
    with notifier:
        yield notifier
    for failure in notifier.failures:
        print(f"note: {plain(failure)}", file=sys.stderr)
