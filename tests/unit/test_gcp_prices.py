"""What Compute Engine's machines cost: sums of SKUs where they are certain, else the table that is shipped."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotrun.clouds.gcp.amounts import usd
from spotrun.clouds.gcp.calls import Call
from spotrun.clouds.gcp.machine import Machine, machine_of
from spotrun.clouds.gcp.price_list import read_part_prices, read_price_list
from spotrun.clouds.gcp.sku_prices import PartPrices, PriceScope, part_prices, usd_per_hour
from spotrun.clouds.list_prices import shipped_prices
from spotrun.errors import AccessDenied, CloudError
from spotrun.offering import CapacityType
from tests.support.google_answers import WrittenGoogle, money
from tests.support.google_skus import IOWA, decoys, on_demand_skus, sku

NOW = datetime(2026, 11, 25, 9, tzinfo=UTC)
HERE = PriceScope(CapacityType.ON_DEMAND, IOWA)
N2 = Machine("n2-standard-4", 4, 16384)
A2 = Machine("a2-highgpu-1g", 12, 87040, "nvidia-tesla-a100", 1)
A2_ULTRA = Machine("a2-ultragpu-2g", 24, 348160, "nvidia-a100-80gb", 2, local_ssds=2)
E2 = Machine("e2-standard-4", 4, 16384)


def test_a_price_is_the_sum_of_the_parts_of_a_machine() -> None:
    prices = part_prices(on_demand_skus(), {IOWA})

    assert usd_per_hour(N2, HERE, prices) == Decimal("0.194236")
    assert usd_per_hour(A2, HERE, prices) == Decimal("3.673385")
    assert usd_per_hour(A2_ULTRA, HERE, prices) == Decimal("10.137595781")


@pytest.mark.parametrize("machine", [N2, A2, A2_ULTRA, E2], ids=lambda machine: str(machine.name))
def test_the_sum_of_todays_skus_is_the_price_in_the_shipped_table(machine: Machine) -> None:
    shipped = shipped_prices("spotrun.clouds.gcp", IOWA)[machine.name]

    found = usd_per_hour(machine, HERE, part_prices(on_demand_skus(), {IOWA}))

    assert found is not None
    assert abs(found - shipped.usd_per_hour) <= Decimal("1e-6")


@pytest.mark.parametrize(
    "decoy", decoys(), ids=lambda decoy: f"{decoy['description']}, {decoy['category']['usageType']}"
)
@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
def test_a_sku_of_something_else_changes_no_price(decoy: dict[str, Any], first: bool) -> None:
    skus = [decoy, *on_demand_skus()] if first else [*on_demand_skus(), decoy]

    assert usd_per_hour(N2, HERE, part_prices(skus, {IOWA})) == Decimal("0.194236")


def test_spot_has_skus_of_its_own() -> None:
    spot = [
        sku("Spot Preemptible A2 Instance Core running in Americas", "CPU", "0.01", usage="Preemptible"),
        sku("Spot Preemptible A2 Instance Ram running in Americas", "RAM", "0.001", usage="Preemptible"),
        sku(
            "Nvidia Tesla A100 GPU attached to Spot Preemptible VMs running in Americas",
            "GPU",
            "1",
            usage="Preemptible",
        ),
    ]
    prices = part_prices([*on_demand_skus(), *spot], {IOWA})

    assert usd_per_hour(A2, PriceScope(CapacityType.SPOT, IOWA), prices) == Decimal("1.205")
    assert usd_per_hour(A2, HERE, prices) == Decimal("3.673385")


def test_two_skus_of_one_part_that_contradict_each_other_leave_no_sum() -> None:
    other = sku("N2 Instance Core running in Iowa", "CPU", "0.04")
    same = sku("N2 Instance Core running in Iowa", "CPU", "0.031611")

    assert usd_per_hour(N2, HERE, part_prices([*on_demand_skus(), other, same], {IOWA})) is None
    assert usd_per_hour(N2, HERE, part_prices([*on_demand_skus(), same], {IOWA})) == Decimal("0.194236")
    assert usd_per_hour(E2, HERE, part_prices([*on_demand_skus(), other], {IOWA})) is not None


def test_a_price_in_steps_or_of_another_currency_is_no_price() -> None:
    in_steps = sku("N2 Instance Core running in Iowa", "CPU", "0.5")
    in_steps["pricingInfo"][0]["pricingExpression"]["tieredRates"] *= 2
    in_euros = sku("N2 Instance Core running in Iowa", "CPU", "0.5")
    in_euros["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"]["currencyCode"] = "EUR"
    without = sku("N2 Instance Core running in Iowa", "CPU", "0.5")
    without["pricingInfo"] = []

    assert part_prices([in_steps, in_euros, without], {IOWA}) == {}


def test_the_newest_price_of_a_sku_counts() -> None:
    changed = sku("N2 Instance Core running in Iowa", "CPU", "0.5")
    changed["pricingInfo"] += sku("", "CPU", "0.25")["pricingInfo"]

    assert set(part_prices([changed], {IOWA}).values()) == {Decimal("0.25")}


def test_a_local_ssd_of_the_family_comes_before_that_of_any() -> None:
    c3 = Machine("c3-standard-4-lssd", 4, 16384, local_ssds=1)
    parts = [
        sku("C3 Instance Core running in Iowa", "CPU", "0.01"),
        sku("C3 Instance Ram running in Iowa", "RAM", "0.01"),
        sku("SSD backed Local Storage in Iowa", "LocalSSD", "0.73"),
    ]
    of_family = sku("C3 Instance Local SSD running in Iowa", "LocalSSD", "1.46")

    assert usd_per_hour(c3, HERE, part_prices(parts, {IOWA})) == Decimal("0.575")
    assert usd_per_hour(c3, HERE, part_prices([*parts, of_family], {IOWA})) == Decimal("0.95")


@pytest.mark.parametrize(
    "machine",
    [
        E2._replace(name="e2-micro", shares_cpu=True),
        A2._replace(accelerators=0, accelerator=""),
        A2_ULTRA._replace(local_ssds=0),
        A2._replace(accelerator="nvidia-b300"),
        N2._replace(name="n2-highgpu-1g", accelerators=1, accelerator="nvidia-l4"),
        N2._replace(local_ssds=1),
        N2._replace(name="x9-standard-4"),
    ],
    ids=["a part of a core", "no GPU told", "no SSD told", "an unknown GPU", "odd GPU", "odd SSD", "an unknown family"],
)
def test_a_machine_that_is_not_known_whole_has_no_sum(machine: Machine) -> None:
    assert usd_per_hour(machine, HERE, part_prices(on_demand_skus(), {IOWA})) is None


def test_a_part_of_a_g4_gpu_has_no_sum() -> None:
    whole = Machine("g4-standard-48", 48, 184320, "nvidia-rtx-pro-6000", 1)

    assert whole.is_told_whole
    assert not whole._replace(name="g4-standard-12", cpus=12).is_told_whole


def test_a_machine_is_read_from_its_resource() -> None:
    told = {
        "name": "a2-ultragpu-2g",
        "guestCpus": 24,
        "memoryMb": 348160,
        "accelerators": [{"guestAcceleratorType": "nvidia-a100-80gb", "guestAcceleratorCount": 2}],
        "bundledLocalSsds": {"defaultInterface": "NVME", "partitionCount": 2},
        "isSharedCpu": False,
    }

    assert machine_of(told) == A2_ULTRA
    assert machine_of({"name": "n2-standard-4", "guestCpus": 4, "memoryMb": 16384}) == N2


@given(
    st.integers(1, 416),
    st.integers(1, 12_000),
    st.decimals("0.000001", 50, places=6),
    st.decimals("0.000001", 50, places=6),
)
def test_a_sum_is_exact(cpus: int, gib: int, core: Decimal, ram: Decimal) -> None:
    skus = [
        sku("N2 Instance Core running in Iowa", "CPU", str(core)),
        sku("N2 Instance Ram running in Iowa", "RAM", str(ram)),
    ]

    found = usd_per_hour(Machine("n2-odd", cpus, gib * 1024), HERE, part_prices(skus, {IOWA}))

    assert found == cpus * core + gib * ram


@given(st.integers(-(10**6), 10**6), st.integers(-999_999_999, 999_999_999))
def test_an_amount_of_google_is_its_units_and_billionths(units: int, nanos: int) -> None:
    found = usd({"currencyCode": "USD", "units": str(units), "nanos": nanos})

    assert found is not None
    assert found * 10**9 == units * 10**9 + nanos


@pytest.mark.parametrize("told", [None, {}, {"units": "1"}, {"currencyCode": "EUR", "units": "1"}, "1.75"])
def test_amount_that_is_not_in_dollars_is_none(told: Any) -> None:
    assert usd(told) is None
    assert usd({"currencyCode": "USD", "units": "x"}) is None
    assert usd(money("1.75")) == Decimal("1.75")


# -- the list ---------------------------------------------------------------------------------------------------------


def catalog(*pages: list[dict[str, Any]]) -> WrittenGoogle:
    """Answers each page of SKUs."""

    def answer(call: Call) -> Mapping[str, Any]:
        place = int(call.query.get("pageToken", "0"))
        more = {"nextPageToken": str(place + 1)} if place + 1 < len(pages) else {}
        return {"skus": pages[place], **more}

    return WrittenGoogle(answer)


def refusing() -> PartPrices:
    raise AccessDenied("Google refused to read Compute Engine's prices: SERVICE_DISABLED")


def test_the_catalog_is_read_to_its_end() -> None:
    skus = on_demand_skus()
    google = catalog(skus[:3], [], skus[3:])

    assert read_part_prices(google, [IOWA]) == part_prices(skus, {IOWA})
    assert len(google.asked) == 3


def test_a_catalog_without_any_known_part_is_an_error_and_no_empty_list() -> None:
    with pytest.raises(CloudError, match="no prices for vCPUs, memory or GPUs in us-central1"):
        read_part_prices(catalog([sku("Network Egress", "PremiumInternetEgress", "0.1")]), [IOWA])


def test_the_live_list_comes_before_the_shipped_one() -> None:
    found = read_price_list(IOWA, [N2], lambda: part_prices(on_demand_skus(), {IOWA}), NOW)

    assert found.trouble is None
    assert found.prices["n2-standard-4"].source == "Cloud Billing Catalog, 2026-11-25"
    assert found.prices["g2-standard-4"].source == "table shipped with spotrun, 2026-08-03"
    assert found.spot["g2-standard-4"].usd_per_hour == Decimal("0.397336")


def test_without_the_catalog_the_shipped_prices_hold_and_the_list_says_why() -> None:
    found = read_price_list(IOWA, [N2, A2], refusing, NOW)

    assert found.trouble is not None
    assert "SERVICE_DISABLED" in found.trouble
    assert found.prices["a2-highgpu-1g"].usd_per_hour == Decimal("3.673385")
    assert read_price_list("mars-north1", [N2], refusing, NOW).prices == {}


def test_price_that_two_lists_disagree_on_is_reported() -> None:
    """E2 is 2 % dearer by its sum, which the tolerance just allows; N2 is a little more than that."""
    skus = on_demand_skus()
    for each in skus:
        rate = each["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]
        dearer = {"N2": Decimal("1.0201"), "E2": Decimal("1.0199")}.get(each["description"][:2], Decimal(1))
        price = usd(rate["unitPrice"])
        assert price is not None
        rate["unitPrice"] = money(str(round(price * dearer, 9)))

    found = read_price_list(IOWA, [N2, E2, A2], lambda: part_prices(skus, {IOWA}), NOW)

    assert len(found.remarks) == 1
    assert "n2-standard-4 in us-central1 costs $0.1981 an hour by the Cloud Billing Catalog" in found.remarks[0]
    assert "$0.1942 by the table shipped with spotrun, 2026-08-03" in found.remarks[0]
    assert found.prices["n2-standard-4"].usd_per_hour > Decimal("0.198")
