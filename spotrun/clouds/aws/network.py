"""What surrounds an instance: its image, its security group, and a subnet per zone."""

from __future__ import annotations

from typing import Any

import msgspec

from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.config import AwsConfig
from spotrun.clouds.aws.error_codes import BadImage
from spotrun.errors import CloudError


class Image(msgspec.Struct, frozen=True, kw_only=True):
    """`made_on` is a day, as EC2 writes it; "" if EC2 gives none."""

    image_id: str
    root_device: str
    volume_gib: int
    made_on: str = ""


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """`subnets` is zone -> subnet id; a zone without one cannot be used (failures.md P3)."""

    group: str
    subnets: dict[str, str]


def find_image(region: Region, config: AwsConfig) -> str:
    """The id of the image that was named, or of the newest one behind the parameter."""
    return config.image_id or _newest(region, config.image_parameter)


def describe_image(region: Region, image_id: str) -> Image:
    """
    Raises:
        BadImage: there is no such image, or it is not available any more.
    """
    answer = region.ask(f"describe {image_id}", lambda: region.ec2.describe_images(ImageIds=[image_id]))
    if not answer["Images"] or answer["Images"][0].get("State", "available") != "available":
        raise BadImage(f"image {image_id} is not available in {region.name}", hint="name another image")
    found = answer["Images"][0]
    root = found.get("RootDeviceName") or "/dev/sda1"
    sizes = [
        mapping["Ebs"].get("VolumeSize", 0)
        for mapping in found.get("BlockDeviceMappings", [])
        if mapping.get("DeviceName") == root and "Ebs" in mapping
    ]
    made_on = found.get("CreationDate", "").partition("T")[0]
    return Image(image_id=image_id, root_device=root, volume_gib=max(sizes, default=0), made_on=made_on)


def _newest(region: Region, parameter: str) -> str:
    answer = region.ask(f"read the parameter {parameter}", lambda: region.ssm.get_parameter(Name=parameter))
    return str(answer["Parameter"]["Value"])


def find_network(region: Region, config: AwsConfig) -> Network:
    """
    The security group of that name, and for each zone of its network the subnet with most addresses left.

    Raises:
        CloudError: there is no such group, or more than one.
    """
    named = [{"Name": "group-name", "Values": [config.security_group]}]
    groups = region.pages(region.ec2, "describe_security_groups", "SecurityGroups", Filters=named)
    if not groups:
        hint = f"deploy infra/aws/region.yaml in {region.name}, or name a group of yours under aws.security_group"
        raise CloudError(f"no security group in {region.name} is called {config.security_group}", hint=hint)
    if len(groups) > 1:
        what = f"{len(groups)} security groups in {region.name} are called {config.security_group}, not one"
        raise CloudError(what, hint="rename or delete the others, or name another group under aws.security_group")
    inside = [{"Name": "vpc-id", "Values": [groups[0]["VpcId"]]}]
    subnets = region.pages(region.ec2, "describe_subnets", "Subnets", Filters=inside)
    roomiest = sorted(subnets, key=_free_addresses)
    return Network(
        group=groups[0]["GroupId"],
        subnets={subnet["AvailabilityZone"]: subnet["SubnetId"] for subnet in roomiest},
    )


def _free_addresses(subnet: dict[str, Any]) -> tuple[int, str]:
    return subnet["AvailableIpAddressCount"], subnet["SubnetId"]
