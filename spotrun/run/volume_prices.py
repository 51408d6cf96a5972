"""
The prices of an instance's disk and public address, as dated list prices by region.

gp3 of EC2, in USD per GiB and month of 30 days, with the included speed only:
https://aws.amazon.com/ebs/pricing. In each of these regions that is four fifths of gp2, which is how the table was
checked. A public IPv4 address costs the same everywhere: https://aws.amazon.com/vpc/pricing, since February 2024.

pd-balanced of Compute Engine, in USD per GiB and month of 730 hours:
https://cloud.google.com/compute/disks-image-pricing, as generated out of the Cloud Billing Catalog on 2025-03-06 into
https://github.com/Cyclenerd/google-cloud-pricing-cost-calculator/blob/0166a59ebba7/pricing.yml. hyperdisk-balanced is
cheaper: $0.08 in us-central1. An external IPv4 address that is used costs the same everywhere, and half on spot:
https://cloud.google.com/vpc/network-pricing, since February 2024.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import NamedTuple

GOOGLES_MONTH_HOURS = 730


def _by_region(prices: Mapping[str, str]) -> dict[str, Decimal]:
    return {region: Decimal(usd) for usd, regions in prices.items() for region in regions.split()}


EC2_AS_OF = "2026-11-22"
EC2_ADDRESS_USD_PER_HOUR = Decimal("0.005")
GP3 = _by_region(
    {
        "0.08": "us-east-1 us-east-2 us-west-2",
        "0.0836": "eu-north-1",
        "0.088": "ca-central-1 eu-west-1",
        "0.0912": "ap-northeast-2 ap-south-1",
        "0.0928": "eu-west-2 eu-west-3",
        "0.0952": "eu-central-1",
        "0.096": "ap-northeast-1 ap-southeast-1 ap-southeast-2 us-west-1",
        "0.152": "sa-east-1",
    }
)

GCE_AS_OF = "2026-11-25"
GCE_ADDRESS_USD_PER_HOUR, GCE_SPOT_ADDRESS_USD_PER_HOUR = Decimal("0.005"), Decimal("0.0025")
PD_BALANCED = _by_region(
    {
        "0.1": "asia-east1 europe-north2 europe-west1 us-central1 us-east1 us-east5 us-west1",
        "0.109": "northamerica-south1",
        "0.11": "asia-east2 asia-southeast1 europe-north1 europe-west4 me-west1 northamerica-northeast1 "
        "northamerica-northeast2 us-east4 us-west4",
        "0.116": "europe-west8 europe-west9",
        "0.12": "asia-south1 asia-south2 europe-southwest1 europe-west12 europe-west2 europe-west3 us-south1 us-west2 "
        "us-west3",
        "0.1215": "me-central1",
        "0.13": "asia-northeast1 asia-northeast2 asia-northeast3 asia-southeast2 europe-central2 europe-west6",
        "0.1308": "africa-south1",
        "0.135": "australia-southeast1 australia-southeast2",
        "0.143": "southamerica-west1",
        "0.15": "southamerica-east1",
        "0.154": "europe-west10",
        "0.16": "me-central2",
    }
)


class VolumePrice(NamedTuple):
    """`where` says whose price it is."""

    usd_per_gib_month: Decimal
    where: str


def volume_price(table: Mapping[str, Decimal], regions: Collection[str]) -> VolumePrice:
    """
    Return the price in the dearest of these regions, so that a budget holds in each of them. A region that the table
    lacks costs as much as the dearest in the table.
    """
    unknown = sorted(set(regions) - table.keys())
    dearest = max(table if unknown else regions, key=table.__getitem__)
    where = f"{dearest}, the dearest known, as there is no price for {', '.join(unknown)}" if unknown else dearest
    return VolumePrice(table[dearest], where)
