"""
The port to what a run's instances may do in their cloud: an identity that reaches that run's folder and no other's; and
a driver that has it made before it launches.
"""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import Protocol

from spotrun.clock import Clock
from spotrun.clouds.driver import CloudDriver, WrappedDriver
from spotrun.errors import CloudError, CloudUnavailable, IdentityUnknown
from spotrun.instance import Instance, LaunchRequest

SETTLES_WITHIN = timedelta(minutes=2)
"""
A new identity is known everywhere in its cloud after some seconds; EC2 has taken up to two minutes, say its users:
https://github.com/hashicorp/terraform/issues/15341. What it does not know by then is not there.
"""


class Identities(Protocol):
    """
    Makes an identity for each run, and takes it away again.

    Every failure of the cloud is a CloudError as of CloudDriver; QuotaExceeded: the account has as many as it may.
    """

    def make(self, run_uid: str, run_uri: str) -> datetime | None:
        """
        Have the identity of a run there, whole; repeating it is harmless, also after a call that was cut off anywhere.

        Returns:
            Since when it is, for a cloud takes a while to know it everywhere; None where there is nothing to make.

        Raises:
            CloudError: something else goes by its name, or it may not be made.
            CloudUnavailable: ask again; it may be made in part.
        """

    def remove(self, run_uid: str) -> None:
        """
        Take the identity of a run away, or what is left of it; harmless where there is none.

        An instance that still is it could do nothing any more from then on.

        Raises:
            CloudError: it is still there, at least in part.
        """

    def runs(self) -> list[str]:
        """The uids of all runs that have one, whole or in part."""


class NoIdentities:
    """For clouds whose instances are whoever launches them, and for runs whose instances are all the same somebody."""

    def make(self, run_uid: str, run_uri: str) -> datetime | None:
        return None

    def remove(self, run_uid: str) -> None:
        pass

    def runs(self) -> list[str]:
        return []


class IdentifiedDriver(WrappedDriver):
    """The driver of one run, whose identity it has made before the first launch."""

    def __init__(self, driver: CloudDriver, identities: Identities, clock: Clock) -> None:
        super().__init__(driver)
        self._identities = identities
        self._clock = clock
        self._is_made = False
        self._since: datetime | None = None

    def launch(self, request: LaunchRequest) -> Instance:
        """
        Raises:
            CloudUnavailable: the cloud may not know the identity yet.
            IdentityUnknown: it has had the time to learn of it.
        """
        self._make(request)
        try:
            return super().launch(request)
        except IdentityUnknown as error:
            self._is_made = False  # a runner that took the run for ended may have removed it
            self._make(request)
            if self._since is None or self._clock.now() - self._since >= SETTLES_WITHIN:
                raise
            raise CloudUnavailable(error.message) from error

    def _make(self, request: LaunchRequest) -> None:
        """Once. Another runner makes it again, which is harmless."""
        if self._is_made:
            return
        since = self._identities.make(request.run_uid, request.run_uri)
        if since is not None:
            self._since = max(since, self._since or since)
        self._is_made = True

    def remove_identity(self, run_uid: str) -> None:
        """For a run that has ended. If it is resumed, its next launch makes the identity again."""
        self._is_made = False
        with contextlib.suppress(CloudError):  # `spotrun reap` removes what is left
            self._identities.remove(run_uid)
