"""Dollars that are shown add up to the sums that are shown."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spotrun.account.summary import summarise
from spotrun.forecast import report as forecast
from spotrun.report.amounts import as_text, money, rounded, with_sums
from spotrun.report.tables import dollars
from spotrun.units import to_the_cent
from tests.support.histories import History, random_runs

UNIT = Decimal("0.0001")
amounts = st.one_of(st.just(Decimal(0)), st.decimals(-2, 2, places=9))


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0, "$0.00"),
        (Decimal("0.00002"), "$0.000020"),
        (0.0042, "$0.0042"),
        (0.0949, "$0.095"),
        (0.096, "$0.10"),
        (-0.5, "-$0.50"),
        (Decimal("12.345"), "$12.35"),
    ],
)
def test_less_than_a_cent_is_not_shown_as_nothing(usd: float | Decimal, text: str) -> None:
    assert to_the_cent(usd) == text


@pytest.mark.parametrize(("usd", "text"), [(0, "-"), (0.00003, "<$0.0001"), (0.0042, "$0.0042"), (1e-17, "-")])
def test_a_forecast_of_a_little_is_not_shown_as_nothing(usd: float, text: str) -> None:
    assert forecast.usd(usd) == text


@settings(max_examples=50)
@given(
    st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(amounts, min_size=n, max_size=n), min_size=1, max_size=12))
)
def test_amounts_and_their_sums_are_rounded_up_or_down_and_the_sum_of_all_to_the_nearest(
    exact: list[list[Decimal]],
) -> None:
    shown = rounded(exact, 4)
    pairs = [pair for rows in zip(with_sums(shown), with_sums(exact), strict=True) for pair in zip(*rows, strict=True)]
    pairs += [(sum(one, Decimal(0)), sum(other, Decimal(0))) for one, other in zip(shown, exact, strict=True)]
    for one, other in pairs:
        assert one == one.quantize(UNIT)
        assert abs(one - other) < UNIT
    whole = sum((sum(row, Decimal(0)) for row in exact), Decimal(0))
    assert sum((sum(row, Decimal(0)) for row in shown), Decimal(0)) == whole.quantize(UNIT)


def test_rounding_remainder_goes_to_parts_and_never_to_zero() -> None:
    (row,) = rounded([[Decimal("0.00317"), Decimal("0.00005"), Decimal(0)]], 4)
    assert row == [Decimal("0.0032"), 0, 0]
    assert as_text(row[0], Decimal("0.00317"), 4) == "$0.0032"
    assert as_text(row[1], Decimal("0.00005"), 4) == "<$0.0001"
    assert as_text(row[2], Decimal(0), 4) == "-"
    assert as_text(Decimal(0), Decimal("-0.001"), 2) == "-<$0.01"
    assert as_text(Decimal("-1.50"), Decimal("-1.5012"), 2) == "-$1.50"


def usd(text: str) -> Decimal:
    return Decimal(0) if text == "-" or "<" in text else Decimal(text.replace("$", ""))


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_runs())
def test_the_money_of_any_run_adds_up_in_rows_and_columns(history: History) -> None:
    summary = summarise(history.state, history.now)
    shown = money(summary)
    *parts, total = [[usd(text) for text in row] for row in shown]
    for cost, spot, on_demand, own, storage, requests, egress, kept, *_ in [*parts, total]:
        assert cost == spot + on_demand + own + kept
        assert kept == storage + requests + egress
    assert total == [sum(column, Decimal(0)) for column in zip(*parts, strict=True)]
    assert usd(shown[-1].cost) == usd(dollars(summary.total.cost_usd))
    assert usd(shown[-1].all_on_demand) == usd(dollars(summary.total.counterfactual_usd))
