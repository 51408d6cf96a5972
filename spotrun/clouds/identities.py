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
A cloud knows a new identity everywhere after some seconds. Users of EC2 report up to two minutes:
https://github.com/hashicorp/terraform/issues/15341. What it does not know by then does not exist.
"""


class Identities(Protocol):
    """
    Makes an identity for each run, and takes it away again.

    Every failure of the cloud is one of CloudDriver's errors. QuotaExceeded: the account has as many as it may.
    """

    def make(self, run_uid: str, run_uri: str) -> datetime | None:
        """
        Make the identity of a run, or complete it. Repeating it is harmless, also after a call that was cut off.

        Returns:
            When it was made, as a cloud takes a while to know it everywhere; None if there is nothing to make.

        Raises:
            CloudError: something else has its name, or the caller may not make it.
            CloudUnavailable: ask again; a part of it may exist.
        """

    def remove(self, run_uid: str) -> None:
        """
        Remove the identity of a run, or what is left of it; harmless if there is none.

        An instance that still has it can do nothing from then on.

        Raises:
            CloudError: at least a part of it still exists.
        """

    def runs(self) -> list[str]:
        """The uids of all runs that have an identity, or a part of one."""


class NoIdentities:
    """For clouds where instances act with the rights of the launching user, and for runs that share one identity."""

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
