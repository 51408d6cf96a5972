"""The port to what stands beside an instance, in its cloud, and ends it when nobody else does (protocol 11)."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

import msgspec


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """One instance that has to be over by `ends_at`. `token` is that of its launch."""

    token: str
    region: str
    instance_id: str
    ends_at: datetime


class Guards(Protocol):
    """
    Ends instances from outside of them.

    An instance ends itself when its time-to-live is over. A guard is for the one that cannot: it needs neither the
    instance nor any runner.
    """

    def arm(self, guard: Guard) -> None:
        """
        Repeating it is harmless, for whoever finds an instance cannot know who has armed its guard.

        Raises:
            CloudError: there is no guard, and its message says why. The instance is none the worse.
        """

    def disarm(self, token: str, region: str) -> None:
        """
        Take the guard of an ended instance away; harmless where there is none.

        Raises:
            CloudError: it is still there. When its time comes it finds nothing to end, and goes.
        """


class NoGuards:
    """For clouds whose own record of an instance ends it, as the local cloud's supervisors do."""

    def arm(self, guard: Guard) -> None:
        pass

    def disarm(self, token: str, region: str) -> None:
        pass
