"""Jobs in ticks beside the same jobs under the runner itself: how far they may be apart."""

from __future__ import annotations

import json
import random
from pathlib import Path
from statistics import fmean

import pytest

from spotrun.simulation.fidelity import fidelity, twins
from spotrun.simulation.study import Options
from spotrun.simulation.ticks import Ticks, on_demand_bill
from spotrun.strategies.port import Job
from tests.support.local_runs import Site

HOUR_S = 3600.0
JOB = Job(2 * HOUR_S, 3.5 * HOUR_S, 360.0, 195.0, 3.0)
LIFE_S, AWAY_S = 2400.0, 1200.0
WORLDS = 6


def rough(seed: int, zones: tuple[str, ...]) -> Ticks:
    """Spot lasts forty minutes and is away for twenty, on average: far rougher than the records."""
    rng, up, market = random.Random(seed), dict.fromkeys(zones, True), []
    for _ in range(140):
        up = {zone: _turn(has, rng) for zone, has in up.items()}
        market.append({zone: 1.0 for zone in zones if up[zone]})
    return market


def _turn(has: bool, rng: random.Random) -> bool:
    return rng.random() > JOB.tick_s / LIFE_S if has else rng.random() < JOB.tick_s / AWAY_S


@pytest.mark.parametrize("zones", [("a",), ("a", "b")], ids=["1 zone", "2 zones"])
def test_the_runner_costs_little_more_than_the_ticks_say_and_is_not_late_either(zones: tuple[str, ...]) -> None:
    """
    The bound of what `simulate` and `plan` say, in points of the on-demand bill: 6 on average, 30 in one job.
    """
    found = [twins(rough(seed, zones), zones, JOB, "ours", seed) for seed in range(WORLDS)]
    bill = on_demand_bill(JOB)
    off = [float(result.instances_usd) / bill - ticks.cost_usd / bill for ticks, result in found]
    assert sum(result.losses for _, result in found) >= WORLDS, "these markets take nothing back"
    assert [result.missed for _, result in found] == [False] * WORLDS
    assert abs(fmean(off)) < 0.06
    assert max(map(abs, off)) < 0.30


def test_in_a_calm_market_only_checkpoints_and_the_last_save_are_between_them() -> None:
    (ticks, result) = twins([{"a": 1.0}] * 140, ("a",), JOB, "ours", 0)
    assert result.finished_s - ticks.finished_s == pytest.approx(result.seconds["stall"], abs=10)
    spot_bill = on_demand_bill(JOB) / 3
    assert float(result.instances_usd) == pytest.approx(spot_bill, rel=0.02)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    record = {"metadata": {"gap_seconds": 600}, "data": ([1] * 9 + [0] * 3) * 12}
    path = tmp_path / "zone.json"
    path.write_text(json.dumps(record))
    return path


def test_jobs_are_spread_over_a_record_and_repeat(traces: Path) -> None:
    options = Options(("ours", "greedy"), (HOUR_S,), (2 * HOUR_S, 3 * HOUR_S), (360.0,))
    first, again = (fidelity([traces], options, 2) for _ in range(2))
    assert first == again
    assert [(each.case.deadline_s, each.jobs, each.strategy) for each in first] == [
        (2 * HOUR_S, 2, "ours"),
        (3 * HOUR_S, 2, "ours"),
    ]
    assert all(each.runner_late == 0 for each in first)


def test_the_command_shows_the_runner_beside_the_ticks(site: Site, traces: Path) -> None:
    words = ("simulate", "--traces", traces, "--work", "1h", "--deadline", "2h", "--strategy", "ours")
    said = site.call(*words, "--with-runner", "1")
    assert said.count("1h of work due in 2h, starts take 6m, one zone") == 2
    assert "by the runner" in said
    assert "The runner costs " in said
    (facts,) = site.call_json(*words, "--with-runner", "1")["with_runner"]
    assert facts["cost_off"] == pytest.approx(facts["runner_share"] - facts["ticks_share"], abs=1e-4)
    assert "use --json" in site.call(*words, "--with-runner", "1", "--csv", code=2)
