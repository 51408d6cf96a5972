"""Compute Engine's bill, against a recomputation that shares no line with the ledger's."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from spotrun.account.prices import charges
from spotrun.account.summary import summarise
from spotrun.instance import EndedBy, PriceSegment
from spotrun.offering import RENTED, CapacityType
from spotrun.run.billing import Meter, aws_rule, gcp_rule, machine_alone
from spotrun.run.events import BillingRule
from spotrun.run.state import RunState, life_usd
from tests.support.histories import ON_DEMAND, SPOT, START, History, gone, offering

IOWA = gcp_rule(100, ["us-central1"])
DISK_USD_PER_HOUR = Fraction(10, 730)
"""100 GiB of pd-balanced at $0.10 a month of 730 hours."""
ADDRESS_USD_PER_HOUR = {ON_DEMAND: Fraction(5, 1000), SPOT: Fraction(25, 10_000)}
SECONDS = st.integers(1, 7200)


def spent(state: RunState) -> Decimal:
    [launch] = state.launches.values()
    assert launch.gone is not None
    return launch.meter(state.created.billing).cost_until(launch.gone.ended_at)


def lived(capacity_type: CapacityType, ran_s: int, disk_s: int, by: EndedBy, price: str = "3.6") -> RunState:
    """A run with one instance that ran for a while, and whose disk was there from its start on for `disk_s`."""
    history = History(billing=IOWA)
    launch = history.launch(capacity_type, price)
    history.record(launch)
    began, usd = history.now, Decimal(price)
    prices = (PriceSegment(since=began, usd_per_hour=usd),)
    if disk_s > ran_s:
        prices += (PriceSegment(since=began + timedelta(seconds=ran_s), usd_per_hour=Decimal(0)),)
    history.after(disk_s).write(gone(launch, history.now, by, billed_from=began, prices=prices))
    return history.state


def expected(capacity_type: CapacityType, ran_s: int, disk_s: int, by: EndedBy, price: str = "3.6") -> Fraction:
    """As Google words it: each part by its own time."""
    machine_s = max(60, ran_s)
    free = capacity_type is SPOT and by is EndedBy.CLOUD and ran_s < 60
    machine = Fraction(0) if free else Fraction(price) * machine_s / 3600
    return machine + (ADDRESS_USD_PER_HOUR[capacity_type] * machine_s + DISK_USD_PER_HOUR * max(disk_s, 60)) / 3600


def close(billed: Decimal, exact: Fraction) -> bool:
    """Within what rounding the disk's price to a nano-dollar, and three parts of the bill, can make."""
    return abs(Fraction(billed) - exact) <= Fraction(5, 10**8)


def test_a_machine_that_switched_itself_off_leaves_a_disk_that_is_billed_until_it_is_deleted() -> None:
    """Google calls it TERMINATED, lists it, and bills its disk: it ran for 10 min, and was deleted a day later."""
    state = lived(ON_DEMAND, ran_s=600, disk_s=86_400, by=EndedBy.ITSELF)

    assert close(spent(state), expected(ON_DEMAND, 600, 86_400, EndedBy.ITSELF))
    [launch] = state.launches.values()
    meter = launch.meter(state.created.billing)
    assert meter.time_until(START + timedelta(days=9)) == timedelta(seconds=600)
    machine = charges(launch, state.created.billing, START + timedelta(days=9))
    assert [(charge.until - charge.since).total_seconds() for charge in machine] == [600]


@given(st.sampled_from(RENTED), SECONDS, st.integers(0, 90_000), st.sampled_from(EndedBy))
def test_every_life_costs_what_its_parts_cost(
    capacity_type: CapacityType, ran_s: int, disk_alone_s: int, by: EndedBy
) -> None:
    state = lived(capacity_type, ran_s, ran_s + disk_alone_s, by)

    assert close(spent(state), expected(capacity_type, ran_s, ran_s + disk_alone_s, by))


