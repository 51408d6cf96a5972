"""A type of machine that a cloud rents out, without its prices and zones."""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from spotrun.offering import CapacityType, Offering


class InstanceType(NamedTuple):
    """A type of machine. `accelerators` is `NAME:COUNT`, or "" for a machine without any."""

    name: str
    accelerators: str
    cpus: int
    memory_gib: int

    def offered(
        self,
        *,
        cloud: str,
        region: str,
        zone: str,
        capacity_type: CapacityType,
        price_usd_per_hour: Decimal,
        price_list: str = "",
        quota: str | UnsetType = UNSET,
    ) -> Offering:
        return Offering(
            cloud=cloud,
            region=region,
            zone=zone,
            instance_type=self.name,
            capacity_type=capacity_type,
            price_usd_per_hour=price_usd_per_hour,
            accelerators=self.accelerators,
            cpus=self.cpus,
            memory_gib=self.memory_gib,
            price_list=price_list,
            quota=quota,
        )
