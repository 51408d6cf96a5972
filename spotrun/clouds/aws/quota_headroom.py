"""How many more instances of a type the account's quotas allow, by Service Quotas and what runs now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from spotrun.clouds.aws import account_checks
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.quotas import Quota, quota_of
from spotrun.offering import CapacityType

_COUNTED = ("pending", "running", "shutting-down", "stopping")


class Headroom:
    """`limits` are the vCPUs of each quota; `used` is how many of them instances hold."""

    def __init__(self, limits: Mapping[Quota, int | None], used: Mapping[Quota | None, int]) -> None:
        self._limits = limits
        self._used = used

    def for_more(self, instance_type: str, cpus: int, capacity_type: CapacityType) -> int | None:
        """How many more instances may run; None if no quota is known."""
        quota = quota_of(instance_type, capacity_type)
        limit = None if quota is None else self._limits.get(quota)
        return None if limit is None or not cpus else max(0, limit - self._used.get(quota, 0)) // cpus


def read_headroom(region: Region, cpus: Mapping[str, int]) -> Headroom:
    """
    The headroom for the types in `cpus`. It has the CPUs of each type, for instances that EC2 lists without theirs.

    Raises:
        CloudError: see CloudDriver; asking needs servicequotas:GetServiceQuota.
    """
    quotas = {quota_of(kind, capacity_type) for kind in cpus for capacity_type in CapacityType}
    limits = {quota: account_checks.quota(region, quota.code) for quota in quotas if quota is not None}
    alive = [{"Name": "instance-state-name", "Values": list(_COUNTED)}]
    reservations = region.pages(region.ec2, "describe_instances", "Reservations", Filters=alive)
    rows = (row for reservation in reservations for row in reservation["Instances"])
    return Headroom(limits, _used(rows, cpus))


def _used(rows: Iterable[Mapping[str, Any]], cpus: Mapping[str, int]) -> Counter[Quota | None]:
    used: Counter[Quota | None] = Counter()
    for row in rows:
        spot = row.get("InstanceLifecycle") == CapacityType.SPOT
        quota = quota_of(row["InstanceType"], CapacityType.SPOT if spot else CapacityType.ON_DEMAND)
        told = row.get("CpuOptions")
        used[quota] += told["CoreCount"] * told["ThreadsPerCore"] if told else cpus.get(row["InstanceType"], 0)
    return used
