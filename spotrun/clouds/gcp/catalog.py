"""The catalog of one region: zones, types, prices, image and subnetwork. It is cached, because it rarely changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from msgspec.structs import replace

from spotrun.clock import Clock
from spotrun.clouds.gcp.calls import COMPUTE, Call, Google
from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.gpus import accelerators_of
from spotrun.clouds.gcp.machine import MIB_PER_GIB, Machine, machine_of
from spotrun.clouds.gcp.price_list import PriceList, read_part_prices, read_price_list
from spotrun.clouds.gcp.quotas import quota_named
from spotrun.clouds.gcp.sku_prices import PartPrices
from spotrun.clouds.gcp.spot_prices import KEPT_BY_GOOGLE, SpotPrices, spot_prices
from spotrun.clouds.gcp.surroundings import Image, find_image, find_subnetwork, zones_of
from spotrun.clouds.instance_type import InstanceType
from spotrun.clouds.ttl_cache import TtlCache
from spotrun.clouds.unavailable_pools import UnavailablePools
from spotrun.errors import CloudError
from spotrun.instance import PriceSegment
from spotrun.offering import RENTED, CapacityType, Offering, Pool

TYPES_FOR_S = PRICE_LIST_FOR_S = 24 * 3600.0
SHIPPED_FOR_S = SPOT_PRICES_FOR_S = 3600.0
"""
If the live price list cannot be read, the price list in spotrun's package is used for SHIPPED_FOR_S seconds. Then the
live list is requested again. Spot prices are read every SPOT_PRICES_FOR_S seconds, although they change at most once a
day.
"""
SURROUNDINGS_FOR_S = 600.0
_PAGE = {"maxResults": "500"}
_APART = ("n1-",)
"""
Prefixes of families whose types do not include a GPU. A launch could attach a GPU to such a type, but spotrun does not
do that. So these types are offered without GPUs.
"""
_TPUS = ("ct",)


class ZoneType(NamedTuple):
    """A type in a zone, with the parts (vCPUs, memory, GPUs) for which it is billed."""

    kind: InstanceType
    machine: Machine


class Catalog:
    """
    The catalog of one region of a project. `parts` returns Google's prices of vCPUs, memory and GPUs in all regions.
    The price of a type is computed from them.
    """

    def __init__(
        self,
        google: Google,
        project: str,
        region: str,
        config: GcpConfig,
        clock: Clock,
        parts: Callable[[], PartPrices],
    ) -> None:
        self._google = google
        self._project = project
        self._region = region
        self._config = config
        self._clock = clock
        self._parts = parts
        self._left_out = UnavailablePools(clock)
        self._silent: dict[str, str] = {}
        self._placed: TtlCache[dict[str, dict[str, ZoneType]]] = TtlCache(clock, self._types_last_s, self._read_types)
        self._price_list: TtlCache[PriceList] = TtlCache(clock, _price_list_lasts_s, self._read_price_list)
        self._spot: TtlCache[SpotPrices] = TtlCache(clock, SPOT_PRICES_FOR_S, self._read_spot)
        self._image: TtlCache[Image] = TtlCache(clock, SURROUNDINGS_FOR_S, lambda: find_image(google, config.image))
        self._subnetwork: TtlCache[str] = TtlCache(
            clock, SURROUNDINGS_FOR_S, lambda: find_subnetwork(google, project, region, config.subnetwork)
        )

    @property
    def remarks(self) -> Iterator[str]:
        """
        Yield a remark for each kind of data (types, spot prices, image, subnetwork) that cannot be read now, and for
        each zone that does not answer. The last known data stay in use.
        """
        kept = {
            "the types in each zone": self._placed.trouble,
            "the spot prices": self._spot.trouble,
            "the image": self._image.trouble,
            "the subnetwork": self._subnetwork.trouble,
        }
        yield from (
            f"{what} of {self._region}: the last known value is used, because {why}"
            for what, why in kept.items()
            if why
        )
        yield from (f"{zone} is left out: {why}" for zone, why in self._silent.items())

    @property
    def zones(self) -> list[str]:
        return [*self._placed.get()]

    @property
    def placed(self) -> dict[str, dict[str, InstanceType]]:
        """The instance types in each zone, keyed by zone and by the type's name."""
        return {zone: {name: each.kind for name, each in found.items()} for zone, found in self._placed.get().items()}

    @property
    def types(self) -> dict[str, InstanceType]:
        """The instance types of all zones, keyed by name."""
        return {name: each.kind for placed in self._placed.get().values() for name, each in placed.items()}

    @property
    def asked_for(self) -> Sequence[str]:
        """
        The types whose history of spot prices is read. Google must be called once for each type. So these are only the
        types that the job names, or that have a GPU that the job names. If it names neither, no history is read.
        """
        return sorted(self.types) if self._config.instance_types or self._config.accelerators else ()

    @property
    def image(self) -> Image:
        return self._image.get()

    @property
    def subnetwork(self) -> str:
        return self._subnetwork.get()

    @property
    def price_list(self) -> PriceList:
        return self._price_list.get()

    @property
    def spot(self) -> SpotPrices:
        return self._spot.get()

    def forget_image(self) -> None:
        self._image.forget()

    def forget_surroundings(self) -> None:
        self._subnetwork.forget()

    def offerings(self) -> Iterator[Offering]:
        """Yield every type in every zone that has it, except pools that have no price, or are left out for a while."""
        for offering in self.rented_out():
            if not self._left_out.has(offering.pool):
                yield self.surrounded(offering)

    def leave_out(self, pool: Pool) -> None:
        """Leave a pool out of the offerings for a while, because Google has reported that the pool is not available."""
        self._left_out.add(pool)

    def leave_out_but(self, pool: Pool, elsewhere: Sequence[str]) -> None:
        """
        Leave this pool's type out of the offerings for a while, except in the zones `elsewhere`, which Google has named
        as having capacity for the type (G6). If it has named none, change nothing.
        """
        for zone in self.zones if elsewhere else ():
            if zone not in elsewhere:
                self._left_out.add(replace(pool, zone=zone))

    def leave_out_region(self, offering: Offering) -> None:
        """
        Leave out all pools of the region for a while, because its subnetwork is full and no instance can start in it.
        """
        for zone, placed in self._placed.get().items():
            for kind in placed:
                for capacity_type in RENTED:
                    self._left_out.add(Pool(zone=zone, instance_type=kind, capacity_type=capacity_type))

    def surrounded(self, offering: Offering) -> Offering:
        """Add to the offering the machine image and the subnetwork that a launch needs at present."""
        return replace(offering, image=self.image.path, subnet=self.subnetwork)

    def rented_out(self) -> Iterator[Offering]:
        """Yield every type in every zone that has it, even if an instance cannot be launched there at present."""
        for zone, placed in self._placed.get().items():
            for kind, _ in placed.values():
                listed = self.price_list.prices.get(kind.name)
                for capacity_type in RENTED:
                    price = self._price(kind.name, capacity_type)
                    if price is not None:
                        yield kind.offered(
                            cloud="gcp",
                            region=self._region,
                            zone=zone,
                            capacity_type=capacity_type,
                            price_usd_per_hour=price,
                            price_list="" if listed is None else listed.source,
                            quota=quota_named(kind, capacity_type, self._region),
                        )

    def spot_history(self, instance_type: str, until: datetime | None = None) -> Sequence[PriceSegment]:
        """
        Return the known spot prices of a type, oldest first. If they were read before `until`, read them again, because
        the price may have changed in between. If they cannot be read, return () instead of raising an error: a bill can
        be computed without them.
        """
        try:
            if until is not None and self._spot.get().read_at < until:
                self._spot.expire()
            return self._spot.get().segments.get(instance_type, ())
        except CloudError:
            return ()

    def _price(self, kind: str, capacity_type: CapacityType) -> Decimal | None:
        """
        Return the price of a type, or None if it is unknown. The spot price comes from the newest entry of the type's
        price history or, without a history, from the price list.
        """
        lists = self.price_list
        told = self.spot.segments.get(kind) if capacity_type is CapacityType.SPOT else None
        if told:
            return told[-1].usd_per_hour
        listed = (lists.spot if capacity_type is CapacityType.SPOT else lists.prices).get(kind)
        return None if listed is None else listed.usd_per_hour

    # -- reading -------------------------------------------------------------------------------------------------

    def _read_types(self) -> dict[str, dict[str, ZoneType]]:
        """
        Read the usable types of each available zone. If a zone does not answer, the others are still read.
        """
        placed: dict[str, dict[str, ZoneType]] = {}
        silent: dict[str, CloudError] = {}
        for zone in zones_of(self._google, self._project, self._region):
            try:
                placed[zone] = dict(self._types_in(zone))
            except CloudError as error:
                silent[zone] = error
        if silent and not placed:
            raise next(iter(silent.values()))
        self._silent = {zone: error.message for zone, error in silent.items()}
        return placed

    def _types_last_s(self, _: object) -> float:
        return SURROUNDINGS_FOR_S if self._silent else TYPES_FOR_S

    def _types_in(self, zone: str) -> Iterator[tuple[str, ZoneType]]:
        query = dict(_PAGE)
        if self._config.instance_types:
            query["filter"] = " OR ".join(f'(name = "{name}")' for name in self._config.instance_types)
        call = Call(COMPUTE, "GET", f"projects/{self._project}/zones/{zone}/machineTypes", query)
        for row in self._google.items(f"list the machine types of {zone}", call):
            kind = _instance_type(row)
            if _can_be_used(row) and self._is_wanted(kind):
                yield kind.name, ZoneType(kind, machine_of(row))

    def _is_wanted(self, kind: InstanceType) -> bool:
        config = self._config
        return bool(config.instance_types) or not config.accelerators or config.wants(kind.accelerators, kind.name)

    def _read_price_list(self) -> PriceList:
        machines = {name: each.machine for placed in self._placed.get().values() for name, each in placed.items()}
        return read_price_list(self._region, machines.values(), self._parts, self._clock.now())

    def _read_spot(self) -> SpotPrices:
        now = self._clock.now()
        return spot_prices(self._google, self._project, self._region, self.asked_for, now - KEPT_BY_GOOGLE, now)


