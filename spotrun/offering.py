"""Defines an offering of a cloud (an instance type in a zone, as spot or on-demand, at a price) and its pool."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

AwareDatetime = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with its time zone. Decoding refuses a time without a time zone."""

AMOUNT_MAX = Decimal(10) ** 12


def require_amount(amount: Decimal | None) -> None:
    """
    Check an amount of dollars. None is accepted.

    Raises:
        ValueError: `amount` is negative, not finite, or more than AMOUNT_MAX.
    """
    if amount is not None and not (amount.is_finite() and 0 <= amount <= AMOUNT_MAX):
        raise ValueError(f"{amount} is not an amount of dollars")


class CapacityType(StrEnum):
    """
    The capacity type of an instance. It says who can end the instance: the cloud at any time (`spot`), or only the user
    (`on_demand`). `own` is the user's own machine, which is not rented.
    """

    SPOT = "spot"
    ON_DEMAND = "on_demand"
    OWN = "own"

    @property
    def in_words(self) -> str:
        """The capacity type as messages and jobs spell it, with a hyphen."""
        return self.replace("_", "-")


HOME = "home"
"""The region and the zone of the user's own machine."""
RENTED = (CapacityType.SPOT, CapacityType.ON_DEMAND)
"""The capacity types that clouds rent out."""


class Offering(msgspec.Struct, frozen=True, kw_only=True):
    """
    An instance type that a cloud rents out in a zone, with its current price.

    `accelerators` is `NAME:COUNT` ("V100:1"), or "" for a machine without any. `simulated` means that no cloud charges
    this price. `price_list` names the price list from which this type's on-demand price comes, with the list's date; ""
    if no list has the price. Some clouds need `image`, `subnet` and `launch_template` to start a new instance.
    `other_subnets` are the zone's other subnets in which an instance could start, best first. Ledger entries leave out
    `other_subnets`. `quota` names the quota of the account, and its region, that limits instances of this type; UNSET
    if it is unknown. The pools of one quota are refused together.
    """

    cloud: str
    region: str
    zone: str
    instance_type: str
    capacity_type: CapacityType
    price_usd_per_hour: Decimal
    accelerators: str = ""
    cpus: int = 0
    memory_gib: int = 0
    simulated: bool = False
    price_list: str = ""
    image: str = ""
    subnet: str = ""
    launch_template: str = ""
    other_subnets: tuple[str, ...] | UnsetType = UNSET
    quota: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        require_amount(self.price_usd_per_hour)

    @property
    def subnets(self) -> tuple[str, ...]:
        """The subnets that an instance could start in, best first."""
        return (self.subnet, *(self.other_subnets or ()))

    @property
    def pool(self) -> Pool:
        return Pool(zone=self.zone, instance_type=self.instance_type, capacity_type=self.capacity_type)

    @property
    def is_own(self) -> bool:
        """True if the machine is the user's own, so that instances run with the user's rights."""
        return self.capacity_type is CapacityType.OWN

    def __str__(self) -> str:
        if self.is_own:
            return f"{self.instance_type} at home"
        return f"{self.instance_type} {self.capacity_type.in_words} in {self.cloud}/{self.zone}"


class Pool(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """
    All machines of one instance type and one capacity type in one zone. Usually a cloud has either capacity for all
    machines of a pool or for none.
    """

    zone: str
    instance_type: str
    capacity_type: CapacityType
