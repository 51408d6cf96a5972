"""EC2's bill, by rules that are data, against a recomputation that shares no line with them."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotrun.account.summary import summarise
from spotrun.clock import system_clock
from spotrun.clouds.aws.config import AwsConfig
from spotrun.clouds.registry import cloud_named, cloud_of
from spotrun.instance import VOLUME_GIB, EndedBy, PriceSegment
from spotrun.run.billing import LOCAL_RULE, Meter, aws_rule
from spotrun.run.events import BillingRule
from spotrun.runner.creation import run_created
from spotrun.spec.model import AwsSpec, RunSpec
from tests.support.decisions import spec
from tests.support.histories import AWS_RULE, FREE_STORAGE, ON_DEMAND, START, History

ATTACHED_USD_PER_HOUR = Fraction(100 * 8, 100 * 720) + Fraction(5, 1000)
"""100 GiB at $0.08 a month of 30 days, and an address at half a cent an hour."""
ATTACHED_FOR_350_S = Decimal("0.001566358")
SECONDS = st.integers(0, 3 * 3600)
thoroughly = settings(max_examples=100, deadline=None)


@st.composite
def prices(draw: st.DrawFn) -> tuple[PriceSegment, ...]:
    """Of one pool, oldest first; the first may be from before the instance began."""
    changes = draw(st.lists(st.tuples(st.integers(-3600, 3 * 3600), st.integers(1, 9_999_999)), min_size=1, max_size=6))
    moments = dict(changes)
    return tuple(
        PriceSegment(since=START + timedelta(seconds=since), usd_per_hour=Decimal(price) / 10_000)
        for since, price in sorted(moments.items())
    )


def price_at(segments: tuple[PriceSegment, ...], moment: datetime) -> Fraction:
    known = [each for each in segments if each.since <= moment] or [segments[0]]
    return Fraction(max(known, key=lambda each: each.since).usd_per_hour)


def recomputed(
    segments: tuple[PriceSegment, ...], lived_s: int, ended_by: EndedBy | None, billed_s: int | None = None
) -> Fraction:
    """An invoice line per second of the first `billed_s`, as EC2 words its rule."""
    seconds = max(60, lived_s) if billed_s is None else billed_s
    attached = ATTACHED_USD_PER_HOUR * seconds / 3600
    if ended_by is EndedBy.CLOUD and lived_s < 3600:
        return attached
    moments = [START + timedelta(seconds=second) for second in range(seconds)]
    return attached + sum((price_at(segments, moment) for moment in moments), Fraction()) / 3600


def close(billed: Decimal, exact: Fraction) -> bool:
    """Within the nano-dollar that rounding two parts of a bill may make."""
    return abs(Fraction(billed) - exact) <= Fraction(1, 10**9)


@pytest.mark.exhaustive
@thoroughly
@given(prices(), SECONDS, st.sampled_from(EndedBy))
def test_the_bill_of_an_ended_instance(segments: tuple[PriceSegment, ...], lived_s: int, ended_by: EndedBy) -> None:
    ended_at = START + timedelta(seconds=lived_s)
    meter = Meter(AWS_RULE, segments, START, ended_at, ended_by)
    late = ended_at + timedelta(days=1)
    if lived_s:
        assert close(meter.cost_until(late), recomputed(segments, lived_s, ended_by))


@pytest.mark.exhaustive
@thoroughly
@given(prices(), SECONDS)
def test_the_bill_of_a_running_instance(segments: tuple[PriceSegment, ...], lived_s: int) -> None:
    meter = Meter(AWS_RULE, segments, START, None, None)
    now = START + timedelta(seconds=lived_s)
    assert close(meter.cost_until(now), recomputed(segments, lived_s, None, billed_s=lived_s))


@thoroughly
@given(prices(), SECONDS, st.none() | st.sampled_from(EndedBy), st.lists(SECONDS, min_size=2))
def test_a_bill_never_falls(
    segments: tuple[PriceSegment, ...], lived_s: int, ended_by: EndedBy | None, looks: list[int]
) -> None:
    ended_at = None if ended_by is None else START + timedelta(seconds=lived_s)
    meter = Meter(AWS_RULE, segments, START, ended_at, ended_by)
    seen = [meter.cost_until(START + timedelta(seconds=look)) for look in sorted(looks)]
    assert seen == sorted(seen)


def test_instance_that_never_ran_costs_nothing() -> None:
    assert Meter(AWS_RULE, (), None, START, EndedBy.CLOUD).cost_until(START + timedelta(days=1)) == 0


@pytest.mark.parametrize(
    ("lived_s", "ended_by", "compute_usd"),
    [
        (3599, EndedBy.CLOUD, "0"),
        (3600, EndedBy.CLOUD, "3.6"),
        (3599, EndedBy.USER, "3.599"),
        (3599, EndedBy.ITSELF, "3.599"),
        (1, EndedBy.CLOUD, "0"),
        (1, EndedBy.USER, "0.06"),
    ],
)
def test_the_first_hour_is_free_only_where_ec2_ends_it(lived_s: int, ended_by: EndedBy, compute_usd: str) -> None:
    segments = (PriceSegment(since=START, usd_per_hour=Decimal("3.6")),)
    ended_at = START + timedelta(seconds=lived_s)
    bill = Meter(AWS_RULE, segments, START, ended_at, ended_by).cost_until(ended_at)
    attached = ATTACHED_USD_PER_HOUR * max(60, lived_s) / 3600
    assert close(bill, Fraction(compute_usd) + attached)


def test_a_runs_account_holds_disk_and_address_and_so_does_what_it_is_compared_with() -> None:
    history = History(FREE_STORAGE, billing=AWS_RULE)
    history.running(price="0.36")
    history.after(260)
    total = summarise(history.state, history.now).total
    assert total.spot_usd == Decimal("0.0001") * 350 + ATTACHED_FOR_350_S
    assert close(total.counterfactual_usd, (Fraction("3.60") + ATTACHED_USD_PER_HOUR) * 360 / 3600)


def test_an_on_demand_instance_that_fails_in_its_first_hour_is_billed() -> None:
    history = History(FREE_STORAGE, billing=AWS_RULE)
    launch = history.running(ON_DEMAND, price="0.36")
    history.after(260).gone(launch, EndedBy.CLOUD)
    total = summarise(history.state, history.now).total
    assert total.on_demand_usd == Decimal("0.0001") * 350 + ATTACHED_FOR_350_S


def test_a_reservation_holds_disk_and_address() -> None:
    history = History(FREE_STORAGE, billing=AWS_RULE)
    history.launch(on_demand="3.60")
    assert close(history.state.reserved_usd(), (Fraction("3.60") + ATTACHED_USD_PER_HOUR) * 24)


@pytest.mark.parametrize("rule", [LOCAL_RULE, AWS_RULE])
def test_a_rule_says_where_it_is_from(rule: BillingRule) -> None:
    assert rule.source


def test_billed_disk_has_the_requested_size() -> None:
    assert aws_rule(250, ["us-east-1"]).volume_gib == 250
    assert cloud_named("local").billing(spec()) is LOCAL_RULE
    assert AwsSpec().volume_gb == AwsConfig(regions=()).volume_gib == VOLUME_GIB


@pytest.mark.parametrize(
    ("regions", "usd", "where"),
    [
        (["us-east-1"], "0.08", "us-east-1"),
        (["eu-central-1"], "0.0952", "eu-central-1"),
        (["us-east-1", "eu-west-1", "us-west-2"], "0.088", "eu-west-1"),
        (
            ["us-east-1", "mx-central-1"],
            "0.152",
            "sa-east-1, the most expensive known region, as there is no price for mx-central-1",
        ),
    ],
)
def test_a_disk_costs_what_the_dearest_of_the_runs_regions_asks(regions: list[str], usd: str, where: str) -> None:
    rule = aws_rule(100, regions)
    assert rule.volume_usd_per_gib_month == Decimal(usd)
    assert rule.source.endswith(f"at the prices of {where}")


def test_a_run_is_billed_by_where_it_looks() -> None:
    resources, store = {"cloud": "aws", "zone": "eu-central-1b"}, {"uri": "s3://bucket/runs"}
    spec = RunSpec.model_validate(
        {"name": "a", "workdir": "/tmp", "train": {"run": "true"}, "resources": resources, "checkpoint": store}
    )
    billing = run_created(spec, cloud_of(spec), "0123456789", "0" * 64, system_clock()).billing
    assert billing.volume_usd_per_gib_month == Decimal("0.0952")
