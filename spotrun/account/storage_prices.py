"""
The prices of object stores, as dated list prices of the standard class in each provider's cheapest large region.

S3's were read on 2026-11-21 at aws.amazon.com/s3/pricing; spotrun.account.gcs_prices has Google's. Other regions charge
up to 50 % more, and your own server charges nothing. So the report names the list that it used.
"""

from __future__ import annotations

from decimal import Decimal

from msgspec.structs import replace

from spotrun import address
from spotrun.account.gcs_prices import gcs_prices
from spotrun.offering import HOME
from spotrun.run.events import Passage, StoragePrices

S3_STANDARD = StoragePrices(
    usd_per_gb_month=Decimal("0.023"),
    usd_per_1000_puts=Decimal("0.005"),
    usd_per_1000_gets=Decimal("0.0004"),
    egress_usd_per_gb=Decimal("0.02"),
    egress_elsewhere={
        "af-south-1": Decimal("0.147"),
        "ap-east-1": Decimal("0.09"),
        "ap-northeast-1": Decimal("0.09"),
        "ap-northeast-2": Decimal("0.08"),
        "ap-northeast-3": Decimal("0.09"),
        "ap-south-1": Decimal("0.086"),
        "ap-southeast-1": Decimal("0.09"),
        "ap-southeast-2": Decimal("0.098"),
        "me-south-1": Decimal("0.1105"),
        "sa-east-1": Decimal("0.138"),
    },
    source="S3 Standard in us-east-1 (aws.amazon.com/s3/pricing, 2026-11-21)",
)
"""
Between regions AWS bills the sending region, for S3 and EC2 alike: $0.02 a GB in North America and Europe (repost.aws,
"Cost-effective methods for accessing S3 buckets cross-region", prices of January 2026). The dearer regions were
written down from memory in November 2026, and us-east-1 to us-east-2 is in fact $0.01; the list itself is at
aws.amazon.com/ec2/pricing/on-demand, "Data Transfer".
"""


TO_HOME_USD_PER_GB = {"s3": Decimal("0.09"), "gs": Decimal("0.12")}
"""
USD per GB from a bucket to the internet, in the first tier (aws.amazon.com/s3/pricing; Google's Premium Tier,
cloud.google.com/vpc/network-pricing), written down from memory in November 2026. The free first GB of each month are
not deducted. Traffic to a bucket is free.
"""


def storage_prices(uri: str, region: str = "", *, home: bool = False) -> StoragePrices:
    """
    Return the prices for a run at `uri`. A folder is priced as if it were a bucket, so that bills can be compared.

    `region` is where the bucket is, "" if that is unknown. `home`: the run may train on the user's own machine too.
    """
    place = address.parse(uri)
    if isinstance(place, str):
        return replace(S3_STANDARD, source=f"{S3_STANDARD.source}, as if the folder were a bucket; simulated")
    prices = gcs_prices(region) if place.scheme == "gs" else replace(S3_STANDARD, region=region)
    if home and place.scheme in TO_HOME_USD_PER_GB:
        to_home = TO_HOME_USD_PER_GB[place.scheme]
        passage = Passage(read_usd_per_gb=to_home, write_usd_per_gb=Decimal(0), is_home=True)
        prices = replace(prices, between={**prices.between, HOME: passage})
    return replace(prices, source=f"{prices.source}, whatever the region of the bucket")
