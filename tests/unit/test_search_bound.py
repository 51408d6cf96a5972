"""The bound that `benchmarks.types` is compared with: no fixed number of trials does better than Weitzman's rule."""

from __future__ import annotations

from math import exp, log
from statistics import fmean

import pytest

from benchmarks.search_bound import CELLS, reserve, shares

PRICES = {"slow": (0.18, 0.43), "middle": (0.33, 0.61), "fast": (1.10, 1.87)}


def test_at_its_reserve_a_trial_just_pays() -> None:
    found = reserve(1.0, 0.05, 3.0)
    costs = [exp(log(3) * (2 * (cell + 0.5) / CELLS - 1)) for cell in range(CELLS)]
    assert fmean(max(0.0, found - each) for each in costs) == pytest.approx(0.05)


@pytest.mark.parametrize("hours", [3.0, 10.0])
def test_no_fixed_number_of_trials_does_better(hours: float) -> None:
    best = fmean(shares(list(PRICES), PRICES, hours, 3.0, 375.0))
    for tries in (1, 2, 3):
        assert best < fmean(shares(list(PRICES), PRICES, hours, 3.0, 375.0, tries))


def test_a_search_among_known_speeds_costs_nothing() -> None:
    assert max(shares(list(PRICES), PRICES, 3.0, 1.0 + 1e-9, 195.0)) == pytest.approx(0.0, abs=1e-6)
