"""Jobs in ticks beside the same jobs under the runner itself: how far they may be apart."""

from __future__ import annotations

import json
import random
from math import inf
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from benchmarks.fidelity.__main__ import app
from benchmarks.fidelity.job import world_of
from benchmarks.fidelity.lifetimes import ByRunner, GangMarket
from benchmarks.fidelity.tables import lived_in_words
from benchmarks.fidelity.twins import fidelity, twins
from spotrun.errors import SpecInvalid
from spotrun.forecast.lifetimes import Drawn, Lifetime, SpotPools
from spotrun.forecast.study import Options
from spotrun.forecast.ticks import Ticks, on_demand_bill
from spotrun.strategies.port import Job
from tests.support.decisions import spec
from tests.support.histories import ON_DEMAND, offering
from tests.support.market_records import write_record
from tests.support.sandbox import Sandbox
from tests.support.world import TickMarket

HOUR_S = 3600.0
JOB = Job(2 * HOUR_S, 3.5 * HOUR_S, 360.0, 195.0, 3.0)
LIFE_S, AWAY_S = 2400.0, 1200.0
OF_A_BENCHMARK = pytest.mark.checks("benchmarks/fidelity")


def rough(seed: int, zones: tuple[str, ...]) -> Ticks:
    """Spot lasts forty minutes and is away for twenty, on average: far rougher than the records."""
    rng, up, market = random.Random(seed), dict.fromkeys(zones, True), []
    for _ in range(140):
        up = {zone: _turn(has, rng) for zone, has in up.items()}
        market.append({zone: 1.0 for zone in zones if up[zone]})
    return market


def _turn(has: bool, rng: random.Random) -> bool:
    return rng.random() > JOB.tick_s / LIFE_S if has else rng.random() < JOB.tick_s / AWAY_S


@pytest.mark.parametrize(
    ("zones", "worlds"),
    [
        pytest.param(("a",), 6, marks=pytest.mark.nightly),
        pytest.param(("a", "b"), 6, marks=pytest.mark.nightly),
        (("a",), 2),
        (("a", "b"), 2),
    ],
    ids=["1 zone", "2 zones", "1 zone, few", "2 zones, few"],
)
def test_the_runner_costs_little_more_than_the_ticks_say_and_is_not_late_either(
    zones: tuple[str, ...], worlds: int
) -> None:
    """
    The bound of what `simulate` and `plan` say, in points of the on-demand bill: 6 on average, 30 in one job.
    """
    found = [twins(rough(seed, zones), zones, JOB, "ours", seed) for seed in range(worlds)]
    bill = on_demand_bill(JOB)
    off = [float(result.instances_usd) / bill - ticks.cost_usd / bill for ticks, result in found]
    assert sum(result.losses for _, result in found) >= worlds, "these markets take nothing back"
    assert [result.missed for _, result in found] == [False] * worlds
    assert abs(fmean(off)) < 0.06
    assert max(map(abs, off)) < 0.30


def test_in_a_calm_market_only_checkpoints_and_the_last_save_are_between_them() -> None:
    (ticks, result) = twins([{"a": 1.0}] * 140, ("a",), JOB, "ours", 0)
    assert result.finished_s - ticks.finished_s == pytest.approx(result.seconds["stall"], abs=10)
    spot_bill = on_demand_bill(JOB) / 3
    assert float(result.instances_usd) == pytest.approx(spot_bill, rel=0.02)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return write_record(tmp_path / "zone.json", ([1] * 9 + [0] * 3) * 12)


@OF_A_BENCHMARK
def test_jobs_are_spread_over_a_record_and_repeat(traces: Path) -> None:
    options = Options(("ours", "greedy"), (HOUR_S,), (2 * HOUR_S, 3 * HOUR_S), (360.0,))
    first, again = (fidelity([traces], options, 2) for _ in range(2))
    assert first == again
    assert [(each.case.deadline_s, each.jobs, each.strategy) for each in first] == [
        (2 * HOUR_S, 2, "ours"),
        (3 * HOUR_S, 2, "ours"),
    ]
    assert all(each.runner_late == 0 for each in first)


