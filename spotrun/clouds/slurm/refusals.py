"""Checks a job's Slurm settings, without using the network."""

from __future__ import annotations

from collections.abc import Iterator

from spotrun.spec.model import RunSpec
from spotrun.spec.strict import judged
from spotrun.units import Unreadable

_LINE = "partitions: [{name: NAME, capacity: spot, usd_per_node_hour: 0.10}]"
_KINDS = {"spot": "spot", "on-demand": "on_demand"}


def refusals(spec: RunSpec) -> Iterator[Unreadable]:
    return judged(spec, _secrets, _image, _no_partition, _region, _without_capacity, _unknown_zone)


def _secrets(spec: RunSpec) -> Iterator[Unreadable]:
    for name in spec.secrets:
        advice = "remove it, and keep the value in a file in your home folder, which the nodes share"
        yield Unreadable("does not reach instances on slurm yet", advice, at=("secrets", name))


def _image(spec: RunSpec) -> Iterator[Unreadable]:
    if spec.resources.image_id is not None:
        advice = "remove it, and create the environment in setup"
        yield Unreadable("needs root, which a Slurm job does not have", advice, at=("resources", "image_id"))


def _no_partition(spec: RunSpec) -> Iterator[Unreadable]:
    if not spec.slurm.partitions:
        advice = f"write {_LINE}; `spotrun doctor slurm` lists the partitions"
        yield Unreadable("names no partition", advice, at=("slurm", "partitions"))


def _region(spec: RunSpec) -> Iterator[Unreadable]:
    if spec.resources.region is not None:
        advice = "remove it; resources.zone is a partition"
        yield Unreadable("a cluster has no regions", advice, at=("resources", "region"))


def _without_capacity(spec: RunSpec) -> Iterator[Unreadable]:
    wanted = _KINDS.get(spec.resources.spot_policy)
    if wanted is not None and wanted not in {each.capacity for each in spec.slurm.partitions}:
        advice = f"write capacity: {wanted} for a partition that has it, or spot_policy: auto"
        reason = f"none of slurm.partitions has capacity: {wanted}"
        yield Unreadable(reason, advice, at=("resources", "spot_policy"))


def _unknown_zone(spec: RunSpec) -> Iterator[Unreadable]:
    zone, names = spec.resources.zone, [each.name for each in spec.slurm.partitions]
    if zone is not None and zone not in names:
        advice = f"write one of {', '.join(names)}, or remove it"
        yield Unreadable(f"{zone} is not under slurm.partitions", advice, at=("resources", "zone"))
