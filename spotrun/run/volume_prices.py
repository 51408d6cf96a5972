"""
What EC2 charges for the disk and the public address of an instance, as dated list prices by region.

gp3, in USD per GiB and month of 30 days, with no more speed than what is included: https://aws.amazon.com/ebs/pricing.
In each of these regions that is four fifths of gp2, which is how the table was checked. A public IPv4 address costs the
same everywhere: https://aws.amazon.com/vpc/pricing, since February 2024.
"""

from __future__ import annotations

from collections.abc import Collection
from decimal import Decimal
from typing import NamedTuple

AS_OF = "2026-11-22"
ADDRESS_USD_PER_HOUR = Decimal("0.005")
GP3_USD_PER_GIB_MONTH = {
    region: Decimal(usd)
    for usd, regions in {
        "0.08": "us-east-1 us-east-2 us-west-2",
        "0.0836": "eu-north-1",
        "0.088": "ca-central-1 eu-west-1",
        "0.0912": "ap-northeast-2 ap-south-1",
        "0.0928": "eu-west-2 eu-west-3",
        "0.0952": "eu-central-1",
        "0.096": "ap-northeast-1 ap-southeast-1 ap-southeast-2 us-west-1",
        "0.152": "sa-east-1",
    }.items()
    for region in regions.split()
}


class VolumePrice(NamedTuple):
    """`where` says whose price it is."""

    usd_per_gib_month: Decimal
    where: str


def volume_price(regions: Collection[str]) -> VolumePrice:
    """
    Of the dearest of these regions, so that a budget holds wherever the run goes. A region that the table lacks costs
    as much as the dearest that it has.
    """
    unknown = sorted(set(regions) - GP3_USD_PER_GIB_MONTH.keys())
    dearest = max(GP3_USD_PER_GIB_MONTH if unknown else regions, key=GP3_USD_PER_GIB_MONTH.__getitem__)
    where = f"{dearest}, the dearest known, as there is no price for {', '.join(unknown)}" if unknown else dearest
    return VolumePrice(GP3_USD_PER_GIB_MONTH[dearest], where)
