"""What the EC2 driver is told about an account, as plain values."""

from __future__ import annotations

from string import ascii_lowercase

import msgspec

from spotrun.instance import VOLUME_GIB
from spotrun.spec.model import AwsSpec, ResourcesSpec

OWN_PROFILE = "spotrun-run-"
"""So the names of a run's role and instance profile begin; its uid follows. The policies of infra/aws know it."""


class AwsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """
    Where to rent, and with what around an instance.

    `instance_types` narrows what is offered; empty is every x86_64 type, which takes EC2 a dozen pages to tell. The
    security group is found by name; subnets are those of its network. `image_id` wins over `image_parameter`.
    `launch_template` is the name of one that launches go by, too. `instance_profile` is the name of one for all runs;
    without it each run has its own.
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
        """The name of what the instances of a run hold their role by."""
        return self.instance_profile or f"{OWN_PROFILE}{run_uid}"


def config_of(resources: ResourcesSpec, aws: AwsSpec) -> AwsConfig:
    """What a job says of EC2. A place or a type that is named under resources is the only one to look at."""
    region = resources.region or (resources.zone and resources.zone.rstrip(ascii_lowercase))
    return AwsConfig(
        regions=aws.regions if region is None else (region,),
        instance_types=aws.instance_types if resources.instance_type is None else (resources.instance_type,),
        security_group=aws.security_group,
        instance_profile=aws.instance_profile,
        launch_template=aws.launch_template,
        image_id=aws.image_id,
        image_parameter=aws.image_parameter,
        volume_gib=aws.volume_gb,
    )
