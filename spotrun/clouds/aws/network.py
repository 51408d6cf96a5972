"""
Finds what a launch needs in a region: the image, the security group, and each zone's subnets with their routes to the
internet.
"""

from __future__ import annotations

from typing import Any

import msgspec

from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.config import AwsConfig
from spotrun.clouds.error_kinds import BadImage, CredentialsRefused
from spotrun.errors import AccessDenied, CloudError

_INTERNET_GATEWAY = "igw-"
_TARGETS = (
    *("GatewayId", "NatGatewayId", "TransitGatewayId", "NetworkInterfaceId", "InstanceId", "VpcPeeringConnectionId"),
    *("LocalGatewayId", "CarrierGatewayId", "CoreNetworkArn"),
)
"""
The keys under which EC2 describes a route's target; each route has one of these keys:
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_Route.html. If the target is an internet gateway, only
instances with a public address can use the route.
"""


class Ami(msgspec.Struct, frozen=True, kw_only=True):
    """A machine image. `made_on` is the day on which it was created, in EC2's format; "" if EC2 does not report it."""

    image_id: str
    root_device: str
    volume_gib: int
    made_on: str = ""


class Subnet(msgspec.Struct, frozen=True, kw_only=True):
    """
    A subnet. Three fields describe how its instances reach the internet:
    - `leads_out`: True if they reach it; None if the caller is not allowed to read the routes
    - `gives_addresses`: True if each instance gets a public address
    - `has_gateway`: True if a public address is all that an instance needs to reach it
    """

    subnet_id: str
    zone: str
    free_addresses: int
    gives_addresses: bool
    leads_out: bool | None
    has_gateway: bool = False


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """
    A network. `subnets` holds the subnets of each zone, best first; a zone without a subnet cannot be used (P3 in
    docs/design/failures.md). If the subnets' routes could not be read, `unrouted` is the reason.
    """

    group: str
    subnets: dict[str, tuple[Subnet, ...]]
    unrouted: str = ""


def find_image(region: Region, config: AwsConfig) -> str:
    """
    Return the id of the machine image that the job names. If it names none, read the id from the configured SSM
    parameter.
    """
    return config.image_id or _newest(region, config.image_parameter)


def describe_image(region: Region, image_id: str) -> Ami:
    """Return an image's description; raise BadImage if the image is not available."""
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
    return Ami(image_id=image_id, root_device=root, volume_gib=max(sizes, default=0), made_on=made_on)


def _newest(region: Region, parameter: str) -> str:
    try:
        answer = region.ask(f"read the parameter {parameter}", lambda: region.ssm.get_parameter(Name=parameter))
    except CredentialsRefused:
        raise
    except AccessDenied as error:
        hint = (
            "the policy spotrun-runner reads AWS's parameters and /spotrun/image: call yours that, or set aws.image_id"
        )
        raise AccessDenied(error.message, hint=hint) from error
    return str(answer["Parameter"]["Value"])


def find_network(region: Region, config: AwsConfig) -> Network:
    """
    Find the configured security group and, in each zone of its network, the subnets in which instances can start. Raise
    CloudError unless exactly one group has the configured name.
    """
    named = [{"Name": "group-name", "Values": [config.security_group]}]
    groups = region.pages(region.ec2, "describe_security_groups", "SecurityGroups", Filters=named)
    if not groups:
        hint = f"deploy infra/aws/region.yaml in {region.name}, or name your own group under aws.security_group"
        raise CloudError(f"no security group in {region.name} is called {config.security_group}", hint=hint)
    if len(groups) > 1:
        what = f"{len(groups)} security groups in {region.name} are called {config.security_group}, not one"
        raise CloudError(
            what, hint="rename all but one of these groups, or name another group under aws.security_group"
        )
    inside = [{"Name": "vpc-id", "Values": [groups[0]["VpcId"]]}]
    rows = region.pages(region.ec2, "describe_subnets", "Subnets", Filters=inside)
    tables, unrouted = _route_tables(region, inside)
    by_zone: dict[str, list[Subnet]] = {}
    for row in rows:
        by_zone.setdefault(row["AvailabilityZone"], []).append(_subnet(row, tables))
    return Network(
        group=groups[0]["GroupId"],
        subnets={zone: _best_first(subnets) for zone, subnets in by_zone.items()},
        unrouted=unrouted,
    )


def _route_tables(region: Region, inside: list[dict[str, Any]]) -> tuple[list[dict[str, Any]] | None, str]:
    """
    Return the route tables and "". If the caller is not allowed to read them, return None and the reason. (The policies
    in earlier versions of infra/aws/account.yaml do not allow it.)
    """
    try:
        return region.pages(region.ec2, "describe_route_tables", "RouteTables", Filters=inside), ""
    except AccessDenied as error:
        return None, error.message


def _subnet(row: dict[str, Any], tables: list[dict[str, Any]] | None) -> Subnet:
    gives_addresses = bool(row.get("MapPublicIpOnLaunch"))
    targets = [] if tables is None else _default_targets(row["SubnetId"], tables)
    gateways = [target for target in targets if target.startswith(_INTERNET_GATEWAY)]
    leads_out = len(targets) > len(gateways) or (bool(gateways) and gives_addresses)
    return Subnet(
        subnet_id=row["SubnetId"],
        zone=row["AvailabilityZone"],
        free_addresses=row["AvailableIpAddressCount"],
        gives_addresses=gives_addresses,
        leads_out=None if tables is None else leads_out,
        has_gateway=bool(gateways),
    )


def _default_targets(subnet_id: str, tables: list[dict[str, Any]]) -> list[str]:
    """
    Return the targets of a subnet's default routes: internet gateways, NAT gateways, or other targets, such as another
    network. A subnet without its own route table uses the main table of the network.
    """
    own = [each for each in tables if any(link.get("SubnetId") == subnet_id for link in each.get("Associations", ()))]
    main = [each for each in tables if any(link.get("Main") for link in each.get("Associations", ()))]
    routes = [route for table in own or main for route in table.get("Routes", ())]
    wide = (route for route in routes if route.get("DestinationCidrBlock") == "0.0.0.0/0")
    leading = (route for route in wide if route.get("State", "active") == "active")
    return [next((str(route[name]) for name in _TARGETS if route.get(name)), "") for route in leading]


def _best_first(subnets: list[Subnet]) -> tuple[Subnet, ...]:
    """
    Sort the subnets of a zone, best first. A subnet is better than another if it is better in the first of these points
    in which they differ:

    - whether it has free addresses
    - whether it has a route to the internet or to another network
    - if neither subnet has such a route, whether it gives its instances public addresses
    - how many free addresses it has

    If the best subnet has such a route, subnets without one are left out.
    """
    best = sorted(subnets, key=_worth, reverse=True)
    if best[0].leads_out:
        best = [each for each in best if each.leads_out]
    return tuple(best)


def _worth(subnet: Subnet) -> tuple[bool, bool, bool, int, str]:
    first = bool(subnet.leads_out)
    return (
        subnet.free_addresses > 0,
        first,
        subnet.gives_addresses and not first,
        subnet.free_addresses,
        subnet.subnet_id,
    )
