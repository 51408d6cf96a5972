"""What the EC2 driver is told about an account, as plain values."""

from __future__ import annotations

import msgspec

from spotrun.instance import VOLUME_GIB


class AwsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """
    Where to rent, and with what around an instance.

    `instance_types` narrows what is offered; empty is every x86_64 type, which takes EC2 a dozen pages to tell. The
    security group is found by name; subnets are those of its network. `image_id` wins over `image_parameter`.
    `launch_template` is the name of one that launches go by, too.
    """

    regions: tuple[str, ...]
    instance_types: tuple[str, ...] = ()
    security_group: str = "spotrun-node"
    instance_profile: str = "spotrun-node"
    launch_template: str | None = None
    image_id: str | None = None
    image_parameter: str = ""
    volume_gib: int = VOLUME_GIB
