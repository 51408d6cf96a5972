"""The configuration of the EC2 driver, as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from string import ascii_lowercase

import msgspec

from spotrun.instance import VOLUME_GIB
from spotrun.spec.model import AwsSpec, ResourcesSpec

OWN_PROFILE = "spotrun-run-"
"""
Prefix of the name of a run's role and instance profile; the run's uid follows. The policies of infra/aws rely on the
prefix.
"""


class AwsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """
    The regions to rent in, and the machine image, disk, network and role of each instance.

    Only the types in `instance_types` are offered. If it is empty, every x86_64 type is offered. The security group is
    found by name, and instances use the subnets of its network. If both images are given, `image_id` is used, and
    `image_parameter` is not. `launch_template` names a template that applies to each launch. All runs share the profile
    `instance_profile`; if it is None, each run has its own.
    """

    regions: tuple[str, ...]
    instance_types: tuple[str, ...] = ()
    security_group: str = "spotrun-node"
    instance_profile: str | None = None
    launch_template: str | None = None
    image_id: str | None = None
    image_parameter: str = ""
    volume_gib: int = VOLUME_GIB

    def profile_of(self, run_uid: str) -> str:
        return self.instance_profile or f"{OWN_PROFILE}{run_uid}"


def in_small_letters(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names in lower case, as EC2 writes the names of regions and types."""
    return tuple(name.lower() for name in names)


def region_of(zone: str) -> str:
    """Return the region of an availability zone: us-east-1 for us-east-1a."""
    return zone.lower().rstrip(ascii_lowercase)


def config_of(resources: ResourcesSpec, aws: AwsSpec) -> AwsConfig:
    """
    Return the configuration that a job describes. A region, zone or type that `resources` names takes precedence over
    the lists in `aws`.
    """
    region = resources.region or (resources.zone and region_of(resources.zone))
    kind = resources.instance_type
    return AwsConfig(
        regions=in_small_letters(aws.regions if region is None else (region,)),
        instance_types=in_small_letters(aws.instance_types if kind is None else (kind,)),
        security_group=aws.security_group,
        instance_profile=aws.instance_profile,
        launch_template=aws.launch_template,
        image_id=aws.image_id,
        image_parameter=aws.image_parameter,
        volume_gib=aws.volume_gb,
    )
