"""
Checks which zones of a job's regions offer the instances that the job wants, and how many of them the project's quotas
allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

from spotrun.clouds.capacity_checks import (
    Allowance,
    CapacityRequest,
    quota_findings,
    smallest_first,
    zone_findings,
)
from spotrun.clouds.gcp.catalog import Catalog
from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.quotas import Limits, Quota
from spotrun.clouds.gcp.reservation_checks import Place
from spotrun.clouds.instance_type import InstanceType
from spotrun.doctor.finding import Finding, warned
from spotrun.offering import CapacityType, Offering
from spotrun.spec.model import ResourcesSpec

_QUOTAS = "https://console.cloud.google.com/iam-admin/quotas"
_UNTOLD = "Compute Engine does not report this quota: only a launch shows whether it is large enough"


class Capacity:
    """Checks the zones and quotas of the regions in `config`, for a job that needs the resources `wanted`."""

    def __init__(self, catalogs: Mapping[str, Catalog], config: GcpConfig, wanted: ResourcesSpec) -> None:
        self._catalogs = catalogs
        self._config = config
        self._wanted = CapacityRequest(wanted, config.instance_types)

    def types(self, region: str) -> list[str]:
        """Return the region's types that suit the job, smallest first."""
        return list(dict.fromkeys(each.instance_type for each in self._smallest_first if each.region == region))

    @property
    def on_demand(self) -> set[Place]:
        """The places of the on-demand instances that suit the job."""
        suitable = (each for each in self._smallest_first if each.capacity_type is CapacityType.ON_DEMAND)
        return {Place(each.instance_type, each.zone) for each in suitable}

    def zone_findings(self) -> Iterator[Finding]:
        """
        Report the suitable types that each zone offers.

        Raises:
            InsufficientCapacity: no zone offers a suitable type.
        """
        if not self._smallest_first:
            everything = [each for place in self._placed for each in self._wanted.all_offered(*place)]
            raise self._wanted.not_offered(everything, ", ".join(self._config.regions))
        yield from zone_findings(self._smallest_first)
        for region in self._config.regions:
            if not self.types(region):
                hint = "leave this region out, or name another region"
                yield warned(f"zones of {region}", f"none offers {self._wanted}", hint)

    @cached_property
    def _smallest_first(self) -> list[Offering]:
        """The offerings that suit the job, smallest first."""
        return smallest_first(each for place in self._placed for each in self._wanted.offered(*place))

    @property
    def _placed(self) -> Iterator[tuple[InstanceType, str, str]]:
        """Each type with a region and a zone that has it."""
        for region in self._config.regions:
            for zone, placed in self._catalogs[region].placed.items():
                yield from ((kind, region, zone) for kind in placed.values())

    def quota_findings(self, limits: Limits) -> Iterator[Finding]:
        """
        Check the quotas that the smallest instance would use: the spot quota and the on-demand quota in each region.
        """
        smallest: dict[tuple[str, CapacityType], Offering] = {}
        for offering in self._smallest_first:
            smallest.setdefault((offering.region, offering.capacity_type), offering)
        return quota_findings([[*_allowances(limits, offering)] for offering in smallest.values()])


def _allowances(limits: Limits, smallest: Offering) -> Iterator[Allowance]:
    for quota, takes in limits.used_by(smallest).items():
        yield _allowance(limits, quota, smallest, takes)


def _allowance(limits: Limits, quota: Quota, smallest: Offering, takes: int) -> Allowance:
    limit = limits.of(quota)
    if limit is None:
        return Allowance(f"quota {quota}", _UNTOLD, f"see {_QUOTAS}", takes, None)
    detail = f"{limit.limit:g}, {limit.usage:g} in use; {smallest.instance_type} takes {takes}"
    hint = f"request an increase at {_QUOTAS}: {quota.metric}, {2 * takes} or more"
    return Allowance(f"quota {quota}", detail, hint, takes, limit.left)
