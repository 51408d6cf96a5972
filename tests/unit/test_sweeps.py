"""What a sweep decides, from trials as they may be: who begins with how much, who stops, and when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from benchmarks.sweep import Case, Swept, swept
from spotrun.sweep.rungs import (
    Action,
    Begin,
    CarryOn,
    EndedEpoch,
    Over,
    Stop,
    SweepPlan,
    TrialProgress,
    Unknown,
    best_of,
    grace_epochs,
    held_usd,
    metric_of,
    need_of,
    next_actions,
    trials_of,
)

pytestmark = pytest.mark.exhaustive  # whole simulated sweeps

AT = datetime(2026, 11, 1, tzinfo=UTC)
PLAN = SweepPlan(trials=8, budget_usd=Decimal(40), max_parallel=4, keep_one_in=2, grace_epochs=1, metric="val_loss")
HOUR = timedelta(hours=1)


def logged(*values: float, begin_min: int = 0, metric: str = "val_loss") -> tuple[EndedEpoch, ...]:
    """An epoch each ten minutes; NaN is not logged."""
    return tuple(
        EndedEpoch(epoch, AT + timedelta(minutes=begin_min + 10 * epoch), {} if value != value else {metric: value})
        for epoch, value in enumerate(values, 1)
    )


def trial(number: int, *values: float, begin_min: int = 0, **known: object) -> TrialProgress:
    """On its way, an hour of training in all, at $3 an hour."""
    made = TrialProgress(
        number=number,
        budget_usd=Decimal(6),
        spent_usd=Decimal("0.5"),
        epochs=logged(*values, begin_min=begin_min),
        epochs_total=6,
        epoch_s=600.0 if values else None,
        usd_per_hour=Decimal(3),
    )
    return replace(made, **known)


def ended(
    number: int, *values: float, outcome: str = "completed", cost: str = "1", begin_min: int = 0
) -> TrialProgress:
    return trial(number, *values, begin_min=begin_min, outcome=outcome, settled=True, spent_usd=Decimal(cost))


def begun(actions: Sequence[Action]) -> list[Begin]:
    return [each for each in actions if isinstance(each, Begin)]


def stopped(actions: Sequence[Action]) -> dict[int, str]:
    return {each.number: each.reason for each in actions if isinstance(each, Stop)}


# -- who begins ------------------------------------------------------------------------------------------------------


def test_the_first_trial_runs_alone_until_it_shows_what_one_needs() -> None:
    assert begun(next_actions(PLAN, [])) == [Begin(1, Decimal(20), None)]
    assert next_actions(PLAN, [trial(1, budget_usd=Decimal(20))]) == []
    slow = trial(1, budget_usd=Decimal(20), age=HOUR)
    assert [each.number for each in begun(next_actions(PLAN, [slow]))] == [2, 3, 4], "nobody waits for a long epoch"
    assert begun(next_actions(PLAN, [ended(1, outcome="failed")])) == [Begin(2, Decimal("19.5"), None)]
    assert begun(next_actions(replace(PLAN, most_usd=Decimal(7)), []))[0].budget_usd == 7
    small = replace(PLAN, budget_usd=Decimal(3), least_usd=Decimal(2))
    assert begun(next_actions(small, [])) == [Begin(1, Decimal(3), None)], "half of it would be too little"


def test_a_job_that_says_how_long_it_takes_needs_no_first_trial() -> None:
    told = replace(PLAN, work=timedelta(minutes=55), usd_per_hour=Decimal(3))
    found = begun(next_actions(told, []))
    assert [(each.number, each.budget_usd) for each in found] == [(number, Decimal(6)) for number in (1, 2, 3, 4)]


def test_once_a_trial_was_measured_the_next_one_gets_twice_what_it_may_cost_on_demand() -> None:
    found = next_actions(PLAN, [trial(1, 0.5)])
    assert [each.budget_usd for each in begun(found)] == [Decimal(6)] * 3
    assert {each.work for each in begun(found)} == {HOUR}
    need = need_of(PLAN, [trial(1, 0.5), trial(2, 0.5, epoch_s=1200.0)])
    assert need is not None
    assert (need.work, need.usd) == (2 * HOUR, Decimal(6)), "the dearest one counts"


@pytest.mark.parametrize(("budget", "each_gets"), [(41, 6), (57, 8), (78, 11), (200, 12)])
def test_a_budget_that_is_more_than_ample_for_all_is_shared_by_all(budget: int, each_gets: int) -> None:
    """A start may be slower than the one that was measured, and nobody can give a run more money later."""
    found = begun(next_actions(replace(PLAN, budget_usd=Decimal(budget)), [ended(1, 3)]))
    assert [each.budget_usd for each in found] == [Decimal(each_gets)] * 4, "seven are to begin"


def test_running_trial_holds_its_whole_budget_and_an_ended_one_its_cost() -> None:
    plan = replace(PLAN, budget_usd=Decimal(12))
    assert held_usd([ended(1, 0.5), trial(2, 0.5)]) == Decimal(7)
    assert [each.budget_usd for each in begun(next_actions(plan, [ended(1, 0.5), trial(2, 0.5)]))] == [Decimal(5)]
    assert begun(next_actions(plan, [trial(1, 0.5), trial(2, 0.5)])) == [], "the other trials may need all of it"


def test_a_sweep_is_over_when_what_is_left_pays_for_no_other_trial() -> None:
    (over,) = next_actions(replace(PLAN, budget_usd=Decimal(4)), [ended(1, 0.5)])
    assert over == Over("$3.00 are left, and another trial may need more")
    everybody = [ended(number, 0.5) for number in range(1, 9)]
    assert next_actions(PLAN, everybody) == [Over("")]


def test_no_trial_begins_that_would_not_be_done_by_the_deadline_and_none_runs_beyond_it() -> None:
    assert begun(next_actions(PLAN, [trial(1, 0.5)], 2 * HOUR))
    assert next_actions(PLAN, [trial(1, 0.5)], 1.2 * HOUR) == []
    (over,) = next_actions(PLAN, [ended(1, 0.5)], 1.2 * HOUR)
    assert over == Over("the time to its deadline is too short for another trial")
    assert stopped(next_actions(PLAN, [trial(1, 0.5), ended(2, 0.5)], timedelta())) == {
        1: "the deadline of the sweep has come"
    }
    assert next_actions(PLAN, [ended(1, 0.5)], -HOUR) == [Over("its deadline has come")]


def test_a_job_that_fails_three_times_before_an_epoch_is_not_tried_on() -> None:
    failing = [ended(number, outcome="failed") for number in (1, 2, 3)]
    (over,) = next_actions(PLAN, failing)
    assert over == Over("3 trials have failed, and no trial has completed an epoch")
    assert begun(next_actions(PLAN, [*failing, ended(4, 0.5)])), "then it is a matter of parameters"


money = st.decimals(0, 20, places=2)


@given(st.lists(st.tuples(money, money, st.booleans()), max_size=7), st.decimals(1, 60, places=2), money)
def test_no_history_makes_a_sweep_promise_more_than_its_budget(
    history: list[tuple[Decimal, Decimal, bool]], budget_usd: Decimal, least_usd: Decimal
) -> None:
    plan = replace(PLAN, budget_usd=budget_usd, least_usd=max(least_usd, Decimal("0.01")))
    trials = [
        replace(trial(number, 0.5), budget_usd=most, spent_usd=min(cost, most), settled=is_over)
        for number, (most, cost, is_over) in enumerate(history, 1)
    ]
    begins = begun(next_actions(plan, trials))
    promised = held_usd(trials) + sum((each.budget_usd for each in begins), Decimal(0))
    assert not begins or promised <= budget_usd
    assert [each.number for each in begins] == list(range(len(trials) + 1, len(trials) + 1 + len(begins)))


# -- who stops -------------------------------------------------------------------------------------------------------


def test_worst_half_of_the_trials_at_a_rung_stops_with_a_reason() -> None:
    trials = [trial(1, 0.5), trial(2, 0.9, begin_min=1), trial(3, 0.4, begin_min=2), trial(4, 0.6, begin_min=3)]
    reasons = stopped(next_actions(PLAN, trials))
    assert reasons == {
        2: "val_loss 0.9 after epoch 1 is no. 2 of 2 trials; the best has 0.5",
        4: "val_loss 0.6 after epoch 1 is no. 3 of 4 trials; the best has 0.4",
    }
    assert stopped(next_actions(replace(PLAN, keep_one_in=None), trials)) == {}
    assert set(stopped(next_actions(replace(PLAN, grace_epochs=2), trials))) == set()


@pytest.mark.parametrize(
    ("budget", "time", "max_parallel", "first"), [(40, None, 4, 3), (7, None, 4, 2), (4, None, 4, 1), (40, HOUR, 4, 1)]
)
def test_trials_are_compared_as_late_as_budget_and_time_allow(
    budget: int, time: timedelta | None, max_parallel: int, first: int
) -> None:
    plan = replace(PLAN, grace_epochs=None, budget_usd=Decimal(budget), time=time, max_parallel=max_parallel)
    assert grace_epochs(plan, [trial(1, 0.5, price_usd_per_hour=Decimal(1))]) == first
    assert grace_epochs(plan, [trial(1)]) == 1, "nothing is known yet"
    assert grace_epochs(replace(plan, grace_epochs=5), [trial(1, 0.5)]) == 5


def test_of_a_metric_that_has_to_grow_the_smallest_are_the_worst() -> None:
    trials = [trial(1, 0.5), trial(2, 0.9, begin_min=1), trial(3, 0.4, begin_min=2)]
    assert set(stopped(next_actions(replace(PLAN, maximize=True), trials))) == {3}
    best = best_of(trial(1, 0.5, 0.9, 0.7), "val_loss", maximize=True)
    assert best is not None
    assert best.epoch == 2


def test_rungs_are_apart_by_the_factor_and_who_is_done_goes_on() -> None:
    ahead = ended(1, 0.5, 0.4, 0.3, 0.2, 0.2, 0.2)
    assert set(stopped(next_actions(PLAN, [ahead, trial(2, 0.4, 0.3, 0.4, begin_min=60)]))) == set(), "not at epoch 3"
    assert set(stopped(next_actions(PLAN, [ahead, trial(2, 0.4, 0.3, 0.4, 0.4, begin_min=60)]))) == {2}
    done = trial(2, 0.6, epochs_total=1, begin_min=60)
    assert set(stopped(next_actions(PLAN, [ahead, done]))) == set()


def test_a_trial_that_loses_its_metric_to_nan_stops() -> None:
    trials = [trial(1, 0.5), trial(2, float("nan"), begin_min=1)]
    assert stopped(next_actions(PLAN, trials)) == {2: "it has logged no finite val_loss after epoch 1"}


def test_no_trial_is_stopped_twice_or_after_its_end() -> None:
    trials = [trial(1, 0.5), trial(2, 0.9, begin_min=1, asked_to_stop=True), ended(3, 0.9, begin_min=2)]
    assert stopped(next_actions(PLAN, trials)) == {}


@given(st.permutations(range(6)))
def test_the_same_ledgers_give_the_same_decision_in_any_order_of_reading(order: list[int]) -> None:
    trials = [trial(number, number / 10, 0.1, begin_min=number) for number in range(1, 7)]
    assert stopped(next_actions(PLAN, [trials[place] for place in order])) == stopped(next_actions(PLAN, trials))


# -- who is carried on -----------------------------------------------------------------------------------------------


def halved(number: int, *values: float, **known: object) -> TrialProgress:
    return replace(ended(number, *values, outcome="stopped"), judged=True, **known)


def test_remaining_budget_resumes_stopped_trials_the_most_promising_first() -> None:
    plan = replace(PLAN, trials=5, max_parallel=2, resume_stopped=True)
    trials = [ended(1, 0.5, 0.4, 0.3), halved(2, 0.9), halved(3, 0.5, 0.6), halved(4, 0.8), ended(5, outcome="stopped")]
    assert next_actions(plan, trials) == [CarryOn(3), CarryOn(4)], "the last one was stopped by somebody else"
    assert next_actions(replace(plan, resume_stopped=False), trials) == [Over("")]
    assert next_actions(replace(plan, trials=6), trials)[0] == Begin(6, Decimal(12), HOUR), "new ones come first"
    assert next_actions(plan, trials, HOUR) == [Over("")], "no time is left for one"
    assert next_actions(replace(plan, budget_usd=Decimal(10)), trials) == [CarryOn(3)], "its whole budget is kept again"
    assert next_actions(replace(plan, budget_usd=Decimal(9)), trials) == [Over("")]


def test_trial_that_would_be_resumed_at_once_is_not_stopped() -> None:
    plan = replace(PLAN, trials=3, max_parallel=1, resume_stopped=True)
    worse = trial(3, 0.9, begin_min=60)
    assert stopped(
        next_actions(replace(plan, resume_stopped=False), [ended(1, 0.5), halved(2, 0.8), worse])
    ).keys() == {3}
    assert stopped(next_actions(plan, [ended(1, 0.5), halved(2, 0.8), worse])).keys() == {3}, "for the sake of no. 2"
    assert stopped(next_actions(plan, [ended(1, 0.5), halved(2, 1.2), worse])) == {}


def test_a_trial_that_was_carried_on_is_compared_again_only_further_on() -> None:
    first = ended(1, 0.5, 0.4, 0.3, 0.2)
    again = trial(2, 0.9, 0.8, begin_min=60, spared=2)
    assert stopped(next_actions(PLAN, [first, again])) == {}
    further = trial(2, 0.9, 0.8, 0.7, 0.6, begin_min=60, spared=2)
    assert set(stopped(next_actions(PLAN, [first, further]))) == {2}
    better = trial(2, 0.9, 0.8, 0.2, 0.1, begin_min=60, spared=2)
    assert stopped(next_actions(PLAN, [first, better])) == {}


# -- by which metric -------------------------------------------------------------------------------------------------


def test_unlogged_metric_is_reported_at_the_end_of_the_first_epoch() -> None:
    mistaken = replace(PLAN, metric="val_los")
    (unknown,) = next_actions(mistaken, [trial(1, 0.5)])
    assert unknown == Unknown("val_los", 1, ("val_loss",))
    assert unknown.meant == "val_loss"
    strange = replace(PLAN, metric="accuracy")
    assert not any(isinstance(each, Unknown) for each in next_actions(strange, [trial(1, 0.5)])), "it may be NaN"
    (unknown,) = next_actions(strange, [trial(1, 0.5), trial(2, 0.5)])
    assert unknown == Unknown("accuracy", 1, ("val_loss",))
    assert not any(
        isinstance(each, Unknown) for each in next_actions(replace(strange, grace_epochs=2), [trial(1, 0.5)])
    )


def test_without_a_wish_trials_are_judged_by_the_loss_of_the_validation_or_else_of_the_training() -> None:
    wish = replace(PLAN, metric=None)
    names = ("train_loss", "valid/loss", "lr")
    epoch = EndedEpoch(1, AT, dict.fromkeys(names, 0.5))
    assert metric_of(wish, [replace(trial(1), epochs=(epoch,))]) == "valid/loss"
    assert metric_of(wish, [trial(1, 0.5)]) == "val_loss"
    assert metric_of(wish, [replace(trial(1), epochs=logged(0.5, metric="lr"))]) is None
    assert stopped(next_actions(wish, [replace(trial(1), epochs=logged(0.5, metric="lr"))])) == {}


def test_trials_that_log_nothing_like_a_loss_are_not_trained_to_their_ends_uncompared() -> None:
    wish, trials = replace(PLAN, metric=None), [replace(trial(n), epochs=logged(0.5, metric="val_acc")) for n in (1, 2)]
    assert next_actions(wish, trials) == [Unknown("", 1, ("val_acc",))]
    assert not any(isinstance(each, Unknown) for each in next_actions(wish, trials[:1])), "its loss may be NaN"
    uncompared = replace(wish, keep_one_in=None)
    assert not any(isinstance(each, Unknown) for each in next_actions(uncompared, trials)), "as it was asked for"
    over = [replace(each, outcome="completed", settled=True) for each in trials]
    assert next_actions(replace(wish, trials=2), over) == [Over("")], "the report of one that has ended is shown"


# -- which trials ----------------------------------------------------------------------------------------------------


def test_a_sample_is_of_different_trials_and_the_same_for_the_same_seed() -> None:
    grid = {"lr": ("1e-3", "3e-4", "1e-4"), "width": ("8", "16")}
    everything = trials_of(grid, 6, 0)
    assert len({tuple(each.items()) for each in everything}) == 6
    assert trials_of(grid, 3, 0) == everything[:3]
    assert trials_of(grid, 6, 1) != everything


# -- whole sweeps ----------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize(("seed", "deadline"), [pytest.param(1, None, marks=pytest.mark.nightly), (2, 8.0)])
def test_simulated_sweep_keeps_budget_and_deadline_and_comes_near_the_best_in_hindsight(
    seed: int, deadline: float | None
) -> None:
    """Two of the sweeps of benchmarks/sweep.py, with fewer trials."""
    each: Swept = swept(Case(seed, 10, 4.0, 3, 2, deadline, resume_stopped=True))
    assert each.over_budget_usd == 0, each
    assert not each.missed, each
    assert each.above_optimum <= 0.05, each
    assert each.completed >= 1
