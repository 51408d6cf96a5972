"""benchmarks/policy: what it says of the windows that it was given, few or all; and what benchmarks/tuning takes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from benchmarks import tuning
from benchmarks.policy import SHOWN, SUITES, Trial, show, summary


def trials(window: int, *, with_optimum: bool) -> list[Trial]:
    strategies = (*SHOWN, *(["optimum"] if with_optimum else []))
    shares = dict.fromkeys(SHOWN, 0.6) | {"optimum": 0.5}
    return [
        Trial(suite, strategy, window, (0.0, 360.0), shares[strategy], missed=False)
        for suite in SUITES
        for strategy in strategies
    ]


def test_a_gap_is_to_the_optimum_of_the_same_trials_where_it_was_taken() -> None:
    found = summary([*trials(0, with_optimum=True), *trials(1, with_optimum=False)])
    assert found["S8"]["ours"] == {"cost": 0.6, "gap": 0.1, "misses": 0, "trials": 2}
    assert found["S8"]["optimum"]["trials"] == 1


def test_windows_without_an_optimum_or_without_trials_are_shown_with_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    show(summary(trials(1, with_optimum=False)), "second half")
    show(summary([]), "no half")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:] for line in lines if line.startswith("optimum")] == [["-"] * len(SUITES)] * 2
    ours = next(line for line in lines if line.startswith("ours"))
    assert ours.split()[1:] == ["0.6000", "(", "-", ")", "0"] * len(SUITES)


class Slope:
    """Scores that are least at one value of each constant, with more chance in them the later the window."""

    def __init__(self, least: tuning.Constants, slope: float = 1e-2, chance: float = 0.0) -> None:
        self.least, self.slope, self.chance, self.asked = least, slope, chance, set[int]()

    def scores(self, constants: tuning.Constants, windows: Iterable[int]) -> tuning.Scores:
        windows = list(windows)
        self.asked.update(windows)
        off = sum(abs(constants[name] / value - 1) for name, value in self.least.items())
        changed = any(constants[name] != value for name, value in tuning.as_in_the_code().items())
        return {
            name: {window: 0.5 + self.slope * off + changed * self.chance * (-1) ** window for window in windows}
            for name in SUITES
        }


def test_the_search_finds_the_values_that_cost_least_and_reads_the_first_half_alone() -> None:
    least = {"RESERVE_SHARE": 0.25, "SCARCITY": 0.5, "FADING_S": 86400.0}
    slope = Slope(least)
    found = tuning.search(slope.scores, tuning.as_in_the_code())
    assert found == tuning.as_in_the_code() | least
    assert slope.asked == set(range(50))


def test_possible_chance_changes_no_constant() -> None:
    found = tuning.search(Slope({"SCARCITY": 0.5}, slope=1e-4, chance=0.01).scores, tuning.as_in_the_code())
    assert found == tuning.as_in_the_code()


def test_every_constant_is_one_of_its_grid() -> None:
    assert all(getattr(module, name) in values for name, (module, values) in tuning.GRID.items())
