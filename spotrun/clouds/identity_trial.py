"""
Checks whether spotrun can give each run a separate identity: makes an identity for an imaginary run, and removes it
again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from spotrun.clock import Clock
from spotrun.clouds.identities import Identities, trial_uid
from spotrun.doctor.finding import Finding, waits
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable
from spotrun.units import to_the_second

LOOK_AGAIN_S = 5.0
DENIED_WITHIN = timedelta(seconds=20)
"""
Time for which `doctor` repeats a denied call after it made an identity, because the cloud may not know the identity's
rights yet. The time is short, because a user is waiting and most denials are permanent. A run repeats such a call for
longer.
"""


@contextlib.contextmanager
def trial_identity(identities: Identities, clock: Clock) -> Iterator[str]:
    """
    Yield the uid of an imaginary run. The block makes an identity for it; after the block, remove the identity.
    """
    uid = trial_uid(clock.now())
    try:
        yield uid
    except BaseException:
        with contextlib.suppress(CloudError):  # the first error is reported
            identities.remove(uid)
        raise
    identities.remove(uid)


class Settling(NamedTuple):
    """
    Waits until all parts of the cloud recognise a new identity, which can take a while after the identity was made.
    `what` completes the sentence "waits for …" in a finding, for example with `AWS to know the new role`.
    """

    what: str
    clock: Clock
    denied_within: timedelta = DENIED_WITHIN

    def findings(
        self,
        name: str,
        ask: Callable[[], object],
        until: datetime,
        unsettled: type[CloudError] | tuple[type[CloudError], ...] = CloudUnavailable,
    ) -> Iterator[Finding]:
        """
        Call `ask` again and again while it raises `unsettled`, but only until the time `until`; then raise the last
        error. If the first call fails, yield a finding which says that the check is waiting.
        """
        told, denied_until = False, self.clock.now() + self.denied_within
        while True:
            try:
                ask()
            except unsettled as error:
                ends_at = min(until, denied_until) if isinstance(error.__cause__, AccessDenied) else until
                if self.clock.now() >= ends_at:
                    raise
                if not told:
                    at_most = to_the_second(ends_at - self.clock.now())
                    yield waits(name, f"for {self.what} everywhere, {at_most} at most ({error.message})")
                told = True
            else:
                return
            self.clock.sleep(LOOK_AGAIN_S)
