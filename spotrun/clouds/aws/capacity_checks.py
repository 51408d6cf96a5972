"""
Checks which zones of a region offer the instances that a job wants, and how many of them the account's quotas allow.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from spotrun.clouds.aws import account_checks
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.catalog import Catalog
from spotrun.clouds.aws.quotas import Quota, quota_of
from spotrun.clouds.capacity_checks import (
    Allowance,
    CapacityRequest,
    quota_findings,
    smallest_first,
    types_of,
    zone_findings,
)
from spotrun.clouds.instance_type import InstanceType
from spotrun.doctor.finding import Finding, warned
from spotrun.errors import AccessDenied, InsufficientCapacity
from spotrun.offering import CapacityType, Offering


class Capacity:
    """
    The zones and quotas of one region, for a job that wants the capacity `wanted`. `catalog` has the types that the job
    allows. `of_any_type` has all types, and is read only if no type in `catalog` suits the job.
    """

    def __init__(self, region: Region, catalog: Catalog, wanted: CapacityRequest, of_any_type: Catalog) -> None:
        self._region = region
        self._catalog = catalog
        self._wanted = wanted
        self._of_any_type = of_any_type

    def one_of_each(self) -> dict[CapacityType, Offering]:
        """Return the smallest offering of each capacity type that the job allows, in zones that have a subnet."""
        found: dict[CapacityType, Offering] = {}
        for offering in self._smallest_first:
            found.setdefault(offering.capacity_type, offering)
        return found

    def zone_findings(self) -> Iterator[Finding]:
        """
        Report the suitable instance types that each zone offers. Raise InsufficientCapacity if no zone that has a
        subnet offers a suitable type.
        """
        region, subnets = self._region.name, self._catalog.network.subnets
        if not self._offered:
            kinds = self._placed(self._of_any_type)
            everything = [each for kind, zone in kinds for each in self._wanted.all_offered(kind, region, zone)]
            raise self._wanted.not_offered(everything, region)
        bare = sorted({each.zone for each in self._offered} - set(subnets))
        if not self._smallest_first:
            hint = f"make a subnet in this zone: aws ec2 create-subnet --availability-zone {bare[0]} …"
            raise InsufficientCapacity(f"{self._wanted} is only in {', '.join(bare)}, without a subnet", hint=hint)
        yield from zone_findings(self._smallest_first)
        if bare:
            there = types_of(each for each in self._offered if each.zone in bare)
            hint = "make a subnet in each of these zones, so that spotrun can look for spot capacity there too"
            yield warned("subnets", f"{', '.join(bare)} would have {there}, but there is no subnet", hint)

    @cached_property
    def _offered(self) -> list[Offering]:
        """All suitable offerings, including those in zones without a subnet."""
        region, kinds = self._region.name, self._placed(self._catalog)
        return [each for kind, zone in kinds for each in self._wanted.offered(kind, region, zone)]

    def _placed(self, catalog: Catalog) -> Iterator[tuple[InstanceType, str]]:
        """Yield each type of a catalog with each zone that has it."""
        for kind in catalog.types.values():
            yield from ((kind, zone) for zone in sorted(catalog.zones.get(kind.name, ())))

    @cached_property
    def _smallest_first(self) -> list[Offering]:
        """The offerings that could be launched, smallest first."""
        subnets = self._catalog.network.subnets
        return smallest_first(each for each in self._offered if each.zone in subnets)

    def quota_findings(self) -> Iterator[Finding]:
        smallest: dict[Quota, Offering] = {}
        for offering in self._smallest_first:
            quota = quota_of(offering.instance_type, offering.capacity_type)
            if quota is not None:
                smallest.setdefault(quota, offering)
        return quota_findings([[self._allowance(quota, offering)] for quota, offering in smallest.items()])

    def _allowance(self, quota: Quota, smallest: Offering) -> Allowance:
        try:
            vcpus = account_checks.quota(self._region, quota.code)
        except AccessDenied:
            vcpus = None
        if vcpus is None:
            detail = f"the quota {quota.code} is not known"
            hint = "allow servicequotas:GetServiceQuota, or find it under EC2 in the Service Quotas console"
        else:
            detail = f"{vcpus}; {smallest.instance_type} takes {smallest.cpus}"
            hint = (
                f"aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {quota.code} "
                f"--desired-value {2 * smallest.cpus} --region {self._region.name}"
            )
        return Allowance(quota.name, detail, hint, smallest.cpus, vcpus)
