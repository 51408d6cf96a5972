"""
What object stores charge, as dated list prices: of the standard class in each provider's cheapest large region.

Read on 2026-11-21 at aws.amazon.com/s3/pricing and cloud.google.com/storage/pricing. Other regions charge up to a
half more, and a server of one's own charges nothing: the report names the list that it counted with.
"""

from __future__ import annotations

from decimal import Decimal

from msgspec.structs import replace

from spotrun import address
from spotrun.events import StoragePrices

S3_STANDARD = StoragePrices(
    usd_per_gb_month=Decimal("0.023"),
    usd_per_1000_puts=Decimal("0.005"),
    usd_per_1000_gets=Decimal("0.0004"),
    egress_usd_per_gb=Decimal(0),
    source="S3 Standard in us-east-1 (aws.amazon.com/s3/pricing, 2026-11-21)",
)
GCS_STANDARD = StoragePrices(
    usd_per_gb_month=Decimal("0.020"),
    usd_per_1000_puts=Decimal("0.005"),
    usd_per_1000_gets=Decimal("0.0004"),
    egress_usd_per_gb=Decimal(0),
    source="GCS Standard in us-central1 (cloud.google.com/storage/pricing, 2026-11-21)",
)


def storage_prices(uri: str) -> StoragePrices:
    """For a run at `uri`; one in a folder is priced as if that were a bucket, so that its bill can be compared."""
    place = address.parse(uri)
    if isinstance(place, str):
        return replace(S3_STANDARD, source=f"{S3_STANDARD.source}, as if the folder were a bucket; simulated")
    prices = GCS_STANDARD if place.scheme == "gs" else S3_STANDARD
    return replace(prices, source=f"{prices.source}, whatever the region of the bucket")
