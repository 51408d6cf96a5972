"""`spotrun down`"""

from __future__ import annotations

from time import monotonic as system_s
from time import sleep
from typing import TYPE_CHECKING

from spotrun.cli.options import RunArgument, StoreOption, YesOption
from spotrun.errors import (
    CloudError,
    CloudUnavailable,
    LedgerDamaged,
    LedgerFlooded,
    LoginNeeded,
    SpecInvalid,
    StoreError,
)

if TYPE_CHECKING:
    from spotrun.cli.runs import OpenRun
    from spotrun.cli.sweeps import NamedSweep

DOWN_WITHIN_S = 60.0
LOOK_AGAIN_S = 0.5
"""System time."""


def down(run: RunArgument, store: StoreOption = None, yes: YesOption = False) -> None:
    """
    End a run and its instances now, without a last checkpoint.

    The name of a sweep means all of its runs.
    """
    from spotrun.cli.asking import confirm, say
    from spotrun.cli.interrupts import told, what_is_left
    from spotrun.cli.runs import open_run
    from spotrun.cli.sweeps import sweep_named
    from spotrun.cli.unreadable import end_nameless

    sweep = sweep_named(run, store)
    if sweep is not None:
        _end_sweep(sweep, yes)
        return
    try:
        opened = open_run(run, store)
    except LedgerDamaged:
        end_nameless(run, store, yes)
        raise
    confirm(yes, f"End {opened.id} and its instances now?", default=True, declined="nothing was ended")
    try:
        with told(opened):
            take_down(opened)
    except CloudError:
        say(what_is_left(opened))
        raise


def _end_sweep(sweep: NamedSweep, yes: bool) -> None:
    """All of its runs first stop to launch, then they end one by one."""
    from spotrun.cli.asking import confirm
    from spotrun.cli.interrupts import told
    from spotrun.units import count_of

    going = [run for run in sweep.runs() if not _is_settled(run)]
    question = f"End the sweep {sweep.record.name} ({count_of(len(going), 'run')} of it) and their instances now?"
    confirm(yes, question, default=True, declined="nothing was ended")
    sweep.request_stop()
    sweep.stop_all()
    for run in going:
        with told(run):
            take_down(run)
    print(f"{sweep.record.name} is down; nothing of it is left running")


def _is_settled(run: OpenRun) -> bool:
    state = run.ledger.refresh()
    return state.terminal is not None and all(launch.settled for launch in state.launches.values())


def take_down(opened: OpenRun) -> None:
    """
    End a run and its instances, and wait until that is done.

    Raises:
        CloudUnavailable: it is not done within `DOWN_WITHIN_S`.
    """
    from spotrun.cli.asking import say
    from spotrun.cli.notifying import notifying
    from spotrun.folder.keys import KeyMissing

    try:
        _ask_to_stop(opened)
    except (StoreError, KeyMissing):
        ended = end_instances(opened)  # nobody can append, and nobody should pay for that
        print(f"ended {', '.join(ended)}" if ended else "the cloud lists no living instance of it")
        for remark in opened.driver.remarks:
            print(remark)
        raise
    deadline, waits_for = system_s() + DOWN_WITHIN_S, ""
    while system_s() < deadline:
        unseen = _unended(opened)
        tick = opened.runner.tick()
        if tick.done:
            with notifying(opened) as notifier:
                notifier.show(opened.ledger.entries)
            print(f"{opened.id} is down; nothing of it is left running")
            return
        before, waits_for = waits_for, tick.waiting_for or tick.remark or unseen
        if waits_for not in ("", before):
            say(f"{opened.id} is not down yet: {waits_for}")
        sleep(LOOK_AGAIN_S)
    why = f": {waits_for}" if waits_for else ""
    raise CloudUnavailable(
        f"{opened.id} is not down after {DOWN_WITHIN_S:.0f} s{why}", hint="repeat, or look at `spotrun events`"
    )


def _ask_to_stop(opened: OpenRun) -> None:
    """If nobody gets a word in because its own instances write all the time, they end first."""
    from spotrun.cli.asking import say
    from spotrun.cli.interrupts import request_stop

    try:
        request_stop(opened)
    except LedgerFlooded as flood:
        say(f"{flood.message}; its instances are ended first")
        end_instances(opened)
        request_stop(opened)


def _unended(run: OpenRun) -> str:
    """
    End its instances: why that has to be tried again, "" if it has not.

    Raises:
        LoginNeeded: the next look would fail too, and who waits here cannot log in.
    """
    try:
        end_instances(run)
    except LoginNeeded:
        raise
    except CloudUnavailable as error:
        return error.one_line
    return ""


def end_instances(run: OpenRun) -> list[str]:
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
