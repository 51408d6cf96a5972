"""
The interface of guards, and a driver that arms a guard for each instance. A guard ends an instance from outside if
nothing else ends it (protocol 11).
"""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from spotrun.clock import Clock
from spotrun.clouds.driver import CloudDriver, WrappedDriver
from spotrun.errors import CloudError
from spotrun.instance import Instance, LaunchRequest
from spotrun.offering import CapacityType

AGAIN_AFTER = timedelta(minutes=10)
"""Time from a failed try to arm a guard to the next try. By then the cause of the failure may be gone."""


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """A guard that ends one instance at `ends_at`. `token` identifies the launch and the member (`guard_token`)."""

    token: str
    region: str
    instance_id: str
    ends_at: datetime


def guard_token(token: str, member: int) -> str:
    """Return the token of a member's guard. For the first member it is the launch's token."""
    return f"{token}.{member}" if member else token


class Guards(Protocol):
    """
    Ends instances from outside.

    An instance ends itself at the end of its time-to-live. If it fails to do so, its guard ends it, without help from
    the instance or from any runner.
    """

    def arm(self, guard: Guard) -> None:
        """
        Make the guard. Repeating the call must be harmless, because a runner that finds an instance cannot know whether
        another runner has already armed the instance's guard.

        Raises:
            CloudError: the guard could not be made. The instance keeps running.
        """

    def disarm(self, token: str, region: str) -> None:
        """
        Remove the guard of an ended instance. Harmless if there is no guard.

        Raises:
            CloudError: the guard still exists. When its time comes, it finds nothing to end, and disappears.
        """


class NoGuards:
    """
    The guards of a cloud that enforces the time-to-live itself, as the local cloud's supervisors do. They do nothing.
    """

    def arm(self, guard: Guard) -> None:
        pass

    def disarm(self, token: str, region: str) -> None:
        pass


class GuardedDriver(WrappedDriver):
    """
    A driver that arms a guard right after each launch. If the guard cannot be armed, the instance is kept anyway.
    """

    def __init__(self, driver: CloudDriver, guards: Guards, clock: Clock) -> None:
        super().__init__(driver)
        self._guards = guards
        self._clock = clock
        self._asked_at: dict[str, datetime] = {}

    def launch(self, request: LaunchRequest) -> Instance:
        instance = super().launch(request)
        self.arm(request, instance.instance_id, instance.launched_at)
        return instance

    def arm(self, request: LaunchRequest, instance_id: str, since: datetime, member: int = 0) -> str | None:
        """
        Arm the guard of an instance. If that fails, return the reason; the instance still ends itself at the end of its
        time-to-live. Return None if the guard is armed, or if the instance is not billed and so needs no guard.
        """
        if request.offering.capacity_type is CapacityType.OWN:
            return None
        token = guard_token(request.token, member)
        self._asked_at[token] = self._clock.now()
        ends_at = since + request.time_to_live
        region = request.offering.region
        try:
            self._guards.arm(Guard(token=token, region=region, instance_id=instance_id, ends_at=ends_at))
        except CloudError as error:
            return error.message
        return None

    def arm_at_last(self, request: LaunchRequest, instance_id: str, since: datetime, member: int = 0) -> bool:
        """Retry arming a missing guard, at most once every `AGAIN_AFTER`. Return whether the guard is armed now."""
        asked_at = self._asked_at.get(guard_token(request.token, member))
        if asked_at is not None and self._clock.now() - asked_at < AGAIN_AFTER:
            return False
        return self.arm(request, instance_id, since, member) is None

    def disarm(self, request: LaunchRequest, member: int = 0) -> None:
        if request.offering.capacity_type is CapacityType.OWN:
            return
        with contextlib.suppress(CloudError):  # a guard that still exists fires without effect, then disappears
            self._guards.disarm(guard_token(request.token, member), request.offering.region)
