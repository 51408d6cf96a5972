"""
The interface for making identities, and a driver that makes a run's identity before the run's first launch.

An identity is a role or a service account. It gives a run's instances their rights in the cloud: access to the run's
folder, and to no other run's folder.
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
Time within which all parts of a cloud recognise a new identity, and the rights to use it. Usually this takes seconds;
users of EC2 report up to two minutes: https://github.com/hashicorp/terraform/issues/15341. After this time, waiting
longer is useless. If the cloud still does not find an identity, the identity does not exist. If the cloud still denies
a call, it will go on denying it.
"""

TRIAL = "doctor"
"""
Uid prefix of trial identities. To check that identities can be made, `doctor` makes one for a run that does not exist,
and removes it.
"""
TRIAL_LASTS = timedelta(hours=1)
"""Age at which a trial identity counts as left behind by a `doctor` that died."""


def trial_uid(now: datetime) -> str:
    return f"{TRIAL}{int(now.timestamp()):08x}{secrets.token_hex(1)}"


def is_left_trial(uid: str, now: datetime) -> bool:
    """
    Return True if `uid` belongs to a trial identity so old that the `doctor` that made it must have died.
    """
    try:
        began = datetime.fromtimestamp(int(uid.removeprefix(TRIAL)[:8], 16), UTC)
    except ValueError:
        return False
    return uid.startswith(TRIAL) and abs(now - began) >= TRIAL_LASTS


class Identities(Protocol):
    """
    Makes an identity for each run, and removes it later.

    If the cloud fails, the methods raise the errors that CloudDriver describes. QuotaExceeded means that the cloud
    account already has its maximum number of identities.
    """

    noun: str
    """The cloud's word for an identity: `role`."""

    def make(self, run_uid: str, run_uri: str) -> datetime | None:
        """
        Make the identity of a run, or the part that an interrupted call did not make. Repeating the call is harmless.

        Returns:
            The time when the identity was made; None if the run needs no identity. The caller needs this time because a
            cloud takes a while to recognise a new identity.

        Raises:
            CloudError: the identity's name is already taken, or the caller is not allowed to make the identity.
            CloudUnavailable: try again; a part of the identity may exist.
        """

    def remove(self, run_uid: str) -> None:
        """
        Remove the identity of a run, or the part that is left. Harmless if there is none.

        An instance that still has the identity loses its rights.

        Raises:
            CloudError: the identity, or a part of it, still exists.
        """

    def runs(self) -> list[str]:
        """Return the uids of all runs that have an identity, or a part of one."""


class NoIdentities:
    """
    The driver for clouds on which runs have no separate identities: instances have the launching user's rights, or all
    runs share one identity.
    """

    noun = "identity"

    def make(self, run_uid: str, run_uri: str) -> datetime | None:
        return None

    def remove(self, run_uid: str) -> None:
        pass

    def runs(self) -> list[str]:
        return []


class IdentifiedDriver(WrappedDriver):
    """The driver of one run, which makes the run's identity before the first launch."""

    def __init__(self, driver: CloudDriver, identities: Identities, clock: Clock) -> None:
        super().__init__(driver)
        self._identities = identities
        self._clock = clock
        self._is_made = False
        self._since: datetime | None = None

    def launch(self, request: LaunchRequest) -> Instance:
        """
        Launch an instance with the run's identity.

        Raises:
            IdentityPending: the identity cannot be made now; or the identity is new, and some parts of the cloud do not
                know the identity or its rights yet.
            IdentityUnknown: the cloud does not recognise the identity, although it is no longer new.
        """
        if request.offering.capacity_type is CapacityType.OWN:
            return super().launch(request)  # the instance acts with the rights of the launching user
        self._make(request)
        try:
            return super().launch(request)
        except (IdentityUnknown, AccessDenied) as error:
            # Make the identity again. Another runner may have removed it in the belief that the run had ended.
            # AccessDenied is caught too, because Google may report a missing identity as a denial.
            self._is_made = False
            self._make(request)
            self._wait_if_new(error)
            raise

    def _wait_if_new(self, error: CloudError) -> None:
        if self._since is not None and self._clock.now() - self._since < SETTLES_WITHIN:
            raise IdentityPending(error.message, hint=error.hint) from error

    def _make(self, request: LaunchRequest) -> None:
        """
        Make the identity, unless this driver has already made it. The drivers of other runners may make it too, which
        is harmless.
        """
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
        Remove the identity of a run that has ended. If a part of it could not be removed, return the reason; otherwise
        "". If the run is resumed, its next launch makes the identity again.
        """
        self._is_made = False
        try:
            self._identities.remove(run_uid)
        except CloudError as error:
            return f"the rights of its instances were not removed; `spotrun reap` removes them: {error.message}"
        return ""
