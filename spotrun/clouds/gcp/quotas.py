"""
Finds the quotas that limit an offering, and how much of them is left. https://cloud.google.com/compute/resource-usage

Each region has its own quotas for CPUs and GPUs; another quota limits the GPUs of all regions together. Spot has
separate quotas, whose names begin with PREEMPTIBLE_; if none was granted, spot uses the on-demand quotas. The quotas of
GPUs newer than A100 and L4 are in another API, Cloud Quotas. So a quota that Compute Engine does not list is unknown,
not zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from spotrun.clouds.instance_type import InstanceType
from spotrun.offering import CapacityType, Offering

ALL_GPUS = "GPUS_ALL_REGIONS"
_PREEMPTIBLE = "PREEMPTIBLE_"
_CPUS = "CPUS"
_SHARE_CPUS = ("e2", "n1")
"""Machine families whose CPUs count against the quota CPUS. Any other family has a separate quota, or none."""


class Limit(NamedTuple):
    limit: float
    usage: float

    @property
    def left(self) -> float:
        return max(0.0, self.limit - self.usage)


class Quota(NamedTuple):
    """A quota. `metric` is Google's name for it. If `region` is None, the quota applies to all regions together."""

    metric: str
    region: str | None

    def __str__(self) -> str:
        return self.metric if self.region is None else f"{self.metric} in {self.region}"


class Limits:
    """
    The limits of a project's quotas and of its regions' quotas. A quota that Compute Engine does not list is absent.
    """

    def __init__(self, project: Mapping[str, Any], regions: Mapping[str, Mapping[str, Any]]) -> None:
        self._known = {Quota(metric, None): limit for metric, limit in _told(project)}
        for region, row in regions.items():
            self._known |= {Quota(metric, region): limit for metric, limit in _told(row)}

    def of(self, quota: Quota) -> Limit | None:
        """Return the limit of a quota; None if Compute Engine does not list it."""
        return self._known.get(quota)

    def used_by(self, offering: Offering) -> dict[Quota, int]:
        """Return the quotas that one more instance would use, each with the amount."""
        return dict(self._used_by(offering))

    def _used_by(self, offering: Offering) -> Iterator[tuple[Quota, int]]:
        name, _, count = offering.accelerators.partition(":")
        if name:
            yield self._of_market(_of_gpu(name), offering), int(count)
            yield Quota(ALL_GPUS, None), int(count)
        metric = self._cpus_of(offering)
        if metric is not None:
            yield self._of_market(metric, offering), offering.cpus

    def _of_market(self, metric: str, offering: Offering) -> Quota:
        preemptible = Quota(_PREEMPTIBLE + metric, offering.region)
        granted = self.of(preemptible)
        spot = offering.capacity_type is CapacityType.SPOT
        return preemptible if spot and granted is not None and granted.limit > 0 else Quota(metric, offering.region)

    def _cpus_of(self, offering: Offering) -> str | None:
        family = offering.instance_type.partition("-")[0]
        own = f"{family.upper()}_{_CPUS}"
        if self.of(Quota(own, offering.region)) is not None:
            return own
        return _CPUS if family in _SHARE_CPUS else None


def quota_named(kind: InstanceType, capacity_type: CapacityType, region: str) -> str:
    """
    Return the name of the quota of a type in a region: of its GPUs or, if it has none, of the vCPUs of its family. For
    spot, this is the spot quota, even if none was granted.
    """
    name, family = kind.accelerators.partition(":")[0], kind.name.partition("-")[0]
    metric = _of_gpu(name) if name else _CPUS if family in _SHARE_CPUS else f"{family.upper()}_{_CPUS}"
    return str(Quota(f"{_PREEMPTIBLE if capacity_type is CapacityType.SPOT else ''}{metric}", region))


def _of_gpu(name: str) -> str:
    return f"NVIDIA_{name.upper().replace('-', '_')}_GPUS"


def _told(row: Mapping[str, Any]) -> Iterator[tuple[str, Limit]]:
    for each in row.get("quotas", ()):
        yield str(each["metric"]), Limit(float(each["limit"]), float(each.get("usage", 0)))
