"""
The port to what a run's instances may do in their cloud: an identity that reaches that run's folder and no other's; and
a driver that has it made before it launches.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime, timedelta
from typing import Protocol

from spotrun.clock import Clock
from spotrun.clouds.driver import CloudDriver, WrappedDriver
from spotrun.errors import AccessDenied, CloudError, CloudUnavailable, IdentityPending, IdentityUnknown
from spotrun.instance import Instance, LaunchRequest
from spotrun.offering import CapacityType

SETTLES_WITHIN = timedelta(minutes=3)
"""
A cloud knows a new identity, and who may use it, everywhere after some seconds. Users of EC2 report up to two minutes:
https://github.com/hashicorp/terraform/issues/15341. What it does not know by then does not exist, and what it denies is
not allowed.
"""

TRIAL = "doctor"
"""Prefix of the uid of a run that does not exist: `doctor` gives it an identity, and takes that away again."""
TRIAL_LASTS = timedelta(hours=1)
"""A trial identity that is older was left behind."""


def trial_uid(now: datetime) -> str:
    return f"{TRIAL}{int(now.timestamp()):08x}{secrets.token_hex(1)}"


def is_left_trial(uid: str, now: datetime) -> bool:
    """Return whether `uid` is that of a trial that cannot be under way any more."""
    try:
        began = datetime.fromtimestamp(int(uid.removeprefix(TRIAL)[:8], 16), UTC)
    except ValueError:
        return False
    return uid.startswith(TRIAL) and abs(now - began) >= TRIAL_LASTS


class Identities(Protocol):
    """
    Makes an identity for each run, and takes it away again.

    Every failure of the cloud is one of CloudDriver's errors. QuotaExceeded: the account has as many as it may.
    """

    noun: str
    """The cloud's word for an identity: `role`."""

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

    noun = "identity"

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
            IdentityPending: it cannot be made just now; or the cloud may not know it yet, or not who may use it.
            IdentityUnknown: it has had the time to learn of it.
        """
        if request.offering.capacity_type is CapacityType.OWN:
            return super().launch(request)  # it acts with the rights of the launching user
        self._make(request)
        try:
            return super().launch(request)
        except (IdentityUnknown, AccessDenied) as error:
            # A runner that took the run for ended may have removed it. Of what is gone Google may say "denied".
            self._is_made = False
            self._make(request)
            self._wait_if_new(error)
            raise

    def _wait_if_new(self, error: CloudError) -> None:
        if self._since is not None and self._clock.now() - self._since < SETTLES_WITHIN:
            raise IdentityPending(error.message, hint=error.hint) from error

    def _make(self, request: LaunchRequest) -> None:
        """Once. Another runner makes it again, which is harmless."""
        if self._is_made:
            return
        try:
            since = self._identities.make(request.run_uid, request.run_uri)
        except CloudUnavailable as error:
            raise IdentityPending(error.message, hint=error.hint) from error
        if since is not None:
            self._since = max(since, self._since or since)
        self._is_made = True

    def remove_identity(self, run_uid: str) -> str:
        """
        For a run that has ended: why a part of its identity is left, "" if nothing is. If the run is resumed, its next
        launch makes the identity again.
        """
        self._is_made = False
        try:
            self._identities.remove(run_uid)
        except CloudError as error:
            return f"what its instances could do is left, and `spotrun reap` removes it: {error.message}"
        return ""
