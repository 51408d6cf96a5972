"""Checks which zones of a region offer what a job wants, and how much the account's quotas allow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import cached_property
from typing import NamedTuple

from spotrun.clouds.aws import account_checks
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.catalog import Catalog
from spotrun.clouds.aws.quotas import Quota, quota_of
from spotrun.clouds.instance_type import InstanceType
from spotrun.doctor.finding import Finding, failed, ok, unknown, warned
from spotrun.errors import AccessDenied, InsufficientCapacity, QuotaExceeded
from spotrun.market.world import suits
from spotrun.offering import CapacityType, Offering
from spotrun.spec.model import ResourcesSpec

TYPES_NAMED_MAX = 4
_CAPACITY_TYPES = {
    "spot": (CapacityType.SPOT,),
    "on-demand": (CapacityType.ON_DEMAND,),
    "auto": (CapacityType.SPOT, CapacityType.ON_DEMAND),
}


class Allowance(NamedTuple):
    """One quota and the smallest instance that counts against it. `vcpus` is its value, None if it is unknown."""

    quota: Quota
    smallest: Offering
    vcpus: int | None


class Capacity:
    """
    The capacity for `wanted` in one region. A job that names neither type nor accelerator is assumed to want one GPU.
    """

    def __init__(self, region: Region, catalog: Catalog, wanted: ResourcesSpec) -> None:
        self._region = region
        self._catalog = catalog
        self._wanted = wanted

    def one_of_each(self) -> dict[CapacityType, Offering]:
        """Return the smallest instance of each capacity type that the job may use, if some zone offers it."""
        found: dict[CapacityType, Offering] = {}
        for offering in self._smallest_first:
            found.setdefault(offering.capacity_type, offering)
        return found

    # -- zones ---------------------------------------------------------------------------------------------------

    def zone_findings(self) -> Iterator[Finding]:
        """
        Yield what each zone offers.

        Raises:
            InsufficientCapacity: no zone offers it, or none that offers it has a subnet.
        """
        subnets = self._catalog.network.subnets
        if not self._offered:
            raise InsufficientCapacity(f"no zone of {self._region.name} offers {self._wish}", hint=self._known_there())
        bare = sorted({each.zone for each in self._offered} - set(subnets))
        if not self._smallest_first:
            hint = f"make a subnet there: aws ec2 create-subnet --availability-zone {bare[0]} …"
            raise InsufficientCapacity(f"{self._wish} is only in {', '.join(bare)}, without a subnet", hint=hint)
        for zone in sorted({each.zone for each in self._smallest_first}):
            yield ok(f"zone {zone}", _named(each for each in self._smallest_first if each.zone == zone))
        if bare:
            there = _named(each for each in self._offered if each.zone in bare)
            hint = "make a subnet in each, so that spot can be looked for there too"
            yield warned("subnets", f"{', '.join(bare)} would have {there}, but there is no subnet", hint)

    def _known_there(self) -> str:
        names = sorted({kind.accelerators.partition(":")[0] for kind in self._catalog.types.values()} - {""})
        return f"{self._region.name} has {', '.join(names) or 'no accelerators'}; or name another region"

    @property
    def _wish(self) -> str:
        wanted = self._wanted
        named = (wanted.instance_type, wanted.accelerators, wanted.zone and f"in {wanted.zone}")
        return " ".join(str(each) for each in named if each) or "an instance with one GPU"

    @cached_property
    def _offered(self) -> list[Offering]:
        """All suitable offerings in every zone, with a subnet or without."""
        return [each for kind in self._catalog.types.values() for each in self._everywhere(kind) if self._suits(each)]

    @cached_property
    def _smallest_first(self) -> list[Offering]:
        """The offerings that could be launched, smallest first."""
        subnets = self._catalog.network.subnets
        placed = [each for each in self._offered if each.zone in subnets]
        return sorted(placed, key=lambda each: (each.cpus, each.instance_type, each.zone))

    def _everywhere(self, kind: InstanceType) -> Iterator[Offering]:
        for zone in sorted(self._catalog.zones.get(kind.name, ())):
            for capacity_type in _CAPACITY_TYPES[self._wanted.spot_policy]:
                yield kind.offered(
                    cloud="aws",
                    region=self._region.name,
                    zone=zone,
                    capacity_type=capacity_type,
                    price_usd_per_hour=Decimal(0),  # the check does not ask what it costs
                )

    def _suits(self, offering: Offering) -> bool:
        named = self._wanted.instance_type or self._wanted.accelerators
        return suits(offering, self._wanted) and (bool(named) or offering.accelerators.endswith(":1"))

    # -- quotas --------------------------------------------------------------------------------------------------

    def quota_findings(self) -> Iterator[Finding]:
        """Judge each quota. One that is too small is a warning as long as another one is large enough."""
        allowances = list(self._allowances())
        nothing_fits = bool(allowances) and all(_too_small(each) for each in allowances)
        for allowance in allowances:
            yield self._judged(allowance, nothing_fits)

    def _allowances(self) -> Iterator[Allowance]:
        smallest: dict[Quota, Offering] = {}
        for offering in self._smallest_first:
            quota = quota_of(offering.instance_type, offering.capacity_type)
            if quota is not None:
                smallest.setdefault(quota, offering)
        for quota, offering in smallest.items():
            try:
                vcpus = account_checks.quota(self._region, quota.code)
            except AccessDenied:
                vcpus = None
            yield Allowance(quota, offering, vcpus)

    def _judged(self, allowance: Allowance, nothing_fits: bool) -> Finding:
        quota, smallest, vcpus = allowance
        if vcpus is None:
            hint = "allow servicequotas:GetServiceQuota, or see EC2 in the Service Quotas console"
            return unknown(quota.name, f"the quota {quota.code} is not known", hint)
        detail = f"{vcpus}; {smallest.instance_type} takes {smallest.cpus}"
        if _too_small(allowance):
            error = QuotaExceeded(detail, hint=self._more(quota, 2 * smallest.cpus))
            return failed(quota.name, error) if nothing_fits else warned(quota.name, detail, error.hint or "")
        if vcpus < 2 * smallest.cpus:
            detail += ": no standby could boot next to it, so every interruption waits for the old instance to go"
            return warned(quota.name, detail, self._more(quota, 2 * smallest.cpus))
        return ok(quota.name, detail)

    def _more(self, quota: Quota, vcpus: int) -> str:
        return (
            f"aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {quota.code} "
            f"--desired-value {vcpus} --region {self._region.name}"
        )


def _too_small(allowance: Allowance) -> bool:
    return allowance.vcpus is not None and allowance.vcpus < allowance.smallest.cpus


def _named(offerings: Iterable[Offering]) -> str:
    types = sorted({each.instance_type for each in offerings})
    return ", ".join(types) if len(types) <= TYPES_NAMED_MAX else f"{len(types)} types"
