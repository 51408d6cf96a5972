"""`--fail-if`: a small language, read and never executed."""

from __future__ import annotations

import operator
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotrun.errors import LimitExceeded, SpecInvalid
from spotrun.report.limits import check, figures, parse
from spotrun.spec.condition import FIGURE_NAMES
from tests.support.summaries import calm_on_demand, stormy

NAMES = sorted(FIGURE_NAMES)
SIGNS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne}
numbers = st.decimals(-1000, 1000, places=2)
values = st.dictionaries(st.sampled_from(NAMES), numbers | st.none()).map(lambda some: dict.fromkeys(NAMES) | some)
comparisons = st.tuples(st.sampled_from(NAMES), st.sampled_from(sorted(SIGNS)), numbers)
conditions = st.lists(st.lists(comparisons, min_size=1, max_size=3), min_size=1, max_size=3)


@pytest.mark.exhaustive
@given(conditions, values)
def test_and_binds_tighter_than_or(alternatives, found) -> None:
    text = " or ".join(" and ".join(f"{name}{sign} {number}" for name, sign, number in one) for one in alternatives)
    wanted = any(
        all(found[name] is None or SIGNS[sign](found[name], number) for name, sign, number in one)
        for one in alternatives
    )
    assert bool(parse(text).met_by(found)) is wanted


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected a figure of the report, found its end"),
        ("usd_per_epoch", "found its end"),
        ("usd_per_epoch >", "expected a number, found its end"),
        ("usd_per_epoch > cheap", "expected a number, found 'cheap' at character 17"),
        ("usd_per_epok > 1", "'usd_per_epok' at character 1"),
        ("usd_per_epoch => 1", "'=>' at character 15"),
        (
            "usd_per_epoch > 1 interruptions > 2",
            "expected 'and', 'or' or the end, found 'interruptions' at character 19",
        ),
        ("usd_per_epoch > 1 or", "its end"),
        ("__import__('os').system('true') > 1", "'__import__' at character 1"),
        ("usd_per_epoch > 1e3", "'e' at character 18"),
        ("usd_per_epoch > nan", "'nan' at character 17"),
        ("cost_usd > 1 " * 100, "more than 1000 characters"),
    ],
)
def test_mistake_in_a_limit_is_reported_with_its_place(text: str, says: str) -> None:
    with pytest.raises(SpecInvalid) as told:
        parse(text)
    assert says in told.value.message
    assert told.value.hint


def test_a_misspelt_figure_has_a_suggestion() -> None:
    with pytest.raises(SpecInvalid) as told:
        parse("usd_per_epok > 1")
    assert told.value.hint == "did you mean usd_per_epoch?"


def test_a_limit_that_is_kept_says_nothing() -> None:
    check(parse("interruptions > 2 or savings < 10% and epochs == 3"), stormy())


def test_a_limit_that_is_not_kept_says_by_how_much() -> None:
    summary = stormy()
    with pytest.raises(LimitExceeded, match=r"interruptions is 2, and >= 2 is a failure; savings is 70\.6") as told:
        check(parse("cost_usd < 0 or interruptions >= 2 and savings < 100%"), summary)
    assert told.value.exit_code == 10
    assert "%, and < 100% is a failure" in told.value.message
    assert summary.run in told.value.message


def test_a_figure_that_the_run_does_not_have_is_no_success() -> None:
    unknown = dict.fromkeys(FIGURE_NAMES)
    (comparison,) = parse("usd_per_epoch > 5").met_by(unknown)
    assert comparison.message(unknown) == "usd_per_epoch is not known, and > 5 is a failure"


def test_every_figure_that_a_condition_may_name_can_be_reckoned() -> None:
    found = figures(stormy())
    assert sorted(found) == NAMES
    parts = [found[f"{part}_usd"] for part in ("spot", "on_demand", "storage", "requests", "egress")]
    assert sum(part for part in parts if part is not None) == found["cost_usd"]


def test_the_figures_are_those_of_the_report() -> None:
    summary = calm_on_demand()
    found = figures(summary)
    assert found["cost_usd"] == summary.total.cost_usd
    assert found["usd_per_epoch"] == summary.total.cost_usd / 3
    assert found["wall_s"] == Decimal(str(summary.total.wall.total_seconds()))
    assert found["epochs"] == 3