def catalogs(google: Google, project: str, config: GcpConfig, clock: Clock) -> dict[str, Catalog]:
    """
    Return the catalogs of all regions in `config`. The catalogs share the prices of vCPUs, memory and GPUs, so these
    are read only once a day.
    """
    parts = TtlCache(clock, PRICE_LIST_FOR_S, lambda: read_part_prices(google, config.regions))
    return {region: Catalog(google, project, region, config, clock, parts.get) for region in config.regions}


def _price_list_lasts_s(found: PriceList) -> float:
    return PRICE_LIST_FOR_S if found.trouble is None else SHIPPED_FOR_S


def _can_be_used(row: Mapping[str, Any]) -> bool:
    """Return True if a type is x86_64 and not obsolete, and has no accelerators other than CUDA GPUs."""
    is_gone = row.get("deprecated", {}).get("state") in ("OBSOLETE", "DELETED")
    return row.get("architecture", "X86_64") == "X86_64" and not is_gone and not row["name"].startswith(_TPUS)


def _instance_type(row: Mapping[str, Any]) -> InstanceType:
    return InstanceType(
        name=row["name"],
        accelerators="" if row["name"].startswith(_APART) else accelerators_of(row),
        cpus=int(row["guestCpus"]),
        memory_gib=int(row["memoryMb"]) // MIB_PER_GIB,
    )
