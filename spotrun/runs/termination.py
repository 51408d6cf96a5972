"""Ends a run and its instances."""

from __future__ import annotations

from time import monotonic as system_s
from time import sleep
from typing import TYPE_CHECKING

from spotrun.errors import CloudUnavailable, LedgerFlooded, LoginNeeded, SpecInvalid, StoreError
from spotrun.folder.keys import KeyMissing
from spotrun.runs.asking import say
from spotrun.runs.interrupts import request_stop
from spotrun.runs.notifying import notifying
from spotrun.runs.open_run import OpenRun
from spotrun.runs.unreadable import end_listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spotrun.clouds.driver import CloudDriver

DOWN_WITHIN_S = 60.0
LOOK_AGAIN_S = 0.5
"""Seconds of system time between two tries to end the instances, or between two looks whether they end."""


def take_down(opened: OpenRun) -> None:
    """
    End a run and its instances, and wait until they have ended.

    Raises:
        CloudUnavailable: the instances have not ended within `DOWN_WITHIN_S`.
    """
    try:
        _ask_to_stop(opened)
    except (StoreError, KeyMissing):
        asked = end_instances(opened)  # no runner can append, and the user should not pay for that
        print(f"asked to end {', '.join(asked)}" if asked else "the cloud lists no running instance of the run")
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
            print(f"{opened.id} is down: all of its instances have ended")
            return
        before, waits_for = waits_for, tick.waiting_for or tick.remark or unseen
        if waits_for not in ("", before):
            say(f"{opened.id} is not down yet: {waits_for}")
        sleep(LOOK_AGAIN_S)
    why = f": {waits_for}" if waits_for else ""
    known = [member.recorded for member in opened.ledger.state.members() if member.gone is None]
    left = [each.instance_id for each in known if each is not None]
    by_hand = f"; if it says the same then, end {', '.join(left)} in the cloud's console" if left else ""
    raise CloudUnavailable(
        f"{opened.id} is not down after {DOWN_WITHIN_S:.0f} s{why}", hint=f"repeat the command in some minutes{by_hand}"
    )


def _ask_to_stop(opened: OpenRun) -> None:
    """
    Write a stop request into the ledger. The run's instances can prevent that by writing new entries without a pause,
    because each entry needs a new number. In that case, end the instances first, and then write the request.
    """
    try:
        request_stop(opened)
    except LedgerFlooded as flood:
        say(f"{flood.message}; its instances are ended first")
        end_instances(opened)
        request_stop(opened)


def _unended(run: OpenRun) -> str:
    """
    Ask the cloud to end the run's instances. Return "" if the cloud accepted this for all of them; otherwise return the
    reason why the caller has to try again.

    Raises:
        LoginNeeded: another try would fail too, because the user cannot log in while this command waits.
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
    End all instances of the run that have not ended. If a region does not answer, end those in the other regions; a
    runner's tick reports each region in which the run may still have instances.

    Returns:
        The ids of the instances that it asked the cloud to end.
    """
    try:
        driver = run.driver
    except SpecInvalid:
        end_listed(run.store, run.created.uid)  # the run's job cannot be read by this spotrun
        raise
    living = [each.instance_id for each in driver.instances(run.created.uid, must_see=()) if each.alive]
    for instance_id in living:
        driver.terminate(instance_id)
    return living


def still_there(driver: CloudDriver, asked: Mapping[str, str]) -> set[str]:
    """
    Wait until the cloud lists none of the instances `asked` except as ending or ended. `asked` maps their ids to their
    regions.

    Returns:
        The ids of the instances that it still lists otherwise after `DOWN_WITHIN_S`.
    """
    deadline = system_s() + DOWN_WITHIN_S
    while True:
        listed = driver.instances(must_see={*asked.values()})
        left = {each.instance_id for each in listed if each.instance_id in asked and not each.is_ending}
        if not left or system_s() >= deadline:
            return left
        sleep(LOOK_AGAIN_S)
