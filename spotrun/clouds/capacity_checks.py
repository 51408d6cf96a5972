"""Checks which zones offer the instances that a job wants, and how many of them the account's quotas allow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import NamedTuple

from spotrun.clouds.instance_type import InstanceType
from spotrun.doctor.finding import Finding, failed, ok, unknown, warned
from spotrun.errors import InsufficientCapacity, QuotaExceeded
from spotrun.market.wishes import named, not_named, suits, unmet, wishes_of
from spotrun.offering import CapacityType, Offering
from spotrun.spec.model import ResourcesSpec

TYPES_NAMED_MAX = 4
_CAPACITY_TYPES = {
    "spot": (CapacityType.SPOT,),
    "on-demand": (CapacityType.ON_DEMAND,),
    "auto": (CapacityType.SPOT, CapacityType.ON_DEMAND),
}


class CapacityRequest(NamedTuple):
    """
    The capacity that a job wants. `types` are the instance types that the job's section for its cloud lists. A job that
    names neither a type nor an accelerator is assumed to want one GPU.
    """

    resources: ResourcesSpec
    types: tuple[str, ...] = ()

    def __str__(self) -> str:
        wanted = self.resources
        named = (
            wanted.instance_type or " or ".join(self.types),
            wanted.accelerators,
            wanted.zone and f"in {wanted.zone}",
        )
        return " ".join(str(each) for each in named if each) or "an instance with one GPU"

    def offered(self, kind: InstanceType, region: str, zone: str) -> Iterator[Offering]:
        """Yield the offerings of a type in a zone that suit the job."""
        return filter(self._suits, self.all_offered(kind, region, zone))

    def all_offered(self, kind: InstanceType, region: str, zone: str) -> Iterator[Offering]:
        """Yield the offerings of a type in a zone, of the capacity types that the job allows, without prices."""
        for capacity_type in _CAPACITY_TYPES[self.resources.spot_policy]:
            yield kind.offered(
                cloud=self.resources.cloud,
                region=region,
                zone=zone,
                capacity_type=capacity_type,
                price_usd_per_hour=Decimal(0),  # this check ignores the price
            )

    def not_offered(self, everything: Sequence[Offering], where: str) -> InsufficientCapacity:
        """Return the error if none of the offerings in `where`, which are `everything`, suits the job."""
        types = self.types if self.resources.instance_type is None else ()
        key = (self.resources.cloud, "instance_types")
        listed = [named(key, types, lambda found: found.instance_type)] if types else []
        missing = not_named(everything, self.resources, types)
        missing = missing or unmet(everything, (*listed, *wishes_of(self.resources)))
        if missing is not None:
            return InsufficientCapacity(f"{where}: {missing.message}", hint=missing.suggestion)
        accelerators = ", ".join(sorted({each.accelerators.partition(":")[0] for each in everything} - {""}))
        hint = f"there is {accelerators or 'no accelerator'}; or name another region"
        return InsufficientCapacity(f"no zone of {where} offers {self}", hint=hint)

    def _suits(self, offering: Offering) -> bool:
        if self.types and offering.instance_type not in self.types:
            return False
        says_kind = self.types or self.resources.instance_type or self.resources.accelerators
        return suits(offering, self.resources) and (bool(says_kind) or offering.accelerators.endswith(":1"))


class Allowance(NamedTuple):
    """
    A quota of the account. `hint` says how to raise it, or how to find out its value. `takes` is the amount that the
    smallest suitable instance needs, and `left` is the amount that is still unused (None if unknown).
    """

    name: str
    detail: str
    hint: str
    takes: int
    left: float | None

    @property
    def is_too_small(self) -> bool:
        return self.left is not None and self.left < self.takes


def smallest_first(offerings: Iterable[Offering]) -> list[Offering]:
    return sorted(offerings, key=lambda each: (each.cpus, each.instance_type, each.zone))


def zone_findings(offerings: Sequence[Offering]) -> Iterator[Finding]:
    for zone in sorted({each.zone for each in offerings}):
        yield ok(f"zone {zone}", types_of(each for each in offerings if each.zone == zone))


def types_of(offerings: Iterable[Offering]) -> str:
    types = sorted({each.instance_type for each in offerings})
    return ", ".join(types) if len(types) <= TYPES_NAMED_MAX else f"{len(types)} types"


def quota_findings(markets: Sequence[Sequence[Allowance]]) -> Iterator[Finding]:
    """
    Yield a finding for each spot quota and each on-demand quota. A quota that is too small is a warning if the job fits
    into the quotas of the other capacity type, and a failure if not.
    """
    nothing_fits = bool(markets) and all(any(each.is_too_small for each in market) for market in markets)
    first: dict[str, Allowance] = {}
    for allowance in (each for market in markets for each in market):
        first.setdefault(allowance.name, allowance)
    for allowance in first.values():
        yield _judged(allowance, nothing_fits)


def _judged(allowance: Allowance, nothing_fits: bool) -> Finding:
    name, detail, hint, takes, left = allowance
    if left is None:
        return unknown(name, detail, hint)
    if allowance.is_too_small:
        return failed(name, QuotaExceeded(detail, hint=hint)) if nothing_fits else warned(name, detail, hint)
    if left < 2 * takes:
        detail += ": no standby could boot next to it, so after a notice the run waits until the old instance is gone"
        return warned(name, detail, hint)
    return ok(name, detail)
