"""What the EC2 driver is told about an account, as plain values."""

from __future__ import annotations

import msgspec

from spotrun.instance import VOLUME_GIB

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