@OF_A_BENCHMARK
def test_command_shows_the_runner_next_to_the_ticks(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("study", "--traces", traces, "--work", "1h", "--deadline", "2h", "--jobs", "1")
    said = called(capsys, *words)
    assert said.count("1h of work due in 2h, starts take 6m, one zone") == 1
    assert "by the runner" in said
    assert "The runner costs " in said
    (facts,) = json.loads(called(capsys, *words, "--json"))
    assert facts["cost_off"] == pytest.approx(facts["runner_share"] - facts["ticks_share"], abs=1e-4)
    with pytest.raises(SpecInvalid, match="not known"):
        called(capsys, *words, "--strategy", "optimum")


# -- a forecast --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", [1.0, 0.4])
def test_a_world_of_a_forecast_has_its_first_start_and_its_later_ones(later: float) -> None:
    ticks = TickMarket([{}], 60.0, {}, on_demand=[offering(ON_DEMAND, "3.00")])
    told = world_of(JOB, spec(setup="make"), ticks, 0, unbilled_s=30.0, later_start=later).cloud.timings
    spent_s = [limits[0] for limits in (told.pending_s, told.boot_s, told.restore_s)]
    assert sum(spent_s) + told.setup_s[0] == pytest.approx(JOB.changeover_s)
    assert sum(spent_s) + told.setup_s[0] * told.unpack == pytest.approx(later * JOB.changeover_s)


@pytest.mark.parametrize(
    ("deadline", "lives"),
    [
        pytest.param(("--deadline", "3h"), "2", marks=pytest.mark.checks("benchmarks/fidelity", "spotrun/forecast")),
        pytest.param(("--deadline", "3h"), "4", marks=pytest.mark.nightly),
        pytest.param((), "4", marks=pytest.mark.nightly),
    ],
)
def test_the_runner_itself_lives_the_lifetimes_of_the_forecast(
    sandbox: Sandbox, deadline: tuple[str, ...], lives: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (sandbox.job("later"), "--work", "1h", *deadline, "--lifetimes", lives, "--seed", "2")
    facts = sandbox.call_json("plan", *words)
    lived = ByRunner(**json.loads(called(capsys, "plan", *words, "--lived", lives, "--json")))
    (row,) = [each for each in facts["forecasts"] if (each["strategy"], each["market"]) == ("ours", "all zones")]
    assert (lived.strategy, lived.market, lived.lifetimes, lived.unfinished) == ("ours", "all zones", int(lives), 0)
    assert lived.ticks_usd == row["cost_mean_usd"]
    assert lived.runner_usd == pytest.approx(lived.ticks_usd, rel=0.1)
    assert lived.runner_finish_s == pytest.approx(lived.ticks_finish_s, rel=0.1)
    assert lived.missed == (0 if deadline else None)
    assert called(capsys, "plan", *words, "--lived", lives).strip() == lived_in_words(lived)


@OF_A_BENCHMARK
def test_the_runner_loses_the_members_that_the_forecast_loses() -> None:
    spot, always = offering(zone="a"), np.ones((40, 1), dtype=bool)
    lone = np.zeros((40, 1), dtype=bool)
    lone[[9, 14]] = True
    pools = SpotPools("1 zone", ("a",), ("east",), (1.0,), size=4)
    market = GangMarket(Lifetime(pools, Drawn(always, np.ones(1), lone)), 60.0, {"a": spot}, [])
    assert [market.taken_s(spot.pool, 0.0, place) for place in range(4)] == [inf, 9 * 60.0, 14 * 60.0, inf]
    assert market.taken_s(spot.pool, 9 * 60.0 + 1, 1) == inf


def test_the_runner_lives_no_lifetime_that_is_not_forecast(
    sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SpecInvalid, match="cannot live 6 of 5 lifetimes"):
        called(capsys, "plan", sandbox.job("later"), "--work", "1h", "--lifetimes", "5", "--lived", "6")


def called(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What `python -m benchmarks.fidelity …` printed."""
    app([str(word) for word in words], standalone_mode=False)
    return capsys.readouterr().out
