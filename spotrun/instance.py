"""Types for a request for an instance, and for the cloud's description of an instance."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

import msgspec

from spotrun.offering import AwareDatetime, Offering, require_amount

VOLUME_GIB = 100
"""The size of the root volume in GiB, unless a job says otherwise."""


class InstanceState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    """The instance has shut down. Nothing restarts it, and its disk is billed until the instance is terminated."""
    TERMINATED = "terminated"


class EndedBy(StrEnum):
    """The actor that ended an instance. The bill depends on it: some clouds do not charge for an early interruption."""

    CLOUD = "cloud"
    """The cloud took the spot capacity back: an interruption."""
    USER = "user"
    """A user, or spotrun for the user, called terminate."""
    ITSELF = "itself"
    """The instance shut itself down."""
    TIME_TO_LIVE = "time_to_live"
    """The instance's time-to-live expired."""
    QUOTA = "quota"
    """
    The cloud ended the instance before it ran, because a quota of the account, such as the quota of disks, was used up.
    """
    FAULT = "fault"
    """The machine failed (hardware, or the local supervisor was killed)."""


class PriceSegment(msgspec.Struct, frozen=True, kw_only=True):
    """The price of an instance from `since` until the next segment begins."""

    since: AwareDatetime
    usd_per_hour: Decimal

    def __post_init__(self) -> None:
        require_amount(self.usd_per_hour)


class LaunchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """
    Everything that a driver needs to start one instance, or all members of a gang. The driver looks up nothing else.

    `count` is the number of members of a gang: either all of them start, or none does. It is None for a single
    instance. A cloud that receives the same `token` twice starts only one instance. Each instance is tagged with
    `token` and `run_uid`.

    `time_to_live` is measured on the instance's monotonic clock, from the instance's start. When it has passed, the
    instance ends, even if no spotrun program is still running. `price_cap_usd_per_hour` is the most that the user will
    pay for spot. None (no cap) is usually best: a cap does not make the instance cheaper, but lets the cloud interrupt
    it when the price rises above the cap.
    """

    token: str
    run_uid: str
    run_uri: str
    launch: int
    offering: Offering
    time_to_live: timedelta
    price_cap_usd_per_hour: Decimal | None = None
    count: int | None = None


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """
    An instance as its cloud describes it. Times are read from the cloud's clock.

    `billed_from` is None until billing begins. `prices` are the segments charged so far, oldest first. `end_reason` is
    the cloud's reason for the end of the instance, "" if it gave none. `off_since` is the time at which the instance
    shut down, as long as its disk still exists; otherwise None.

    `member` is the instance's number within its launch, from 0. `address` is the address at which other members reach
    the instance; it is "" for a single instance.
    """

    instance_id: str
    token: str
    run_uid: str
    launch: int
    offering: Offering
    state: InstanceState
    launched_at: datetime
    billed_from: datetime | None = None
    ended_at: datetime | None = None
    ended_by: EndedBy | None = None
    prices: tuple[PriceSegment, ...] = ()
    notice_deadline: datetime | None = None
    end_reason: str = ""
    off_since: datetime | None = None
    member: int = 0
    address: str = ""

    @property
    def alive(self) -> bool:
        return self.state is not InstanceState.TERMINATED

    @property
    def is_ending(self) -> bool:
        """True if the instance has ended, or the cloud is ending it."""
        return self.state in (InstanceState.STOPPING, InstanceState.TERMINATED)

    @property
    def never_ran(self) -> bool:
        """True if the instance has ended and was never billed."""
        return not self.alive and self.billed_from is None
