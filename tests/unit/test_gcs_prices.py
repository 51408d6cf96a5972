"""What bytes between an instance and a bucket of Cloud Storage cost, by where both are."""

from __future__ import annotations

from decimal import Decimal
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotrun.account.gcs_prices import DUAL_REGIONS, Continent, gcs_prices, usd_per_gb
from spotrun.account.storage_prices import storage_prices
from spotrun.address import parse
from spotrun.run.events import StoragePrices
from spotrun.run.volume_prices import list_prices
from spotrun.store.gcs import _location

GOOGLES = sorted(list_prices("pd-balanced").prices)
REGIONS = st.sampled_from(GOOGLES)
LOCATIONS = st.sampled_from(["us", "eu", "asia", *DUAL_REGIONS, "us-central1+us-west1", *GOOGLES])


def passage(location: str, region: str) -> tuple[bool, str, str]:
    prices = storage_prices(parse("gs://bucket/runs"), location)
    return prices.crosses(region), f"{prices.read_usd_per_gb(region):f}", f"{prices.write_usd_per_gb(region):f}"


@pytest.mark.parametrize(
    ("location", "region", "crosses", "read", "write"),
    [
        ("us-central1", "us-central1", False, "0", "0"),
        ("us-central1", "us-west1", True, "0.02", "0.02"),
        ("us-central1", "northamerica-northeast1", True, "0.02", "0.02"),
        ("us-central1", "europe-west4", True, "0.05", "0.05"),
        ("us-central1", "asia-northeast1", True, "0.08", "0.08"),
        ("asia-east1", "asia-northeast1", True, "0.08", "0.08"),
        ("europe-west4", "southamerica-east1", True, "0.14", "0.14"),
        ("us-central1", "australia-southeast1", True, "0.10", "0.10"),
        ("us-central1", "mars-north1", True, "0.14", "0.14"),
        ("nam4", "us-east1", False, "0", "0.02"),
        ("nam4", "us-west1", True, "0.02", "0.04"),
        ("us-central1+us-west1", "us-west1", False, "0", "0.02"),
        ("us", "us-west1", False, "0.02", "0.02"),
        ("us", "europe-west4", True, "0.05", "0.07"),
        ("eu", "europe-west4", False, "0.02", "0.02"),
        ("eu", "europe-west2", True, "0.02", "0.04"),
    ],
)
def test_reads_and_writes_cost_by_location_and_region(
    location: str, region: str, crosses: bool, read: str, write: str
) -> None:
    assert passage(location, region) == (crosses, read, write)


@given(LOCATIONS, REGIONS)
def test_traffic_that_crosses_regions_is_charged(location: str, region: str) -> None:
    prices = gcs_prices(location)

    assert prices.charges(region) or not prices.crosses(region)
    assert prices.read_usd_per_gb(region) <= prices.write_usd_per_gb(region) or "+" not in location
    assert msgspec.json.decode(msgspec.json.encode(prices), type=StoragePrices) == prices


@given(st.sampled_from(Continent), st.sampled_from(Continent))
def test_it_costs_the_same_both_ways(one: Continent, other: Continent) -> None:
    assert usd_per_gb(one, other) == usd_per_gb(other, one) > 0


def test_bucket_of_unknown_location_has_no_egress() -> None:
    prices = storage_prices(parse("gs://bucket/runs"))

    assert not prices.crosses("us-central1")
    assert not prices.charges("us-central1")


def test_more_regions_cost_more_to_store_in() -> None:
    one, many, two = (gcs_prices(location).usd_per_gb_month for location in ("us-central1", "us", "nam4"))

    assert (one, many, two) == (Decimal("0.020"), Decimal("0.026"), Decimal("0.044"))


@pytest.mark.parametrize(
    ("location", "data_locations", "found"),
    [
        ("US-CENTRAL1", None, "us-central1"),
        ("NAM4", None, "nam4"),
        ("US", ["US-WEST1", "US-CENTRAL1"], "us-central1+us-west1"),
    ],
)
def test_a_bucket_says_where_it_is(location: str, data_locations: list[str] | None, found: str) -> None:
    assert _location(SimpleNamespace(location=location, data_locations=data_locations)) == found
