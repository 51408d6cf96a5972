"""`spotrun down`"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from spotrun.cli.options import RunOrNewest, StoreOption, YesOption
from spotrun.errors import CloudError, LedgerDamaged, SpotrunError, StoreError

if TYPE_CHECKING:
    from spotrun.runs.open_run import OpenRun
    from spotrun.runs.sweeps import NamedSweep


def down(run: RunOrNewest = None, store: StoreOption = None, yes: YesOption = False) -> None:
    """
    End a run and its instances now, without a final checkpoint.

    If RUN is the name of a sweep, end all of its runs.
    """
    from spotrun.runs.asking import confirm, say
    from spotrun.runs.interrupts import told, what_is_left
    from spotrun.runs.open_run import namesakes, open_run, or_newest_here
    from spotrun.runs.sweeps import sweep_meant
    from spotrun.runs.termination import take_down
    from spotrun.runs.unreadable import end_nameless
    from spotrun.units import some_of

    run = or_newest_here(run, store)
    sweep = sweep_meant(run, store)
    if sweep is not None:
        _end_sweep(sweep, yes)
        return
    try:
        opened = open_run(run, store, to_end=True)
    except LedgerDamaged:
        end_nameless(run, store, yes)
        raise
    if others := [each.typed for each in namesakes(run, store, opened) if not _is_settled(each)]:
        say(f"note: other runs of this name go on, each ended by its id: {some_of(others)}")
    if ended := _has_ended(opened):
        say(f"note: {opened.id} has ended already")
    confirm(yes or ended, f"End {opened.id} and its instances now?", default=True, declined="nothing was ended")
    try:
        with told(opened):
            take_down(opened)
    except CloudError:
        say(what_is_left(opened))
        raise


def _end_sweep(sweep: NamedSweep, yes: bool) -> None:
    """Stop all runs of a sweep, so that none launches another instance. Then end them one by one."""
    from spotrun.runs.asking import confirm
    from spotrun.runs.interrupts import told
    from spotrun.runs.sweeps import for_each
    from spotrun.runs.termination import take_down
    from spotrun.units import count_of

    going = [run for run in sweep.to_end() if not _is_settled(run)]
    question = f"End the sweep {sweep.record.name} ({count_of(len(going), 'run')}) and its instances now?"
    confirm(yes, question, default=True, declined="nothing was ended")

    def end(run: OpenRun) -> None:
        with told(run):
            take_down(run)

    sweep.request_stop()
    with contextlib.suppress(SpotrunError):  # `take_down` asks again, and ends the instances even if that fails
        sweep.stop_all()
    for_each(going, end)
    print(f"{sweep.record.name} is down: all of its runs have ended")


def _has_ended(run: OpenRun) -> bool:
    """Return False also if the ledger cannot be read: `take_down` reports that once it has ended the instances."""
    try:
        return _is_settled(run)
    except StoreError:
        return False


def _is_settled(run: OpenRun) -> bool:
    state = run.ledger.refresh()
    return state.terminal is not None and all(launch.settled for launch in state.launches.values())
