"""Computes how much of the account's quotas is unused, from Service Quotas and the running instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from spotrun.clouds.aws import account_checks
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.quotas import Quota, quota_of
from spotrun.clouds.aws.request import RUN
from spotrun.offering import RENTED, CapacityType
from spotrun.units import count_of

_COUNTED = ("pending", "running", "shutting-down", "stopping")
_USERS_TOLD = 5


class _User(NamedTuple):
    """An instance that counts against a quota, and the number of its vCPUs."""

    quota: Quota | None
    cpus: int
    row: Mapping[str, Any]

    def __str__(self) -> str:
        run = next((tag["Value"] for tag in self.row.get("Tags", []) if tag["Key"] == RUN), "")
        return f"{self.row['InstanceId']} ({self.row['InstanceType']}, {self.cpus}{run and f', run {run}'})"


class Headroom:
    """
    The unused part of the quotas. `limits` has the number of vCPUs that each quota allows, `used` the number that
    instances already use.
    """

    def __init__(self, limits: Mapping[Quota, int | None], used: Mapping[Quota | None, int]) -> None:
        self._limits = limits
        self._used = used

    def for_more(self, instance_type: str, cpus: int, capacity_type: CapacityType) -> int | None:
        """Return how many more instances of a type the quota allows; None if the quota is unknown."""
        quota = quota_of(instance_type, capacity_type)
        limit = None if quota is None else self._limits.get(quota)
        return None if limit is None or not cpus else max(0, limit - self._used.get(quota, 0)) // cpus


def read_headroom(region: Region, cpus: Mapping[str, int]) -> Headroom:
    """
    Return how much is unused of the quotas for the types in `cpus`, which maps each type to its number of vCPUs. This
    number is also used for instances that EC2 lists without one.

    Raises:
        CloudError: EC2 or Service Quotas cannot be read (see CloudDriver). The caller needs the right
            servicequotas:GetServiceQuota.
    """
    quotas = {quota_of(kind, capacity_type) for kind in cpus for capacity_type in RENTED}
    limits = {quota: account_checks.quota(region, quota.code) for quota in quotas if quota is not None}
    used: Counter[Quota | None] = Counter()
    for user in _users(region, cpus):
        used[user.quota] += user.cpus
    return Headroom(limits, used)


def quota_in_use(region: Region, quota: Quota, cpus: Mapping[str, int]) -> str:
    """
    Describe how much of a quota is in use, and by which instances: `spot vCPUs of G and VT in us-east-1 (L-3819A6DF): 8
    of 8 in use, by i-0a1 (g5.2xlarge, 8)`. Only the largest instances are listed. `cpus` and the errors are the same as
    in `read_headroom`.
    """
    limit = account_checks.quota(region, quota.code)
    users = sorted((user for user in _users(region, cpus) if user.quota == quota), key=lambda user: -user.cpus)
    used = sum(user.cpus for user in users)
    told = [str(user) for user in users[:_USERS_TOLD]]
    if len(users) > len(told):
        told.append(count_of(len(users) - len(told), "smaller instance"))
    by = f", by {', '.join(told)}" if told else ""
    allowed = "an unknown number" if limit is None else limit
    return f"{quota.name} in {region.name} ({quota.code}): {used} of {allowed} in use{by}"


def _users(region: Region, cpus: Mapping[str, int]) -> Iterator[_User]:
    alive = [{"Name": "instance-state-name", "Values": list(_COUNTED)}]
    reservations = region.pages(region.ec2, "describe_instances", "Reservations", Filters=alive)
    return _counted((row for reservation in reservations for row in reservation["Instances"]), cpus)


def _counted(rows: Iterable[Mapping[str, Any]], cpus: Mapping[str, int]) -> Iterator[_User]:
    for row in rows:
        spot = row.get("InstanceLifecycle") == CapacityType.SPOT
        quota = quota_of(row["InstanceType"], CapacityType.SPOT if spot else CapacityType.ON_DEMAND)
        told = row.get("CpuOptions")
        own = told["CoreCount"] * told["ThreadsPerCore"] if told else cpus.get(row["InstanceType"], 0)
        yield _User(quota, own, row)
