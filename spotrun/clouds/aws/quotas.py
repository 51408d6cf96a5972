"""
Names the quota that limits each instance type. A quota is a number of vCPUs for a family of types. Spot and on-demand
instances have separate quotas.

https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
"""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from spotrun.offering import CapacityType


class Quota(NamedTuple):
    """A quota of EC2, with the name that spotrun shows and AWS's code, which is the same in all regions."""

    name: str
    code: str


_ON_DEMAND = {
    "standard": Quota("on-demand vCPUs of standard types", "L-1216C47A"),
    "g": Quota("on-demand vCPUs of G and VT", "L-DB2E81BA"),
    "p": Quota("on-demand vCPUs of P", "L-417A185B"),
}
_SPOT = {
    "standard": Quota("spot vCPUs of standard types", "L-34B43A08"),
    "g": Quota("spot vCPUs of G and VT", "L-3819A6DF"),
    "p2-4": Quota("spot vCPUs of P2, P3 and P4", "L-7212CCBC"),
    "p5": Quota("spot vCPUs of P5", "L-C4BD4855"),
}
_LETTERS_OF = {
    "standard": {"a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"},
    "g": {"g", "gr", "vt"},
    "p": {"p"},
}
_FAMILY = re.compile(r"([a-z]+)(\d*)")


def quota_of(instance_type: str, capacity_type: CapacityType) -> Quota | None:
    """Return the quota of a type such as `g5.xlarge`; None if this module lists no quota for its family."""
    found = _FAMILY.match(instance_type)
    assert found is not None, instance_type
    letters, generation = found.groups()
    family = next((name for name, known in _LETTERS_OF.items() if letters in known), "")
    if capacity_type is CapacityType.ON_DEMAND:
        return _ON_DEMAND.get(family)
    if family == "p":
        family = "p2-4" if generation in ("2", "3", "4") else f"p{generation}"
    return _SPOT.get(family)


def quota_named(instance_type: str, capacity_type: CapacityType, region: str) -> str | UnsetType:
    """Return the name of the quota of a type in a region; UNSET if `quota_of` returns None."""
    quota = quota_of(instance_type, capacity_type)
    return UNSET if quota is None else f"{quota.name} in {region}"
