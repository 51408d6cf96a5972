"""What Google tells of spot in the past: a year of prices, a month of shares of instances that it took back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotrun.clouds.error_kinds import CredentialsExpired, Unsupported
from spotrun.clouds.gcp.calls import Call
from spotrun.clouds.gcp.preemption_shares import DAYS_MIN, band_of, bands_in, preemption_shares
from spotrun.clouds.gcp.spot_prices import SpotPrices, spot_prices
from spotrun.errors import AccessDenied, CloudUnavailable
from spotrun.instance import PriceSegment
from spotrun.policy.interruption_rates import relative_hazard
from tests.support.google_answers import Answer, WrittenGoogle, money

NOW = datetime(2026, 11, 25, 9, tzinfo=UTC)
DAY = timedelta(days=1)
MIDNIGHT = datetime(2026, 11, 25, 8, tzinfo=UTC)
"""In the Pacific zone, where Google begins its days."""
SINCE = MIDNIGHT - 90 * DAY


def record(days_ago: float, usd: str | None, *, ends: float | None = None) -> dict[str, Any]:
    interval = {"startTime": _written(days_ago)} | ({} if ends is None else {"endTime": _written(ends)})
    return {"interval": interval, "listPrice": {} if usd is None else money(usd)}


def _written(days_ago: float) -> str:
    """As Google does, by the clock of the Pacific coast."""
    return (MIDNIGHT - days_ago * DAY).isoformat().replace("+00:00", "Z")


def prices_of(*records: Mapping[str, Any]) -> SpotPrices:
    return asked(lambda _: {"priceHistory": [*records]}, ("g2-standard-4",))[0]


def asked(answer: Any, types: Sequence[str]) -> tuple[SpotPrices, WrittenGoogle]:
    google = WrittenGoogle(answer)
    return spot_prices(google, "example.com:trains", "us-central1", types, SINCE, NOW), google


def segment(days_ago: float, usd: str) -> PriceSegment:
    return PriceSegment(since=MIDNIGHT - days_ago * DAY, usd_per_hour=Decimal(usd))


def test_the_question_is_for_spot_and_one_type() -> None:
    _, google = asked(lambda _: {"priceHistory": [record(3, "0.39")]}, ("g2-standard-4",))

    assert google.asked[0].path == "projects/example.com:trains/regions/us-central1/advice/capacityHistory"
    assert google.asked[0].body == {
        "instanceProperties": {"machineType": "g2-standard-4", "scheduling": {"provisioningModel": "SPOT"}},
        "types": ["PRICE"],
    }


def test_prices_begin_with_the_one_in_effect_and_go_on_with_each_change() -> None:
    found = prices_of(
        record(20, "0.41", ends=10), record(400, "0.30", ends=200), record(200, "0.35", ends=20), record(10, "0.41")
    )

    assert found.segments["g2-standard-4"] == [segment(200, "0.35"), segment(20, "0.41")]
    assert not found.troubles


def test_a_record_without_a_beginning_has_held_since_ever() -> None:
    found = prices_of(record(5, "0.41"), {"interval": {"endTime": _written(5)}, "listPrice": money("0.35")})

    assert found.segments["g2-standard-4"] == [
        PriceSegment(since=SINCE, usd_per_hour=Decimal("0.35")),
        segment(5, "0.41"),
    ]


def test_the_price_of_tomorrow_is_not_that_of_today() -> None:
    assert prices_of(record(5, "0.41"), record(-1, "0.5")).segments["g2-standard-4"] == [segment(5, "0.41")]


def test_records_that_cannot_be_read_are_no_prices() -> None:
    found = prices_of(record(8, None), record(5, "0"), record(4, "0.37"))

    assert found.segments["g2-standard-4"] == [segment(4, "0.37")]


def test_a_type_whose_history_is_empty_has_no_price_and_a_trouble() -> None:
    found = prices_of(record(8, None))

    assert found.segments == {}
    assert found.troubles == {"g2-standard-4": "the history of g2-standard-4 in us-central1 has no readable price"}


TYPES = ("a2-highgpu-1g", "g2-standard-4", "g2-standard-8")


def _refusing(kind: str, error: Answer) -> Any:
    def answer(call: Call) -> Answer:
        assert call.body is not None
        named = call.body["instanceProperties"]["machineType"]
        return error if named == kind else {"priceHistory": [record(3, "0.39")]}

    return answer


def test_a_type_that_google_does_not_know_costs_the_others_nothing() -> None:
    found, google = asked(_refusing("g2-standard-4", Unsupported("no such type")), TYPES)

    assert len(google.asked) == 3
    assert found.troubles == {"g2-standard-4": "no such type"}
    assert found.segments["g2-standard-8"] == [segment(3, "0.39")]
    assert "g2-standard-4" not in found.segments


@pytest.mark.parametrize("error", [AccessDenied("no right"), CloudUnavailable("down"), CredentialsExpired("old")])
def test_a_refusal_that_holds_for_all_types_is_met_once(error: Answer) -> None:
    found, google = asked(_refusing("g2-standard-4", error), TYPES)

    assert len(google.asked) == 2
    assert [*found.troubles] == ["g2-standard-4", "g2-standard-8"]
    assert found.segments["a2-highgpu-1g"] == [segment(3, "0.39")]


@given(
    st.lists(
        st.tuples(st.integers(-2, 400), st.sampled_from(["0.3", "0.35", "0.4"])),
        min_size=1,
        unique_by=lambda row: row[0],
    )
)
def test_segments_give_the_price_of_the_history_at_each_moment(rows: list[tuple[int, str]]) -> None:
    """Of each day since the beginning that has a price."""
    found = prices_of(*(record(*row) for row in rows)).segments.get("g2-standard-4", [])

    for days_ago in range(90, -1, -1):
        told = min((row for row in rows if row[0] >= days_ago), default=None)
        moment = MIDNIGHT - days_ago * DAY
        in_effect = [each.usd_per_hour for each in found if each.since <= moment]
        assert (in_effect[-1] if in_effect else None) == (None if told is None else Decimal(told[1]))
    assert all(one.usd_per_hour != other.usd_per_hour for one, other in pairwise(found))


# -- what was taken back -----------------------------------------------------------------------------------------------


def days(*shares: float | None) -> dict[str, Any]:
    """Newest first, as nothing says how they are ordered."""
    rows = []
    for ago, share in enumerate(reversed(shares)):
        rate = {} if share is None else {"preemptionRate": share}
        rows.append({"interval": {"startTime": _written(ago), "endTime": _written(ago - 1)}, **rate})
    return {"preemptionHistory": rows}


def test_shares_are_read_oldest_first_and_a_day_without_one_is_left_out() -> None:
    google = WrittenGoogle(lambda _: days(0.5, None, 0.25, 1.5, 0))

    found = preemption_shares(google, "trains", "us-central1", ["g2-standard-4"])

    assert found.shares == {"g2-standard-4": (0.5, 0.25, 0.0)}
    assert google.asked[0].body is not None
    assert google.asked[0].body["types"] == ["PREEMPTION"]


@pytest.mark.parametrize(
    ("share", "band"),
    [(0.0, "<5%"), (0.049, "<5%"), (0.05, "5-10%"), (0.1, "10-15%"), (0.15, "15-20%"), (0.2, ">20%"), (1.0, ">20%")],
)
def test_the_band_of_a_share_holds_it(share: float, band: str) -> None:
    assert band_of([share] * DAYS_MIN) == band
    assert band_of([share] * (DAYS_MIN - 1)) is None


@pytest.mark.exhaustive
@given(st.lists(st.floats(0, 1), min_size=DAYS_MIN), st.lists(st.floats(0, 1), min_size=DAYS_MIN))
def test_pool_with_more_interruptions_is_not_preferred(some: list[float], others: list[float]) -> None:
    less, more = sorted((some, others), key=lambda shares: sum(shares) / len(shares))
    lower, higher = band_of(less), band_of(more)
    assert lower is not None
    assert higher is not None

    assert relative_hazard(lower) <= relative_hazard(higher)


def test_bands_are_by_region_and_type_and_a_type_with_few_days_has_none() -> None:
    def answer(call: Call) -> Answer:
        assert call.body is not None
        return days(*[0.12] * 30) if call.body["instanceProperties"]["machineType"] == "g2-standard-4" else days(0.1)

    found = bands_in(WrittenGoogle(answer), "trains", "us-central1", ["g2-standard-4", "g2-standard-8"])

    assert found == {"us-central1/g2-standard-4": "10-15%"}


def test_bands_that_are_denied_are_none() -> None:
    google = WrittenGoogle(lambda _: AccessDenied("no right"))

    assert bands_in(google, "trains", "us-central1", ["g2-standard-4"]) == {}
