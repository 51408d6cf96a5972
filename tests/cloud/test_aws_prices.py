"""EC2's prices: what is live, what is shipped, what cannot be read, and which of them was used."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from msgspec.structs import replace

from spotrun.account.summary import assumptions
from spotrun.clouds.aws.calls import Region
from spotrun.clouds.aws.catalog import SHIPPED_FOR_S
from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.aws.price_list import read_price_list
from spotrun.clouds.aws.prices import SpotPool, spot_prices
from spotrun.offering import CapacityType, Offering
from spotrun.runs.pinning import with_baseline_price
from tests.support.aws_launches import CONFIG, count
from tests.support.decisions import spec
from tests.support.ec2_prices import SpotRow
from tests.support.ec2_server import IMAGE_PARAMETER, REGION, TYPES, Ec2Account
from tests.support.histories import History
from tests.support.manual_clock import ManualClock

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
POOL = SpotPool("g5.xlarge", "us-east-1a")


@pytest.fixture
def region(account: Ec2Account) -> Region:
    return Region(REGION, ManualClock(NOW))


def on_demand(cloud: AwsDriver) -> dict[str, Offering]:
    return {each.instance_type: each for each in cloud.offerings() if each.capacity_type is CapacityType.ON_DEMAND}


# -- on demand ---------------------------------------------------------------------------------------------------------


def test_on_demand_prices_are_live_and_say_so(account: Ec2Account, cloud: AwsDriver) -> None:
    account.prices.on_demand["g5.xlarge"] = "1.111"
    found = on_demand(cloud)["g5.xlarge"]
    assert found.price_usd_per_hour == Decimal("1.111")
    assert found.price_list.startswith("AWS Price List API, 2")


@pytest.mark.parametrize(("code", "status"), [("AccessDeniedException", 400), ("InternalErrorException", 500)])
def test_without_the_price_list_the_shipped_table_is_used_and_named(
    account: Ec2Account, cloud: AwsDriver, code: str, status: int
) -> None:
    account.refuse("GetProducts", code, status, times=8)
    offerings = cloud.offerings()
    assert {each.instance_type for each in offerings} == set(TYPES)
    assert {each.price_list for each in offerings} == {"table shipped with spotrun, 2026-01-19"}
    assert on_demand(cloud)["g5.xlarge"].price_usd_per_hour == Decimal("1.006")


def test_a_type_that_the_price_list_leaves_out_is_in_the_shipped_table(account: Ec2Account, cloud: AwsDriver) -> None:
    del account.prices.on_demand["g5.xlarge"]
    assert on_demand(cloud)["g5.xlarge"].price_list.startswith("table shipped")
    assert on_demand(cloud)["g4dn.xlarge"].price_list.startswith("AWS Price List")


@pytest.mark.parametrize("usd", ["0.0000000000", "", "n/a", "NaN", "-1"])
def test_a_list_price_that_is_none_is_passed_over(account: Ec2Account, region: Region, usd: str) -> None:
    account.prices.on_demand["g5.xlarge"] = usd
    assert read_price_list(region, ["g5.xlarge"], NOW).prices["g5.xlarge"].source.startswith("table shipped")


def test_live_price_list_is_requested_again_within_the_hour(account: Ec2Account) -> None:
    clock = ManualClock(datetime.now(UTC))
    cloud = AwsDriver(CONFIG, clock)
    account.refuse("GetProducts", "AccessDeniedException", 400)
    cloud.offerings()
    clock.advance(SHIPPED_FOR_S - 1)
    assert on_demand(cloud)["g5.xlarge"].price_list.startswith("table shipped")
    clock.advance(2)
    assert on_demand(cloud)["g5.xlarge"].price_list.startswith("AWS Price List")


def test_the_report_names_the_list_that_it_compares_with() -> None:
    history = History()
    history.running()
    assert "prices on demand" not in assumptions(history.state, None)
    (launch,) = history.state.launches.values()
    listed = replace(launch.intent, offering=replace(launch.intent.offering, price_list="table of 2026-01-19"))
    state = replace(history.state, launches={launch.number: replace(launch, intent=listed)})
    assert "prices on demand: table of 2026-01-19" in assumptions(state, None)


# -- spot --------------------------------------------------------------------------------------------------------------


def test_a_history_of_90_days_is_read_per_zone_to_its_last_page(account: Ec2Account, region: Region) -> None:
    changes = [(NOW - timedelta(days=days), f"0.{40 + days:03}") for days in range(120)]
    account.prices.rows = [SpotRow("g5.xlarge", f"us-east-1{zone}", usd, at) for zone in "ab" for at, usd in changes]
    account.prices.page_size = 7
    found = spot_prices(region, ["g5.xlarge"], NOW - timedelta(days=90))
    assert set(found.segments) == {POOL, SpotPool("g5.xlarge", "us-east-1b")}
    told = [(segment.since, segment.usd_per_hour) for segment in found.segments[POOL]]
    assert told == [(at, Decimal(usd)) for at, usd in reversed(changes[:91])]
    assert count(account, "DescribeSpotPriceHistory") == 26


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (SpotRow("g5.xlarge", None, "0.4", NOW), "g5.xlarge in no zone: 0.4"),
        (SpotRow("g5.xlarge", "", "0.4", NOW), "g5.xlarge in no zone: 0.4"),
        (SpotRow(None, "us-east-1a", "0.4", NOW), "no type in us-east-1a: 0.4"),
        (SpotRow("g5.xlarge", "us-east-1a", None, NOW), "g5.xlarge in us-east-1a: no price"),
        (SpotRow("g5.xlarge", "us-east-1a", "", NOW), "g5.xlarge in us-east-1a: no price"),
        (SpotRow("g5.xlarge", "us-east-1a", "cheap", NOW), "g5.xlarge in us-east-1a: cheap"),
        (SpotRow("g5.xlarge", "us-east-1a", "NaN", NOW), "g5.xlarge in us-east-1a: NaN"),
        (SpotRow("g5.xlarge", "us-east-1a", "-0.4", NOW), "g5.xlarge in us-east-1a: -0.4"),
        (SpotRow("g5.xlarge", "us-east-1a", "0.000", NOW), "g5.xlarge in us-east-1a: 0.000"),
        (SpotRow("g5.xlarge", "us-east-1a", "0.4", None), "g5.xlarge in us-east-1a: 0.4"),
    ],
)
def test_unreadable_price_row_is_reported_and_the_others_count(
    account: Ec2Account, region: Region, row: SpotRow, words: str
) -> None:
    account.prices.rows.append(row)
    found = spot_prices(region, [], NOW - timedelta(hours=1))
    assert found.unreadable == (words,)
    assert [segment.usd_per_hour for segment in found.segments[POOL]] == [Decimal("0.1578")]


def test_spot_that_costs_as_much_as_on_demand_or_more_is_still_offered(account: Ec2Account, cloud: AwsDriver) -> None:
    account.prices.rows.append(SpotRow("g5.xlarge", "us-east-1a", "1.006", datetime.now(UTC) - timedelta(hours=2)))
    account.prices.rows.append(SpotRow("g5.xlarge", "us-east-1b", "9", datetime.now(UTC) - timedelta(hours=2)))
    spot = [each for each in cloud.offerings() if each.capacity_type is CapacityType.SPOT]
    prices = {each.zone: each.price_usd_per_hour for each in spot if each.instance_type == "g5.xlarge"}
    assert prices == {"us-east-1a": Decimal("1.006"), "us-east-1b": Decimal(9)}


def test_without_any_spot_price_there_is_on_demand(account: Ec2Account, cloud: AwsDriver) -> None:
    account.prices.rows = []
    assert {each.capacity_type for each in cloud.offerings()} == {CapacityType.ON_DEMAND}


def test_baseline_type_of_savings_has_its_listed_price(account: Ec2Account) -> None:
    job = spec(
        resources={"cloud": "aws", "region": "us-east-1", "accelerators": "T4:1"},
        aws={"image_parameter": IMAGE_PARAMETER},
        report={"baseline": "g5.xlarge"},
        checkpoint={"uri": "s3://bucket/runs"},
    )
    assert with_baseline_price(job).report.baseline_usd_per_hour == Decimal("1.006")
