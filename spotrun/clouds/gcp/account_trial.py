"""Checks whether a run can have a service account of its own: makes one, as for a run, and removes it again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial

from spotrun.clock import Clock
from spotrun.clouds.identities import SETTLES_WITHIN, Identities, trial_uid
from spotrun.doctor.finding import Finding, ok, waits
from spotrun.errors import CloudError, CloudUnavailable
from spotrun.units import to_the_second

LOOK_AGAIN_S = 5.0
DENIED_WITHIN = timedelta(seconds=20)
"""
Maximum time to retry a denial. What is denied to the maker of a new account is mostly denied for good. A run waits
longer, since no user waits for it.
"""
NAME = "service account"


def account_trial(accounts: Identities, store_uri: str, clock: Clock) -> Iterator[Finding]:
    """
    Make and remove a service account, as a run does.

    Raises:
        CloudError: it cannot be made, or cannot be limited to its run's folder, or cannot be removed.
    """
    uid = trial_uid(clock.now())
    try:
        yield from _made(accounts, uid, f"{store_uri.rstrip('/')}/doctor-{uid}", clock)
    except BaseException:
        with contextlib.suppress(CloudError):  # the first reason is the one to report
            accounts.remove(uid)
        raise
    accounts.remove(uid)
    yield ok(NAME, "a run can have one of its own, limited to its folder; the trial's is removed again")


def _made(accounts: Identities, uid: str, run_uri: str, clock: Clock) -> Iterator[Finding]:
    """Make the account as a first runner does, then as a second one, which finds it."""
    for patience in (DENIED_WITHIN, SETTLES_WITHIN):
        yield from _settled(partial(accounts.make, uid, run_uri), clock, patience)


def _settled(ask: Callable[[], object], clock: Clock, patience: timedelta) -> Iterator[Finding]:
    """Retry until Google knows the new account everywhere. Tell the user once why this waits."""
    until, told = clock.now() + patience, False
    while True:
        try:
            ask()
        except CloudUnavailable as error:
            if clock.now() >= until:
                raise
            if not told:
                at_most = to_the_second(until - clock.now())
                what = f"for Google to know the new service account everywhere, {at_most} at most ({error.message})"
                yield waits(NAME, what)
            told = True
        else:
            return
        clock.sleep(LOOK_AGAIN_S)
