"""`spotrun offers`: what can be rented, what it cost lately, and what the account's quotas allow."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner

from spotrun.cli.app import app
from spotrun.clouds.aws.advisor import KEPT_FOR_S, read_advice
from spotrun.clouds.aws.driver import AwsDriver
from spotrun.clouds.aws.quota_headroom import Headroom
from spotrun.clouds.aws.quotas import quota_of
from spotrun.errors import CloudError, command_for
from spotrun.instance import PriceSegment
from spotrun.market.accelerators import peak_tflops
from spotrun.market.price_history import price_range, price_series
from spotrun.market.quotes import Quote
from spotrun.offering import CapacityType
from spotrun.report.quotes import ordered
from spotrun.report.sparkline import bars
from spotrun.runs.first_look import quotes_of
from spotrun.spec.model import RunSpec
from tests.support.aws_launches import request
from tests.support.ec2_prices import SpotRow
from tests.support.ec2_server import TYPES, ZONES, Ec2Account
from tests.support.histories import offering
from tests.support.http_server import HttpServer, Reply, Request
from tests.support.manual_clock import ManualClock

NOW = datetime(2026, 11, 22, tzinfo=UTC)
SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND


def days_ago(days: float, usd: str) -> PriceSegment:
    return PriceSegment(since=NOW - timedelta(days=days), usd_per_hour=Decimal(usd))


# -- statistics --------------------------------------------------------------------------------------------------------


def test_a_mean_weighs_a_price_by_how_long_it_held() -> None:
    found = price_range([days_ago(20, "1"), days_ago(2, "11"), days_ago(1, "1")], NOW - timedelta(days=20), NOW)
    assert found == (Decimal("1.5"), Decimal(1), Decimal(11))


def test_the_price_that_held_before_counts_from_the_beginning_only() -> None:
    assert price_range([days_ago(500, "4"), days_ago(15, "2")], NOW - timedelta(days=30), NOW) == (3, 2, 4)


def test_of_a_time_before_the_first_price_nothing_is_known() -> None:
    segments = [days_ago(10, "2")]
    assert price_range(segments, NOW - timedelta(days=90), NOW - timedelta(days=60)) is None
    assert price_range(segments, NOW - timedelta(days=90), NOW) == (2, 2, 2)
    assert price_series(segments, NOW - timedelta(days=20), NOW, 4) == [None, None, 2, 2]


@given(st.dictionaries(st.integers(-100, 100), st.integers(1, 999), min_size=1), st.integers(1, 100))
def test_a_range_is_that_of_every_minute(changes: dict[int, int], minutes: int) -> None:
    segments = [
        PriceSegment(since=NOW + timedelta(minutes=at), usd_per_hour=Decimal(usd))
        for at, usd in sorted(changes.items())
    ]
    held = [max((at for at in changes if at <= minute), default=None) for minute in range(minutes)]
    prices = [changes[at] for at in held if at is not None]
    found = price_range(segments, NOW, NOW + timedelta(minutes=minutes))
    if not prices:
        assert found is None
        return
    assert found is not None
    assert (found.min, found.max) == (min(prices), max(prices))
    assert abs(Fraction(found.mean) - Fraction(sum(prices), len(prices))) < Fraction(1, 10**20)


@pytest.mark.parametrize(
    ("course", "drawn"),
    [
        ([1, 8, 1], "▁█▁"),
        ([3, 3], "▁▁"),
        ([None, 1, 2], " ▁█"),
        ([None, None], ""),
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
    ],
)
def test_bars_go_from_the_lowest_to_the_highest(course: list[int | None], drawn: str) -> None:
    assert bars([None if price is None else Decimal(price) for price in course]) == drawn


# -- compute and quotas ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accelerators", "tflops"), [("A10G:1", 70), ("A10G:4", 280), ("H100:8", 7916), ("K80:1", None), ("", None)]
)
def test_compute_is_the_peak_of_all_accelerators(accelerators: str, tflops: float | None) -> None:
    assert peak_tflops(accelerators) == tflops


def test_a_forecast_is_given_the_history_of_what_suits_its_job(account: Ec2Account, cloud: AwsDriver) -> None:
    dear = SpotRow("g5.xlarge", "us-east-1a", "0.5", datetime.now(UTC) - timedelta(days=45))
    account.prices.rows.append(dear)
    wanted = {"resources": {"cloud": "aws", "accelerators": "A10G:1"}, "checkpoint": {"uri": "s3://bucket/runs"}}
    job = RunSpec.model_validate({"name": "demo", "workdir": "/tmp", "train": {"run": "true"}, **wanted})
    offerings = [each for each in cloud.offerings() if each.instance_type == "g5.xlarge"]
    found = {(quote.offering.zone, quote.offering.capacity_type): quote for quote in quotes_of(job, offerings).quotes}
    assert {quote.offering.instance_type for quote in found.values()} == {"g5.xlarge"}
    assert dear.usd in [str(each.usd_per_hour) for each in found["us-east-1a", SPOT].history]
    assert len(found["us-east-1a", SPOT].history) > 1


def test_dearer_type_may_be_cheaper_for_its_compute() -> None:
    slow = replace(offering(price="1"), accelerators="T4:1", instance_type="slow")
    fast = replace(offering(price="2"), accelerators="L40S:1", instance_type="fast")
    none = replace(offering(price="0.1"), instance_type="none")
    quotes = [Quote(offering=each, history=(), on_demand_usd_per_hour=None) for each in (fast, slow, none)]
    assert [each.offering.instance_type for each in ordered(quotes, "usd")] == ["none", "slow", "fast"]
    assert [each.offering.instance_type for each in ordered(quotes, "compute")] == ["fast", "slow", "none"]


def test_room_is_what_is_left_of_the_quota_in_whole_instances() -> None:
    spot, on_demand, unknown = (
        quota_of("g5.xlarge", SPOT),
        quota_of("g6.xlarge", ON_DEMAND),
        quota_of("p5.4xlarge", SPOT),
    )
    assert spot is not None
    assert on_demand is not None
    assert unknown is not None
    room = Headroom({spot: 11, on_demand: 4, unknown: None}, {spot: 4, on_demand: 8})
    assert room.for_more("g5.xlarge", 4, SPOT) == 1
    assert room.for_more("g5.xlarge", 4, ON_DEMAND) == 0
    assert room.for_more("p5.48xlarge", 192, SPOT) is None
    assert room.for_more("u-3tb1.56xlarge", 224, SPOT) is None


# -- the command -------------------------------------------------------------------------------------------------------


def offers(*args: str) -> str:
    answer = CliRunner().invoke(app, ["offers", *args], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def told(*args: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(offers(*args, "--json"))
    return answer


KEYS = """
    cloud region zone instance_type capacity_type accelerators cpus memory_gib
    usd_per_hour last_30_days last_90_days course_90_days
    on_demand_usd_per_hour below_on_demand usd_per_pflops_hour interruption_band cheapest_zone quota_room
    price_list simulated
