"""`checkpoint.every: auto` adapts to the losses that a run has seen."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise

import numpy as np
import pytest

from spotrun.hazard import Hazard, observed_hazard
from spotrun.instance import EndedBy
from spotrun.intervals import MEAN_TIME_BETWEEN_INTERRUPTIONS, auto_interval
from spotrun.simulation.generator import generate
from tests.histories import ON_DEMAND, SPOT, History

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


def lost_s(interval_s: Sequence[float], lives_s: Sequence[float], stall_s: float) -> float:
    """Stalls, and for each loss half an interval or the whole short life, over lives that have an interval each."""
    pairs = zip(interval_s, lives_s, strict=True)
    return sum(life / interval * stall_s + (interval / 2 if life > interval else life) for interval, life in pairs)


@pytest.mark.parametrize("stall_s", [0.5, 1.0, 3.0])
def test_auto_loses_at_most_a_tenth_more_than_the_best_fixed_interval_in_hindsight(stall_s: float) -> None:
    up = np.concatenate([generate(("r",), 20_000, 60.0, seed)[:, 0] for seed in range(4)])
    turns = np.flatnonzero(np.diff(up.astype(np.int8)))
    lives_s = [float(b - a) * 60 for a, b in pairwise(turns) if not up[a]]
    chosen, history = [], History()
    for life_s in lives_s:
        seen = observed_hazard(history.state, history.now)
        chosen.append(auto_interval(timedelta(seconds=stall_s), seen.mean_time_between, seen.saved).total_seconds())
        lived(history, life_s / 3600)
    best = min(lost_s([fixed] * len(lives_s), lives_s, stall_s) for fixed in range(30, 1800, 10))
    assert len(lives_s) > 50
    assert lost_s(chosen, lives_s, stall_s) <= 1.10 * best
