"""
The port to guards, which end an instance from outside when nobody else does (protocol 11); and a driver that has one
made for each instance.
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
"""How long a guard that could not be made is left alone: what is in the way may pass, or be mended."""


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """One instance that has to end by `ends_at`. `token` is that of its launch, and of its member (`guard_token`)."""

    token: str
    region: str
    instance_id: str
    ends_at: datetime


def guard_token(token: str, member: int) -> str:
    """What the guard of a member is found by. That of the first one has the token of its launch."""
    return f"{token}.{member}" if member else token


class Guards(Protocol):
    """
    Ends instances from outside of them.

    An instance ends itself when its time-to-live is over. A guard ends it if it cannot: it needs neither the
    instance nor any runner.
    """

    def arm(self, guard: Guard) -> None:
        """
        Repeating it is harmless: a runner that finds an instance cannot know whether another one armed its guard.

        Raises:
            CloudError: there is no guard, and its message says why. The instance goes on.
        """

    def disarm(self, token: str, region: str) -> None:
        """
        Remove the guard of an ended instance; harmless if there is none.

        Raises:
            CloudError: it is still there. When its time comes it finds nothing to end, and goes.
        """


class NoGuards:
    """For clouds that end each instance in time by themselves, as the local cloud's supervisors do."""

    def arm(self, guard: Guard) -> None:
        pass

    def disarm(self, token: str, region: str) -> None:
        pass


class GuardedDriver(WrappedDriver):
    """A driver that arms a guard right after each launch. A guard that cannot be armed stops no launch."""

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
        Why an instance of `request` has no guard; None: it has one, or nobody bills it. Its own timer runs in any case.
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
        """Whether a guard that was missing is there now. The cloud is asked once in `AGAIN_AFTER`."""
        asked_at = self._asked_at.get(guard_token(request.token, member))
        if asked_at is not None and self._clock.now() - asked_at < AGAIN_AFTER:
            return False
        return self.arm(request, instance_id, since, member) is None

    def disarm(self, request: LaunchRequest, member: int = 0) -> None:
        if request.offering.capacity_type is CapacityType.OWN:
            return
        with contextlib.suppress(CloudError):  # it goes by itself when its time comes
            self._guards.disarm(guard_token(request.token, member), request.offering.region)
