"""`spotrun down`"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from spotrun.cli.options import RunArgument, StoreOption, YesOption
from spotrun.errors import CloudUnavailable, LedgerDamaged, SpecInvalid, StoreError

if TYPE_CHECKING:
    from spotrun.cli.runs import OpenRun

DOWN_WITHIN_S = 60.0
LOOK_AGAIN_S = 0.5
"""System time."""


def down(run: RunArgument, store: StoreOption = None, yes: YesOption = False) -> None:
    """End a run and its instances now, without a last checkpoint."""
    from spotrun.cli.asking import confirm
    from spotrun.cli.interrupts import told
    from spotrun.cli.runs import open_run
    from spotrun.cli.unreadable import end_nameless

    try:
        opened = open_run(run, store)
    except LedgerDamaged:
        end_nameless(run, store, yes)
        raise
    confirm(yes, f"End {opened.id} and its instances now?", default=True, declined="nothing was ended")
    with told(opened):
        _end(opened)


def _end(opened: OpenRun) -> None:
    from spotrun.cli.interrupts import request_stop
    from spotrun.cli.notifying import notifying
    from spotrun.folder.keys import KeyMissing

    try:
        request_stop(opened)
    except (StoreError, KeyMissing):
        ended = _end_instances(opened)  # nobody can append, and nobody should pay for that
        print(f"ended {', '.join(ended)}" if ended else "the cloud lists no living instance of it")
        for remark in opened.driver.remarks:
            print(remark)
        raise
    deadline = time.monotonic() + DOWN_WITHIN_S
    while time.monotonic() < deadline:
        with contextlib.suppress(CloudUnavailable):  # the next look tries again
            _end_instances(opened)
        if opened.runner.tick().done:
            with notifying(opened) as notifier:
                notifier.show(opened.ledger.entries)
            print(f"{opened.id} is down; nothing of it is left running")
            return
        time.sleep(LOOK_AGAIN_S)
    raise CloudUnavailable(f"{opened.id} is not down after a minute", hint="repeat, or look at `spotrun events`")


def _end_instances(run: OpenRun) -> list[str]:
    """
    Of a region that fails the runner's tick says so, if the run has something there.

    Returns:
        The ids of those that lived.
    """
    from spotrun.cli.unreadable import end_listed

    try:
        driver = run.driver
    except SpecInvalid:
        end_listed(run.store, run.created.uid)  # of a job that this spotrun cannot read
        raise
    living = [each.instance_id for each in driver.instances(run.created.uid, must_see=()) if each.alive]
    for instance_id in living:
        driver.terminate(instance_id)
    return living