@given(st.sampled_from(RENTED), SECONDS, st.integers(0, 90_000), st.lists(st.integers(0, 200_000), min_size=2))
def test_the_bill_of_a_machine_with_a_disk_that_outlives_it_never_falls(
    capacity_type: CapacityType, ran_s: int, disk_alone_s: int, looks: list[int]
) -> None:
    [launch] = lived(capacity_type, ran_s, ran_s + disk_alone_s, EndedBy.ITSELF).launches.values()
    meter = launch.meter(IOWA)
    seen = [meter.cost_until(START + timedelta(seconds=look)) for look in sorted(looks)]

    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("ran_s", "by", "machine_usd"),
    [
        (59, EndedBy.CLOUD, "0"),
        (60, EndedBy.CLOUD, "0.06"),
        (59, EndedBy.USER, "0.06"),
        (10, EndedBy.ITSELF, "0.06"),
        (61, EndedBy.TIME_TO_LIVE, "0.061"),
    ],
)
def test_the_first_minute_is_free_only_where_google_preempts(ran_s: int, by: EndedBy, machine_usd: str) -> None:
    """Its disk may go a while later: what counts is when the machine was taken."""
    for disk_s in (ran_s, ran_s + 40):
        [launch] = lived(SPOT, ran_s, disk_s, by).launches.values()
        assert launch.meter(machine_alone(IOWA)).cost_until(START + timedelta(days=1)) == Decimal(machine_usd)


def test_a_run_that_waits_for_a_deletion_says_so_in_its_summary() -> None:
    state = lived(ON_DEMAND, ran_s=600, disk_s=86_400, by=EndedBy.ITSELF)
    found = summarise(state, START + timedelta(days=2))

    assert close(found.total.on_demand_usd, expected(ON_DEMAND, 600, 86_400, EndedBy.ITSELF))


def test_an_address_costs_half_on_spot_and_a_reservation_knows_it() -> None:
    spot, on_demand = (IOWA.attached_to(offering(kind)) for kind in (SPOT, ON_DEMAND))

    assert on_demand.attached_usd_per_hour - spot.attached_usd_per_hour == Decimal("0.0025")
    assert aws_rule(100, ["us-east-1"]).attached_to(offering(SPOT)) == aws_rule(100, ["us-east-1"])


def test_the_dearest_region_holds_and_an_unknown_one_costs_as_much_as_any() -> None:
    known = gcp_rule(100, ["us-central1", "europe-west3"])
    unknown = gcp_rule(100, ["us-central1", "mars-north1"])

    assert "europe-west3" in known.source
    assert known.volume_usd_per_gib_month > IOWA.volume_usd_per_gib_month
    assert unknown.volume_usd_per_gib_month > known.volume_usd_per_gib_month
    assert "no price for mars-north1" in unknown.source


def test_a_rule_of_an_older_ledger_has_one_price_for_addresses() -> None:
    written = msgspec.json.decode(msgspec.json.encode(IOWA))
    del written["spot_address_usd_per_hour"]
    read = msgspec.convert(written, BillingRule)

    assert read == replace(IOWA, spot_address_usd_per_hour=None)
    assert read.attached_to(offering(SPOT)) == read


def test_hyperdisk_costs_its_own_price_and_only_for_machines_that_have_one() -> None:
    rule = gcp_rule(100, ["us-central1"], ["g4", "c4"])
    g4, g2 = (replace(offering(SPOT), instance_type=name) for name in ("g4-standard-48", "g2-standard-4"))
    for found, month_usd in ((g4, 8), (g2, 10)):
        per_hour = rule.attached_to(found).volume_usd_per_hour
        assert abs(Fraction(per_hour) - Fraction(month_usd, 730)) < Fraction(1, 10**8)
    history = History(billing=rule)
    launch = history.launch(SPOT, "1.8", instance_type="g4-standard-48")
    known = history.state.launches[launch]
    g4_at_an_hour = Meter(rule.attached_to(g4), (), START, None, None).cost_until(START + timedelta(hours=1))
    history.record(launch)
    metered = history.state.launches[launch].meter(machine_alone(rule)).cost_until(history.now + timedelta(hours=1))
    whole = history.state.launches[launch].meter(rule).cost_until(history.now + timedelta(hours=1))
    assert whole - metered == g4_at_an_hour
    intent = known.intent
    g4_usd, g2_usd = (life_usd(replace(intent, offering=each), rule) for each in (g4, g2))
    assert g4_usd < g2_usd
    elsewhere = gcp_rule(100, ["us-central1", "europe-west3"], ["g4"])
    assert elsewhere.attached_to(g4).volume_usd_per_hour == elsewhere.volume_usd_per_hour, "no price is known there"
