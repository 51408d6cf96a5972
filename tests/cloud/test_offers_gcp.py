"""`spotrun offers --cloud gcp`: what Compute Engine rents out, what it cost lately, and what quotas allow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spotrun.cli.app import app
from spotrun.clouds.gcp.config import GcpConfig
from spotrun.clouds.gcp.preemption_shares import bands_known
from spotrun.clouds.gcp.quotes import NAME_TYPES, NOT_AMAZONS, read_quotes
from spotrun.errors import CloudError
from spotrun.instance import PriceSegment
from spotrun.market.quotes import Quote, Quotes
from spotrun.offering import CapacityType
from tests.support import gce_answers as answers
from tests.support.gce_answers import PACIFIC, Refusal
from tests.support.gce_charges import Step
from tests.support.gce_launches import reach
from tests.support.google_server import GoogleServer
from tests.support.google_skus import on_demand_skus, sku
from tests.support.manual_clock import ManualClock

IOWA, OREGON = "us-central1", "us-east1"
L4, A100 = "g2-standard-4", "a2-highgpu-1g"
HISTORY, SKUS = "compute.advice.capacityHistory", "cloudbilling.services.skus.list"
SPOT, ON_DEMAND = CapacityType.SPOT, CapacityType.ON_DEMAND
NAMED = GcpConfig(regions=(IOWA,), instance_types=(L4, A100))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime.now(UTC).replace(microsecond=0))


@pytest.fixture
def gce(clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleServer]:
    with GoogleServer(clock) as server:
        reach(server, tmp_path, monkeypatch)
        yield server


def of(found: Quotes, kind: str, capacity_type: CapacityType) -> list[Quote]:
    return [
        quote
        for quote in found.quotes
        if (quote.offering.instance_type, quote.offering.capacity_type) == (kind, capacity_type)
    ]


def asked(gce: GoogleServer, method: str) -> int:
    return sum(each.method == method for each in gce.asked)


def midnight(clock: ManualClock, days_ago: int) -> datetime:
    today = clock.now().astimezone(PACIFIC).replace(hour=0, minute=0, second=0, microsecond=0)
    return (today - timedelta(days=days_ago)).astimezone(UTC)


def test_spot_has_a_year_of_prices_and_each_zone_the_same(gce: GoogleServer, clock: ManualClock) -> None:
    changed = midnight(clock, 40)
    gce.project.charges.steps[L4, IOWA] = [Step(changed, Decimal("0.42"))]

    found = read_quotes(NAMED, clock, ())

    spot = of(found, L4, SPOT)
    assert {quote.offering.zone for quote in spot} == {"us-central1-a", "us-central1-b", "us-central1-c"}
    assert {quote.offering.price_usd_per_hour for quote in spot} == {Decimal("0.42")}
    [history] = {quote.history for quote in spot}
    assert history[1:] == (PriceSegment(since=changed, usd_per_hour=Decimal("0.42")),)
    assert history[0].usd_per_hour == Decimal("0.3973")
    assert history[0].since < clock.now() - timedelta(days=360)
    assert all(not quote.history for quote in of(found, L4, ON_DEMAND))


def test_each_type_is_requested_once_for_all_zones_of_a_region(gce: GoogleServer, clock: ManualClock) -> None:
    read_quotes(NAMED, clock, ())

    assert asked(gce, HISTORY) == 4, "prices and preemptions of two types"


def test_on_demand_is_the_sum_of_skus_where_the_catalog_answers(gce: GoogleServer, clock: ManualClock) -> None:
    gce.recover()
    dearer = [each for each in on_demand_skus() if not each["description"].startswith("Nvidia Tesla A100 GPU")]
    dearer.append(sku("Nvidia Tesla A100 GPU running in Americas", "GPU", "3.5"))
    gce.handlers[SKUS] = lambda _: {"skus": dearer}

    found = read_quotes(NAMED, clock, ())

    [quote] = {quote.offering.price_usd_per_hour for quote in of(found, A100, ON_DEMAND)}
    assert quote == Decimal("4.239477")
    assert {quote.offering.price_list for quote in of(found, L4, ON_DEMAND)} == {
        "table shipped with spotrun, 2026-08-03"
    }
    assert any("a2-highgpu-1g in us-central1 costs $4.2395 an hour" in note for note in found.notes)


def test_parts_are_read_once_for_all_regions(gce: GoogleServer, clock: ManualClock) -> None:
    gce.recover()
    gce.handlers[SKUS] = lambda _: {"skus": on_demand_skus()}

    read_quotes(GcpConfig(regions=(IOWA, OREGON), instance_types=(L4,)), clock, ())

    assert asked(gce, SKUS) == 1


def test_shipped_prices_are_used_without_the_catalog(gce: GoogleServer, clock: ManualClock) -> None:
    found = read_quotes(NAMED, clock, ())

    assert any(note.startswith("prices of us-central1 are from the shipped table: ") for note in found.notes)
    assert {quote.on_demand_usd_per_hour for quote in of(found, A100, SPOT)} == {Decimal("3.673385")}


def test_spot_has_its_listed_price_and_a_note_where_the_history_is_denied(
    gce: GoogleServer, clock: ManualClock
) -> None:
    gce.fail(HISTORY, answers.forbidden("compute.advice.capacityHistory", "projects/acme-training"), times=None)

    found = read_quotes(NAMED, clock, ())

    assert {quote.offering.price_usd_per_hour for quote in of(found, L4, SPOT)} == {Decimal("0.397336")}
    assert all(not quote.history and quote.interruption_band is None for quote in found.quotes)
    [note] = [note for note in found.notes if "without past prices" in note]
    assert "a2-highgpu-1g, g2-standard-4" in note
    assert "compute.advice.capacityHistory" in note
    assert asked(gce, HISTORY) == 2, "once for prices, once for preemptions"


def test_the_share_that_google_took_is_a_band_and_the_note_says_of_what(gce: GoogleServer, clock: ManualClock) -> None:
    found = read_quotes(NAMED, clock, ())

    assert {quote.interruption_band for quote in of(found, L4, SPOT)} == {"5-10%"}
    assert {quote.interruption_band for quote in of(found, L4, ON_DEMAND)} == {None}
    assert NOT_AMAZONS in found.notes


def test_room_is_what_the_tightest_quota_leaves(gce: GoogleServer, clock: ManualClock) -> None:
    gce.project.set_quota("NVIDIA_L4_GPUS", 7, IOWA)
    gce.project.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 3, IOWA)
    gce.project.set_quota("GPUS_ALL_REGIONS", 5)

    found = read_quotes(NAMED, clock, ())

    assert {quote.room for quote in of(found, L4, SPOT)} == {3}
    assert {quote.room for quote in of(found, L4, ON_DEMAND)} == {5}


def test_unknown_quotas_are_no_zero(gce: GoogleServer, clock: ManualClock) -> None:
    gce.fail("compute.regions.list", Refusal(503, "backendError", "down"), times=None)

    found = read_quotes(NAMED, clock, ())

    assert {quote.room for quote in found.quotes} == {None}
    assert any(note.startswith("quotas are unknown: ") for note in found.notes)


def test_by_its_gpu_only_such_types_are_quoted_and_by_nothing_all_with_gpus(
    gce: GoogleServer, clock: ManualClock
) -> None:
    everywhere = GcpConfig(regions=(IOWA,))
    by_gpu = read_quotes(everywhere, clock, ("l4:1",))
    asked_before = asked(gce, HISTORY)
    all_gpus = read_quotes(everywhere, clock, ())

    assert {quote.offering.instance_type for quote in by_gpu.quotes} == {"g2-standard-4", "g2-standard-8"}
    assert all(quote.offering.accelerators for quote in all_gpus.quotes)
    assert asked(gce, HISTORY) == asked_before > 0
    assert NAME_TYPES in all_gpus.notes
    assert NAME_TYPES not in by_gpu.notes


def test_a_region_that_fails_is_left_out_and_all_that_fail_are_an_error(gce: GoogleServer, clock: ManualClock) -> None:
    found = read_quotes(GcpConfig(regions=(IOWA, "mars-north1"), instance_types=(L4,)), clock, ())
    assert {quote.offering.region for quote in found.quotes} == {IOWA}

    gce.fail("compute.machineTypes.list", Refusal(503, "backendError", "down"), times=None)
    with pytest.raises(CloudError, match="machine types"):
        read_quotes(NAMED, clock, ())


def test_bands_of_a_job_are_those_of_the_types_that_it_names(gce: GoogleServer, clock: ManualClock) -> None:
    assert bands_known(NAMED, clock) == {f"{IOWA}/{kind}": "5-10%" for kind in (L4, A100)}
    assert bands_known(GcpConfig(regions=(IOWA,)), clock) == {}
    gce.fail("compute.machineTypes.list", Refusal(503, "backendError", "down"), times=None)
    assert bands_known(NAMED, clock) == {}


def test_the_command_prints_what_was_found(gce: GoogleServer) -> None:
    arguments = ["offers", "--cloud", "gcp", "--accelerators", "L4:1", "--region", IOWA]
    table = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert table.exit_code == 0, table.output
    assert "g2-standard-8" in table.output
    assert "quota" in table.output

    printed = CliRunner().invoke(app, [*arguments, "--json"])
    rows = json.loads(printed.output)["offers"]
    assert {row["interruption_band"] for row in rows if row["capacity_type"] == "spot"} == {"5-10%"}
