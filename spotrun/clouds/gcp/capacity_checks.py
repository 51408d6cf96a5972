"""Checks which zones of a job's regions offer what it wants, and how much the project's quotas allow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from functools import cached_property
from typing import NamedTuple

from spotrun.clouds.gcp.catalog import Catalog
from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.quotas import Limit, Limits, Quota
from spotrun.clouds.instance_type import InstanceType
from spotrun.doctor.finding import Finding, failed, ok, unknown, warned
from spotrun.errors import InsufficientCapacity, QuotaExceeded
from spotrun.market.world import suits
from spotrun.offering import CapacityType, Offering
from spotrun.spec.model import ResourcesSpec

TYPES_NAMED_MAX = 4
_CAPACITY_TYPES = {
    "spot": (CapacityType.SPOT,),
    "on-demand": (CapacityType.ON_DEMAND,),
    "auto": (CapacityType.SPOT, CapacityType.ON_DEMAND),
}
_ASK = "ask for more at https://console.cloud.google.com/iam-admin/quotas"
_UNTOLD = "Compute Engine does not tell this quota, so a launch will: it is not known to be 0"


class Allowance(NamedTuple):
    """One quota, and the smallest instance that takes from it. `limit` is None if it is unknown."""

    quota: Quota
    smallest: Offering
    takes: int
    limit: Limit | None

    @property
    def is_too_small(self) -> bool:
        return self.limit is not None and self.limit.left < self.takes


class Capacity:
    """
    The capacity for `wanted` in all regions of `config`. A job that names neither type nor accelerator is assumed to
    want one GPU.
    """

    def __init__(self, catalogs: Mapping[str, Catalog], config: GcpConfig, wanted: ResourcesSpec) -> None:
        self._catalogs = catalogs
        self._config = config
        self._wanted = wanted

    def types(self, region: str) -> list[str]:
        """Return the types that the job may use in a region, smallest first."""
        return list(dict.fromkeys(each.instance_type for each in self._smallest_first if each.region == region))

    # -- zones ---------------------------------------------------------------------------------------------------

    def zone_findings(self) -> Iterator[Finding]:
        """
        Yield what each zone offers.

        Raises:
            InsufficientCapacity: no zone offers it.
        """
        if not self._smallest_first:
            where = ", ".join(self._config.regions)
            raise InsufficientCapacity(f"no zone of {where} offers {self._wish}", hint=self._known_there())
        for zone in sorted({each.zone for each in self._smallest_first}):
            yield ok(f"zone {zone}", _named(each for each in self._smallest_first if each.zone == zone))
        for region in self._config.regions:
            if not self.types(region):
                yield warned(f"zones of {region}", f"none offers {self._wish}", "leave the region out, or name another")

    def _known_there(self) -> str:
        kinds = (kind for each in self._catalogs.values() for kind in each.types.values())
        names = sorted({kind.accelerators.partition(":")[0] for kind in kinds} - {""})
        return f"they have {', '.join(names) or 'no accelerators'}; or name another region"

    @property
    def _wish(self) -> str:
        wanted, types = self._wanted, self._config.instance_types
        named = (
            wanted.instance_type or " or ".join(types),
            wanted.accelerators,
            wanted.zone and f"in {wanted.zone}",
        )
        return " ".join(str(each) for each in named if each) or "an instance with one GPU"

    @cached_property
    def _smallest_first(self) -> list[Offering]:
        """The offerings that could be launched, smallest first."""
        found = [each for region in self._config.regions for each in self._offered_in(region) if self._suits(each)]
        return sorted(found, key=lambda each: (each.cpus, each.instance_type, each.zone))

    def _offered_in(self, region: str) -> Iterator[Offering]:
        for zone, placed in self._catalogs[region].placed.items():
            for kind in placed.values():
                for capacity_type in _CAPACITY_TYPES[self._wanted.spot_policy]:
                    yield _offering(region, zone, kind, capacity_type)

    def _suits(self, offering: Offering) -> bool:
        types = self._config.instance_types
        if types and offering.instance_type not in types:
            return False
        named = types or self._wanted.accelerators
        return suits(offering, self._wanted) and (bool(named) or offering.accelerators.endswith(":1"))

    # -- quotas --------------------------------------------------------------------------------------------------

    def quota_findings(self, limits: Limits) -> Iterator[Finding]:
        """Judge each quota. One that is too small is a warning as long as another market or region is open."""
        markets = list(self._markets(limits))
        nothing_fits = bool(markets) and all(any(each.is_too_small for each in market) for market in markets)
        told: set[Quota] = set()
        for allowance in (each for market in markets for each in market):
            if allowance.quota not in told:
                told.add(allowance.quota)
                yield self._judged(allowance, nothing_fits)

    def _markets(self, limits: Limits) -> Iterator[list[Allowance]]:
        """Yield, for spot and on demand in each region, the quotas that the smallest instance takes from."""
        smallest: dict[tuple[str, CapacityType], Offering] = {}
        for offering in self._smallest_first:
            smallest.setdefault((offering.region, offering.capacity_type), offering)
        for offering in smallest.values():
            uses = limits.used_by(offering)
            yield [Allowance(quota, offering, takes, limits.of(quota)) for quota, takes in uses.items()]

    def _judged(self, allowance: Allowance, nothing_fits: bool) -> Finding:
        quota, smallest, takes, limit = allowance
        name = f"quota {quota}"
        if limit is None:
            return unknown(name, _UNTOLD, "see https://console.cloud.google.com/iam-admin/quotas")
        detail = f"{limit.limit:g}, {limit.usage:g} in use; {smallest.instance_type} takes {takes}"
        hint = f"{_ASK}: {quota.metric}, {2 * takes} or more"
        if allowance.is_too_small:
            error = QuotaExceeded(detail, hint=hint)
            return failed(name, error) if nothing_fits else warned(name, detail, hint)
        if limit.left < 2 * takes:
            detail += ": no standby could boot next to it, so every interruption waits for the old instance to go"
            return warned(name, detail, hint)
        return ok(name, detail)


def _offering(region: str, zone: str, kind: InstanceType, capacity_type: CapacityType) -> Offering:
    return kind.offered(
        cloud="gcp",
        region=region,
        zone=zone,
        capacity_type=capacity_type,
        price_usd_per_hour=Decimal(0),  # the check does not ask what it costs
    )


def _named(offerings: Iterable[Offering]) -> str:
    types = sorted({each.instance_type for each in offerings})
    return ", ".join(types) if len(types) <= TYPES_NAMED_MAX else f"{len(types)} types"
