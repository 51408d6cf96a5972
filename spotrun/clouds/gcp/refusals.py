"""
Checks the regions, zones, instance types and accelerators that a job names on Google Cloud, without using the network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from spotrun.clouds.gcp.config import region_of
from spotrun.run.volume_prices import list_prices
from spotrun.spec.model import ResourcesSpec, RunSpec
from spotrun.spec.values import ON_DEMAND
from spotrun.units import Unreadable

_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]{1,2}")
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]{1,2}-[a-z]")
_NO_SPOT = re.compile(r"x4-.*|.*-metal")
"""Types without spot: https://cloud.google.com/compute/docs/instances/spot#limitations"""
_ARM = re.compile(r"(t2a|[cn][0-9]a|a[0-9]x)(-.*)?")
"""Types with Arm processors: https://cloud.google.com/compute/docs/instances/arm-on-compute"""
_TPU = re.compile(r"(tpu|ct[0-9]|v[0-9]+[ep]?(lite)?pod).*")
"""
Names of TPUs, as accelerators and as machine types: https://cloud.google.com/tpu/docs/supported-tpu-configurations
"""
_MACHINES_APART = "n1-"
_GPUS_APART = ("K80", "P4", "P100", "T4", "V100")
"""
GPUs that no machine type includes; they are attached to N1 machines: https://cloud.google.com/compute/docs/gpus#n1-gpus
"""


def never_rented(kind: str) -> Unreadable | None:
    """
    Return an error if spotrun can never rent the machine type or accelerators `kind`, such as an Arm machine type or a
    TPU; otherwise None.
    """
    name = kind.partition(":")[0]
    if _ARM.fullmatch(name.lower()):
        return Unreadable(
            f"{kind} has Arm processors, and spotrun has no image and no packages for them",
            "name one with x86 processors, like g2-standard-8 with a GPU or c4-standard-8 without",
        )
    if _TPU.fullmatch(name.lower()):
        return Unreadable(f"{kind} is a TPU, which spotrun does not train on", "name a GPU, like L4:1")
    if name.upper() in _GPUS_APART:
        return Unreadable(
            f"{name} is attached to an N1 machine on gcp, which spotrun does not support yet",
            "name a GPU that is built into a machine type, like L4:1",
        )
    return None


def unknown_region(name: str) -> Unreadable | None:
    """
    Return an error if `name` is not a Google region; None if it is one. The error's hint names the region that was
    probably meant.
    """
    written = name.lower()
    if not _REGION.fullmatch(written):
        return Unreadable(f"{name} is not a Google Cloud region", "write one like us-central1")
    known = list_prices("pd-balanced").prices
    if written in known:
        return None
    meant = get_close_matches(written, sorted(known), 1)
    hint = f"did you mean {meant[0]}?" if meant else "`gcloud compute regions list` shows the names"
    return Unreadable(f"Google Cloud has no region {name}", f"{hint} If it is new, update spotrun")


def _misnamed_zone(spec: RunSpec) -> Iterator[Unreadable]:
    zone = spec.resources.zone
    if zone and not _ZONE.fullmatch(zone.lower()):
        yield Unreadable(f"{zone} is not a Google Cloud zone", "write one like us-central1-a", at=("resources", "zone"))
    elif zone:
        yield from _no_region(region_of(zone), ("resources", "zone"))


def _misnamed_region(spec: RunSpec) -> Iterator[Unreadable]:
    if spec.resources.region:
        yield from _no_region(spec.resources.region, ("resources", "region"))


def _misnamed_regions(spec: RunSpec) -> Iterator[Unreadable]:
    for index, name in enumerate(spec.gcp.regions):
        yield from _no_region(name, ("gcp", "regions", index))


MISNAMED = (_misnamed_zone, _misnamed_region, _misnamed_regions)
"""Checks that yield an error for each region or zone in a job that Google does not have."""


def _no_region(name: str, at: tuple[str | int, ...]) -> Iterator[Unreadable]:
    if (unknown := unknown_region(name)) is not None:
        yield Unreadable(unknown.message, unknown.suggestion, at=at)


def _unlisted_type(spec: RunSpec) -> Iterator[Unreadable]:
    one, types = spec.resources.instance_type, spec.gcp.instance_types
    if one and types and one not in types:
        yield Unreadable(
            f"does not list resources.instance_type, {one}", "remove one of them", at=("gcp", "instance_types")
        )


def _types_without_spot(spec: RunSpec) -> Iterator[Unreadable]:
    if one := spec.resources.instance_type:
        yield from _no_spot(one, spec.resources, ("resources", "instance_type"))
    for index, name in enumerate(spec.gcp.instance_types if one is None else ()):
        yield from _no_spot(name, spec.resources, ("gcp", "instance_types", index))


def _gpus_apart(spec: RunSpec) -> Iterator[Unreadable]:
    one = spec.resources.instance_type
    if one and one.lower().startswith(_MACHINES_APART) and spec.resources.accelerators is not None:
        advice = "name a type with built-in GPUs, like g2-standard-8, or no type"
        yield Unreadable(
            f"{one} has separately attached GPUs, which spotrun does not support yet",
            advice,
            at=("resources", "instance_type"),
        )


IMPOSSIBLE_TYPES = (_unlisted_type, _types_without_spot, _gpus_apart)
"""
Checks that yield an error for each instance type in a job that conflicts with the job's other keys, such as a type
without spot capacity in a job that allows only spot.
"""


def _no_spot(kind: str, resources: ResourcesSpec, at: tuple[str | int, ...]) -> Iterator[Unreadable]:
    if _NO_SPOT.fullmatch(kind.lower()) and resources.spot_policy != ON_DEMAND:
        advice = "set spot_policy: on-demand, or name another type"
        yield Unreadable(f"Google has no spot capacity for {kind}", advice, at=at)
