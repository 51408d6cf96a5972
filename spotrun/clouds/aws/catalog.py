"""Reads one region's types, zones, prices, image and network, and caches each answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from math import inf
from typing import Any

from msgspec.structs import replace

from spotrun.clock import Clock
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.config import AwsConfig
from spotrun.clouds.aws.launch_template import find_launch_template
from spotrun.clouds.aws.network import Network, find_image, find_network
from spotrun.clouds.aws.price_list import PriceList, read_price_list
from spotrun.clouds.aws.prices import SpotPool, SpotPrices, spot_prices
from spotrun.clouds.aws.quotas import quota_named
from spotrun.clouds.instance_type import InstanceType
from spotrun.clouds.list_prices import ListPrice
from spotrun.clouds.ttl_cache import ASKED_AGAIN_S, TtlCache
from spotrun.clouds.unavailable_pools import UnavailablePools
from spotrun.errors import CloudError
from spotrun.instance import PriceSegment
from spotrun.offering import RENTED, CapacityType, Offering, Pool

TYPES_FOR_S = PRICE_LIST_FOR_S = 24 * 3600.0
SHIPPED_FOR_S = 3600.0
"""
If the live price list cannot be read, the price list in spotrun's package is used for this many seconds. Then the live
list is requested again.
"""
SPOT_PRICES_FOR_S = 60.0
SURROUNDINGS_FOR_S = 600.0
MIB_PER_GIB = 1024
A100_MIB = 40 * MIB_PER_GIB
"""Memory of the smaller version of the A100."""


class Catalog:
    def __init__(self, region: Region, config: AwsConfig, clock: Clock) -> None:
        self._region = region
        self._config = config
        self._clock = clock
        self._left_out = UnavailablePools(clock)
        self._types: TtlCache[dict[str, InstanceType]] = TtlCache(clock, TYPES_FOR_S, self._read_types)
        self._zones: TtlCache[dict[str, set[str]]] = TtlCache(clock, TYPES_FOR_S, self._read_zones)
        self._price_list: TtlCache[PriceList] = TtlCache(clock, _price_list_lasts_s, self._read_price_list)
        self._spot: TtlCache[SpotPrices] = TtlCache(clock, SPOT_PRICES_FOR_S, self._read_spot)
        self._history: tuple[float, datetime, Mapping[SpotPool, list[PriceSegment]]] = (-inf, clock.now(), {})
        self._failed_s, self._history_trouble = -inf, ""
        self._image: TtlCache[str] = TtlCache(clock, SURROUNDINGS_FOR_S, lambda: find_image(region, config))
        self._network: TtlCache[Network] = TtlCache(clock, SURROUNDINGS_FOR_S, lambda: find_network(region, config))
        self._unrouted = ""
        self._launch_template: TtlCache[str] = TtlCache(clock, SURROUNDINGS_FOR_S, self._read_launch_template)

    @property
    def remarks(self) -> Iterator[str]:
        """
        Yield a remark for each kind of data (types, prices, image and so on) that cannot be read now. The last data
        that could be read stay in use.
        """
        kept = {
            "the list of types": self._types.trouble,
            "the zones of each type": self._zones.trouble,
            "the spot prices": self._spot.trouble,
            "the spot price history": self._history_trouble,
            "the image": self._image.trouble,
            "the network": self._network.trouble,
            "the launch template": self._launch_template.trouble,
        }
        yield from (
            f"{what} of {self._region.name}: the last known value is used, because {why}"
            for what, why in kept.items()
            if why
        )
        if self._unrouted:
            yield f"which subnets of {self._region.name} lead to the internet is not known: {self._unrouted}"

    @property
    def types(self) -> dict[str, InstanceType]:
        return self._types.get()

    @property
    def zones(self) -> dict[str, set[str]]:
        """The zones that offer each type, even those in which the account has no subnet for spotrun."""
        return self._zones.get()

    @property
    def image(self) -> str:
        return self._image.get()

    @property
    def launch_template(self) -> str:
        """The launch template that the job names, as `ID:VERSION`; "" if it does not name one."""
        return self._launch_template.get()

    def forget_image(self) -> None:
        self._image.forget()

    def forget_launch_template(self) -> None:
        self._launch_template.forget()

    def forget_network(self) -> None:
        """Forget the cached subnets and security group."""
        self._network.forget()

    @property
    def network(self) -> Network:
        found = self._network.get()
        self._unrouted = found.unrouted
        return found

    @property
    def price_list(self) -> PriceList:
        return self._price_list.get()

    def offerings(self) -> Iterator[Offering]:
        """
        Yield the offerings that can be launched: every type in every zone in which the account has a subnet for
        spotrun, except pools that have no known price or that `leave_out` excludes.
        """
        for offering in self.rented_out():
            if offering.zone in self.network.subnets and not self._left_out.has(offering.pool):
                yield self.surrounded(offering)

    def leave_out(self, pool: Pool) -> None:
        """Leave a pool out of the offerings for a while, because EC2 has reported that the pool is not available."""
        self._left_out.add(pool)

    def surrounded(self, offering: Offering) -> Offering:
        """
        Return the offering together with the machine image, subnets and launch template that a launch of it would use
        now. The offering's zone must have a subnet.
        """
        first, *others = self.network.subnets[offering.zone]
        return replace(
            offering,
            image=self.image,
            subnet=first.subnet_id,
            other_subnets=tuple(each.subnet_id for each in others),
            launch_template=self.launch_template,
        )

    def rented_out(self) -> Iterator[Offering]:
        """
        Yield every type in every zone that offers it, even in zones in which the account has no subnet for spotrun.
        """
        for kind in self.types.values():
            listed = self.price_list.prices.get(kind.name)
            for zone in sorted(self._zones.get().get(kind.name, set())):
                for capacity_type in RENTED:
                    price = self._price(kind.name, zone, capacity_type, listed)
                    if price is not None:
                        yield kind.offered(
                            cloud="aws",
                            region=self._region.name,
                            zone=zone,
                            capacity_type=capacity_type,
                            price_usd_per_hour=price,
                            price_list="" if listed is None else listed.source,
                            quota=quota_named(kind.name, capacity_type, self._region.name),
                        )

    def spot_history(self, since: datetime) -> Mapping[SpotPool, list[PriceSegment]]:
        """
        Return the spot prices since `since`. They determine the cost of instances that ran in that time. If the prices
        cannot be read now, return those that were read last.
        """
        now_s = self._clock.monotonic()
        read_s, from_then_on, history = self._history
        if (now_s - read_s < SPOT_PRICES_FOR_S and from_then_on <= since) or now_s - self._failed_s < ASKED_AGAIN_S:
            return history
        try:
            history = spot_prices(self._region, self._config.instance_types, since).segments
        except CloudError as error:
            self._failed_s, self._history_trouble = now_s, error.message
            return history
        self._history, self._history_trouble = (now_s, since, history), ""
        return history

    def _price(self, kind: str, zone: str, capacity_type: CapacityType, listed: ListPrice | None) -> Decimal | None:
        if capacity_type is CapacityType.ON_DEMAND:
            return None if listed is None else listed.usd_per_hour
        segments = self._spot.get().segments.get(SpotPool(kind, zone))
        return segments[-1].usd_per_hour if segments else None

    def _read_types(self) -> dict[str, InstanceType]:
        filters = [{"Name": "processor-info.supported-architecture", "Values": ["x86_64"]}]
        if self._config.instance_types:
            filters.append({"Name": "instance-type", "Values": list(self._config.instance_types)})
        rows = self._region.pages(self._region.ec2, "describe_instance_types", "InstanceTypes", Filters=filters)
        return {row["InstanceType"]: instance_type_of(row) for row in rows if not _shares_a_gpu(row)}

    def _read_zones(self) -> dict[str, set[str]]:
        filters = []
        if self._config.instance_types:
            filters = [{"Name": "instance-type", "Values": list(self._config.instance_types)}]
        rows = self._region.pages(
            self._region.ec2,
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=filters,
        )
        zones: dict[str, set[str]] = {}
        for row in rows:
            zones.setdefault(row["InstanceType"], set()).add(row["Location"])
        return zones

    def _read_launch_template(self) -> str:
        name = self._config.launch_template
        return "" if name is None else str(find_launch_template(self._region, name))

    def _read_price_list(self) -> PriceList:
        return read_price_list(self._region, self._config.instance_types, self._clock.now())

    def _read_spot(self) -> SpotPrices:
        return spot_prices(self._region, self._config.instance_types, self._clock.now())


def _price_list_lasts_s(found: PriceList) -> float:
    return PRICE_LIST_FOR_S if found.trouble is None else SHIPPED_FOR_S


def _shares_a_gpu(row: dict[str, Any]) -> bool:
    """
    Return True if the type has only a part of a GPU (g6f, gr6f). Such a type is left out: EC2 reports 0 GPUs for it,
    and no job can request a part of a GPU.
    """
    return any(gpu["Count"] == 0 for gpu in row.get("GpuInfo", {}).get("Gpus", []))


def _gpu_name(gpu: dict[str, Any]) -> str:
    """Return spotrun's name of a GPU. EC2 has one name for both versions of the A100 (p4d and p4de)."""
    name: str = gpu["Name"].replace(" ", "-")
    is_large = name == "A100" and gpu.get("MemoryInfo", {}).get("SizeInMiB", 0) > A100_MIB
    return "A100-80GB" if is_large else name


def instance_type_of(row: dict[str, Any]) -> InstanceType:
    gpus = row.get("GpuInfo", {}).get("Gpus", [])
    count = sum(gpu["Count"] for gpu in gpus)
    name = _gpu_name(gpus[0]) if gpus else ""
    return InstanceType(
        name=row["InstanceType"],
        accelerators=f"{name}:{count}" if gpus else "",
        cpus=row["VCpuInfo"]["DefaultVCpus"],
        memory_gib=row["MemoryInfo"]["SizeInMiB"] // MIB_PER_GIB,
    )
