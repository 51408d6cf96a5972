"""What `launch` shows of what could be rented: the chosen one, and what comes after it, on one screen."""

from __future__ import annotations

import io

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


def test_of_many_the_first_are_shown_with_the_chosen_one_and_how_many_are_not() -> None:
    offerings = many(SPOT, 60)
    _, _, _, *rows = printed(offerings, offerings[50])
    assert len(rows) == ROWS_MAX + 1
    assert [row for row in rows if row.startswith("✓")] == [rows[-2]]
    assert "51.00" in rows[-2]
    assert f"{60 - ROWS_MAX} more" in rows[-1]
    assert "spotrun offers" in rows[-1]
