"""benchmarks/policy: what it says of the windows that it was given, few or all."""

from __future__ import annotations

import pytest

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
