"""
The prices of object stores: dated list prices of the standard storage class in each provider's cheapest large region.

spotrun.account.gcs_prices computes Google's prices; all amounts are in storage_prices.json. The actual prices may
differ: storage in other regions costs up to 50 % more, and a store on your own server costs nothing. So the report
names the price list that it used.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache

from msgspec.structs import replace

from spotrun.account.gcs_prices import gcs_prices, list_prices, standard_prices
from spotrun.address import BucketAddress
from spotrun.offering import HOME
from spotrun.run.events import Passage, StoragePrices


@cache
def s3_standard() -> StoragePrices:
    """
    Return the prices for an S3 bucket whose region is unknown.

    For traffic between regions, AWS bills the sending region, at the same price for S3 and EC2: $0.02 a GB in North
    America and Europe (repost.aws, "Cost-effective methods for accessing S3 buckets cross-region", prices of January
    2026). These prices ignore one exception: from us-east-1 to us-east-2, a GB costs only $0.01.
    """
    dearer = list_prices("traffic from the dearer regions of S3").prices
    return replace(standard_prices("S3 Standard in us-east-1"), egress_elsewhere=dearer)


def storage_prices(place: BucketAddress | str, region: str = "", *, home: bool = False) -> StoragePrices:
    """
    Return the storage prices for a run at `place`. A local folder has the same prices as a bucket, so that bills can be
    compared.

    `region` is the bucket's region, "" if unknown. `home` is True if the job allows training on the user's own machine
    too. Then the prices include traffic from the bucket to that machine, at the provider's price for traffic to the
    internet, without its monthly free allowance and its volume discounts.
    """
    if isinstance(place, str):
        return replace(s3_standard(), source=f"{s3_standard().source}, as if the folder were a bucket; simulated")
    prices = gcs_prices(region) if place.scheme == "gs" else replace(s3_standard(), region=region)
    to_home = list_prices("traffic from a bucket to the internet").prices.get(place.scheme) if home else None
    if to_home is not None:
        passage = Passage(read_usd_per_gb=to_home, write_usd_per_gb=Decimal(0), is_home=True)
        prices = replace(prices, between={**prices.between, HOME: passage})
    return replace(prices, source=f"{prices.source}, whatever the region of the bucket")
