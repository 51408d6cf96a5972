"""What `launch` shows of what could be rented: the chosen one, and what comes after it, on one screen."""

from __future__ import annotations

import io

from msgspec import UNSET
from msgspec.structs import replace
from rich.console import Console

from spotrun.offering import CapacityType, Offering
from spotrun.report.offers import ROWS_MAX, offerings_table
from tests.support.histories import ON_DEMAND, SPOT, offering


def printed(offerings: list[Offering], chosen: Offering) -> list[str]:
    console = Console(file=io.StringIO(), width=120)
    console.print(offerings_table(offerings, chosen))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def many(kind: CapacityType, count: int) -> list[Offering]:
    return [offering(kind, f"{number}.00") for number in range(1, count + 1)]


def test_few_are_all_shown_and_the_chosen_one_is_ticked() -> None:
    offerings = [*many(SPOT, 2), *many(ON_DEMAND, 1)]
    title, _, _, *rows = printed(offerings, offerings[1])
    assert title == "Offerings considered (simulated prices)"
    assert [row.startswith("✓") for row in rows] == [False, True, False]


def test_chosen_one_is_shown_once_if_its_launch_uses_another_subnet() -> None:
    offerings = [replace(each, subnet="a", other_subnets=("b",)) for each in many(SPOT, 3)]
    chosen = replace(offerings[0], subnet="b", other_subnets=UNSET)
    _, _, _, *rows = printed(offerings, chosen)
    assert [row.startswith("✓") for row in rows] == [True, False, False]
    assert len({*rows}) == len(rows)


def test_a_price_that_is_not_nothing_is_not_shown_as_nothing() -> None:
    offerings = [offering(SPOT, price) for price in ("0.0042", "0.00001", "2.00")]
    _, _, _, *rows = printed(offerings, offerings[0])
    assert [row.split()[-1] for row in rows] == ["0.0042", "<$0.0001", "2.0000"]


def test_of_many_the_first_are_shown_with_the_chosen_one_and_how_many_are_not() -> None:
    offerings = many(SPOT, 60)
    _, _, _, *rows = printed(offerings, offerings[50])
    assert len(rows) == ROWS_MAX + 1
    assert [row for row in rows if row.startswith("✓")] == [rows[-2]]
    assert "51.00" in rows[-2]
    assert f"{60 - ROWS_MAX} more" in rows[-1]
    assert "spotrun offers" in rows[-1]
