"""The tables of published prices that spotrun ships: one format, and a date and a source for each."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

import spotrun
from spotrun.clouds.list_prices import shipped_tables
from spotrun.run.price_tables import PriceTable, price_tables

ROOT = Path(spotrun.__file__).parent
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.json"))
GOOD = {"what": "it", "as_of": "2026-11", "source": "https://x.org", "unit": "USD", "prices": {"a": "1", "b": "2.50"}}


def tables() -> Iterator[PriceTable]:
    for path in FILES:
        yield from price_tables(".".join(["spotrun", *path.parent.parts]), path.name)


def test_each_json_file_is_a_list_of_price_tables() -> None:
    assert FILES
    assert all(table.unit.startswith("USD") or table.unit == "compute units" for table in tables())


def test_each_table_has_a_day_month_or_year_that_exists() -> None:
    for table in tables():
        assert date.fromisoformat(f"{table.as_of}-01-01"[:10]) >= date(2022, 1, 1), table.what


def test_hourly_prices_are_plausible_and_spot_costs_less() -> None:
    for table in tables():
        if table.unit == "USD per hour":
            assert all(Decimal("0.001") < usd < 200 for usd in table.prices.values()), table.what
        assert all(usd < table.prices[name] for name, usd in table.spot.items()), table.what


def test_the_list_of_a_cloud_names_each_region_once() -> None:
    for package, least in ("spotrun.clouds.aws", 3), ("spotrun.clouds.gcp", 16):
        regions = [region for table in shipped_tables(package) for region in table.regions]
        assert len(regions) == len(set(regions)) >= least


@pytest.mark.parametrize(
    "change",
    [
        {"as_of": "yesterday"},
        {"as_of": "2026-11-2"},
        {"source": "a friend"},
        {"unit": ""},
        {"prices": {}},
        {"prices": {"a": "0"}},
        {"prices": {"a": "-1"}},
        {"prices": {"a": "NaN"}},
        {"prices": {"a": "Infinity"}},
        {"spot": {"a": "0"}},
        {"spot": {"c": "1"}},
        {"note": "more"},
    ],
    ids=str,
)
def test_a_table_that_breaks_the_format_is_refused(change: dict[str, Any]) -> None:
    assert str(msgspec.convert(GOOD, PriceTable).prices["b"]) == "2.50"
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(GOOD | change, PriceTable)
