"""Telling those whom a job names of its run, while a command attends to it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from spotrun.cli.wiring import OpenRun
from spotrun.notify.notifier import Herald
from spotrun.report.tables import plain


@contextlib.contextmanager
def telling(run: OpenRun) -> Iterator[Herald]:
    """Tells those whom the job names of what happens meanwhile; and this terminal of what they were not told."""
    herald = Herald(run.spec, run.store)
    with herald:
        yield herald
    for failure in herald.failures:
        print(f"note: {plain(failure)}", file=sys.stderr)
