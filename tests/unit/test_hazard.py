"""`checkpoint.every: auto` adapts to the losses that a run has seen."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from benchmarks.lives import best_fixed, lives_s, lost_by_auto, lost_s
from spotrun.agent.pace import Pace
from spotrun.forecast.generator import generate
from spotrun.instance import EndedBy
from spotrun.intervals import MEAN_TIME_BETWEEN_INTERRUPTIONS, auto_interval
from spotrun.market.hazard import Hazard, hazard_of, observed_hazard
from tests.support.histories import ON_DEMAND, SPOT, History

HOUR = timedelta(hours=1)


def lived(history: History, hours: float, *, noticed: bool = False) -> None:
    """One spot instance that trains for so long and is taken."""
    history.running()
    history.after(hours * 3600 - 40)
    launch = history.state.attempts[history.attempt].launch
    if noticed:
        history.notice()
        history.drained(history.commit(final=True))
        return
    history.gone(launch, EndedBy.CLOUD)


def test_a_run_that_saw_nothing_assumes_a_loss_an_hour() -> None:
    history = History()
    assert observed_hazard(history.state, history.now) == Hazard(MEAN_TIME_BETWEEN_INTERRUPTIONS, 0.0)


def test_long_lives_lengthen_the_interval_and_short_ones_shorten_it() -> None:
    calm, rough = History(), History()
    lived(calm, 20)
    for _ in range(10):
        lived(rough, 0.2)
    found = [observed_hazard(history.state, history.now) for history in (rough, History(), calm)]
    intervals = [auto_interval(timedelta(seconds=2), each.mean_time_between, each.saved) for each in found]
    assert intervals == sorted(set(intervals))
    assert found[2].mean_time_between == pytest.approx(10.5 * HOUR, rel=0.01)


def test_losses_whose_notice_was_used_do_not_ask_for_more_checkpoints() -> None:
    noticed, not_noticed = History(), History()
    for _ in range(4):
        lived(noticed, 0.5, noticed=True)
        lived(not_noticed, 0.5)
    saved, undone = (observed_hazard(history.state, history.now) for history in (noticed, not_noticed))
    assert (saved.saved, undone.saved) == (0.8, 0.0)
    stall = timedelta(seconds=2)
    assert auto_interval(stall, saved.mean_time_between, saved.saved) > auto_interval(
        stall, undone.mean_time_between, undone.saved
    )


def test_time_on_demand_says_nothing_of_spot() -> None:
    history = History()
    history.running(ON_DEMAND)
    history.after(36_000)
    assert observed_hazard(history.state, history.now).mean_time_between == MEAN_TIME_BETWEEN_INTERRUPTIONS
    assert history.state.launch_of(history.state.attempts[history.attempt]).intent.offering.capacity_type is not SPOT


def test_longer_life_lowers_the_hazard_and_the_checkpoint_rate() -> None:
    history = History()
    lived(history, 0.5)
    history.running()
    young = observed_hazard(history.state, history.now)
    old = observed_hazard(history.state, history.after(7200).now)
    assert young.after(timedelta(hours=2)) == old.mean_time_between
    assert young.after(timedelta(hours=2)) - young.mean_time_between == timedelta(hours=1), "one was lost"
    pace = Pace("auto", None, young, began_s=100.0)
    intervals = [pace.interval_s(100.0 + hours * 3600) for hours in (0, 1, 2)]
    assert intervals == sorted(set(intervals))


def test_age_of_an_on_demand_instance_proves_nothing() -> None:
    history = History()
    history.running(ON_DEMAND)
    seen = observed_hazard(history.state, history.now)
    assert seen.after(timedelta(hours=9)) == seen.mean_time_between


# -- against the best fixed interval in hindsight --------------------------------------------------------------------

GRID_S = [float(each) for each in range(30, 1800, 10)]


@pytest.fixture(scope="module")
def runs() -> list[list[float]]:
    """The lives of spot in markets that were fitted to a public record."""
    rng = np.random.default_rng(0)
    return [lives_s(generate(("r",), 4000, 60.0, seed)[:, 0], 60.0, rng) for seed in range(160)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "stall_s", [0.3, 10.0, *(pytest.param(stall_s, marks=pytest.mark.nightly) for stall_s in (1.0, 3.0))]
)
def test_auto_loses_at_most_a_tenth_more_than_the_best_fixed_interval_and_less_for_knowing_its_age(
    runs: list[list[float]], stall_s: float
) -> None:
    _, best_s = best_fixed(runs, stall_s, GRID_S)
    aged_s, ageless_s = (sum(lost_by_auto(run, stall_s, by_age=by_age) for run in runs) for by_age in (True, False))
    assert sum(map(len, runs)) > 500
    assert aged_s <= 1.10 * best_s
    assert aged_s < 0.97 * ageless_s


def test_life_loses_its_stalls_and_the_work_since_its_last_snapshot() -> None:
    assert lost_s(100.0, 2.0, lambda age: 30.0) == 3 * 2 + 10
    assert lost_s(100.0, 2.0, lambda age: 40.0 + age) == 2 + 60
    assert lost_s(20.0, 2.0, lambda age: 30.0) == 20
    fixed_s, least_s = best_fixed([[100.0], [100.0, 100.0]], 2.0, [30.0, 45.0])
    assert (fixed_s, least_s) == (45.0, 3 * (2 * 2 + 10))


def test_a_record_says_how_long_each_stretch_of_spot_lasted_of_those_it_holds_whole() -> None:
    up = np.array([1, 1, 0, 1, 1, 1, 0, 0, 1, 0, 1], dtype=bool)
    first, second = lives_s(up, 10.0, np.random.default_rng(0))
    assert 20.0 <= first <= 30.0
    assert 0.0 <= second <= 10.0


def test_simulation_learns_the_hazard_of_the_ledger() -> None:
    history = History()
    for _ in range(3):
        lived(history, 0.5)
    lives = [each.end.stopped_at - each.booted_at for each in history.state.attempts.values() if each.end]
    up = sum(lives, timedelta())
    assert observed_hazard(history.state, history.now) == hazard_of(up, 3)