"""


def test_offers_on_aws_need_nothing_of_ours_there(account: Ec2Account) -> None:
    now = datetime.now(UTC)
    dear = SpotRow("g5.xlarge", "us-east-1a", "0.5", now - timedelta(days=45))
    account.prices.rows += [dear, SpotRow("g5.xlarge", "us-east-1b", "0.1", now - timedelta(days=15))]
    account.quotas = {"L-3819A6DF": 9.0}
    answer = told("--accelerators", "A10G", "--instance-type", "g5.xlarge", "--region", "us-east-1")
    assert list(answer) == ["at", "offers", "notes"]
    assert {tuple(row) for row in answer["offers"]} == {tuple(KEYS.split())}
    spot = {row["zone"]: row for row in answer["offers"] if row["capacity_type"] == "spot"}
    assert set(spot) == set(ZONES)
    assert spot["us-east-1b"]["cheapest_zone"]
    assert not spot["us-east-1a"]["cheapest_zone"]
    assert [spot[zone]["usd_per_hour"] for zone in ZONES] == ["0.500000000", "0.100000000"]
    assert abs(float(spot["us-east-1b"]["last_30_days"]["mean"]) - (0.1578 + 0.1) / 2) < 1e-4
    assert abs(float(spot["us-east-1a"]["last_90_days"]["mean"]) - (0.1578 + 0.5) / 2) < 1e-4
    assert spot["us-east-1a"]["below_on_demand"] == round(1 - 0.5 / 1.006, 4)
    assert spot["us-east-1a"]["quota_room"] == 2
    assert not [action for action, _ in account.calls if action == "DescribeSecurityGroups"]


LINUX, WINDOWS = {"g5.xlarge": {"s": 61, "r": 4}}, {"g4dn.xlarge": {"s": 1, "r": 0}}
ADVICE = json.dumps(
    {
        "global_rate": "<10%",
        "instance_types": {"g5.xlarge": {"cores": 4, "ram_gb": 16.0}},
        "ranges": [{"index": 0, "label": "<5%", "max": 5}, {"index": 4, "label": ">20%", "max": 100}],
        "spot_advisor": {"us-east-1": {"Linux": LINUX, "Windows": WINDOWS}},
    }
).encode()


def test_offers_show_interruption_bands_where_the_advisor_has_them(account: Ec2Account, tmp_path: Path) -> None:
    (tmp_path / "advice.json").write_bytes(ADVICE)
    asked = ("--advisor", str(tmp_path / "advice.json"), *(f"--instance-type={kind}" for kind in TYPES))
    bands = {(row["instance_type"], row["capacity_type"]): row["interruption_band"] for row in told(*asked)["offers"]}
    assert bands.pop(("g5.xlarge", "spot")) == ">20%"
    assert set(bands.values()) == {None}
    assert "taken" in offers(*asked)
    assert "taken" not in offers(*asked[2:])


def test_remote_advisor_is_requested_once_a_day(tmp_path: Path) -> None:
    asked: list[str] = []

    def far(request: Request) -> Reply:
        asked.append(request.target)
        return Reply(body=ADVICE if len(asked) > 1 else b"<html>come back later</html>")

    with HttpServer(far) as server:
        url, clock = f"{server.url}/advice.json", ManualClock(datetime.now(UTC))
        with pytest.raises(CloudError, match="cannot be read"):
            read_advice(url, clock, tmp_path)
        for _ in range(2):
            assert read_advice(url, clock, tmp_path).band("us-east-1", "g5.xlarge") == ">20%"
        clock.advance(KEPT_FOR_S + 60)
        read_advice(url, clock, tmp_path)
    assert len(asked) == 3


def test_a_running_instance_takes_room(account: Ec2Account, cloud: AwsDriver) -> None:
    account.quotas = {"L-3819A6DF": 9.0, "L-DB2E81BA": 9.0}
    assert _rooms() == {"spot": 2, "on_demand": 2}
    cloud.launch(request(cloud))
    assert _rooms() == {"spot": 1, "on_demand": 2}


def _rooms() -> dict[str, int]:
    rows = told("--instance-type", "g5.xlarge", "--instance-type", "g4dn.xlarge")["offers"]
    return {row["capacity_type"]: row["quota_room"] for row in rows}


def test_odd_or_refused_data_is_noted_below_the_table(account: Ec2Account) -> None:
    now = datetime.now(UTC)
    account.prices.rows.append(SpotRow("g5.xlarge", "us-east-1a", "1.006", now - timedelta(hours=1)))
    account.prices.rows.append(SpotRow("g5.xlarge", None, "0.4", now))
    account.refuse("GetServiceQuota", "AccessDeniedException", 400)
    account.refuse("GetProducts", "AccessDeniedException", 400, times=2)
    text = offers(*(word for kind in TYPES for word in ("--instance-type", kind)))
    assert "spot is no cheaper than on demand: g5.xlarge in us-east-1a" in text
    assert "unreadable spot prices of us-east-1: g5.xlarge in no zone: 0.4" in text
    assert "quotas of us-east-1 are unknown" in text
    assert "on-demand prices of us-east-1 are from the shipped table" in text
    assert "EC2 reports no spot price for: g4dn.xlarge in us-east-1c" in text
    assert "table shipped with spotrun, 2026-01-19" in text
    assert "quota" not in text.splitlines()[1]


def test_offers_of_the_local_market_are_called_simulated() -> None:
    assert "SIMULATED" in offers("--cloud", "local")
    answer = told("--cloud", "local", "--accelerators", "V100:1", "--region", "us-west-2", "--sort", "compute")
    assert {row["instance_type"] for row in answer["offers"]} == {"p3.2xlarge"}
    assert {row["region"] for row in answer["offers"]} == {"us-west-2"}
    prices = [Decimal(row["usd_per_pflops_hour"]) for row in answer["offers"]]
    assert prices == sorted(prices)


@pytest.mark.parametrize(("accelerators", "words"), [("K80:1", "there is A100:1 from"), ("A10G:x", "whole number")])
def test_unavailable_accelerator_is_an_error(accelerators: str, words: str) -> None:
    answer = CliRunner().invoke(app, ["offers", "--cloud", "local", "--accelerators", accelerators])
    assert answer.exit_code == 1
    assert words in str(answer.exception)


def test_without_its_sdk_aws_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.config", None)
    monkeypatch.delitem(sys.modules, "spotrun.clouds.aws.calls", raising=False)
    answer = CliRunner().invoke(app, ["offers", "--region", "us-east-1"])
    assert command_for("aws") in str(answer.exception)
