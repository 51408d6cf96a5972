"""Every second and every dollar of a run has one place, whatever happened to it."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from spotrun.account.outcome import completed_epochs, status_word
from spotrun.account.summary import Account, RunSummary, bill_series, summarise
from spotrun.account.timeline import DOWNTIME, Activity, Span, account_end, timeline
from spotrun.instance import EndedBy
from spotrun.market.world import World
from spotrun.policy.facts import Facts
from spotrun.policy.storage_cost import storage_reserve
from spotrun.run.events import (
    Cause,
    Entry,
    EpochCompleted,
    LaunchRecorded,
    ResumeRequested,
    RunStopped,
    SetUp,
    StopRequested,
)
from spotrun.run.fold import fold
from spotrun.run.state import RunState
from tests.support.decisions import spec
from tests.support.histories import FREE_STORAGE, ON_DEMAND, START, STORAGE, History, gone, histories, random_runs

quickly = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


def seconds(account: Account) -> dict[str, float]:
    """What is not zero."""
    return {str(kind): spent.total_seconds() for kind, spent in account.times.items() if spent}


def summary_of(history: History) -> RunSummary:
    return summarise(history.state, history.now)


def at(seconds_in: float) -> datetime:
    return START + timedelta(seconds=seconds_in)


# -- worked by hand ----------------------------------------------------------------------------------------------------


def test_a_run_without_trouble_waits_boots_sets_up_restores_and_trains():
    history = History(FREE_STORAGE).after(30)
    launch = history.running()  # 0.36 $/h: one hundredth of a cent a second
    history.step = 100
    history.after(400).epoch(0)
    final = history.after(20).commit(taken_s_ago=20, stall_s=2, final=True)
    history.after(5).completed(final)
    history.after(45).gone(launch, EndedBy.ITSELF)

    summary = summary_of(history)

    assert summary.state == "completed"
    assert seconds(summary.total) == {
        "wait": 30, "boot": 60, "setup": 25, "restore": 15, "productive": 398, "stall": 27,
    }  # fmt: skip
    assert summary.total.spot_usd == Decimal("0.0001") * (50 + 25 + 15 + 400 + 20 + 5 + 45)
    assert [epoch.epoch for epoch in summary.epochs] == [0]
    assert seconds(summary.rest) == {"stall": 25}
    assert summary.rest.spot_usd == Decimal("0.0001") * 70
    assert summary.rest_name == "end of run"


def test_the_on_demand_bill_is_the_productive_time_and_one_start():
    history = History(FREE_STORAGE)
    history.running(price="0.36")
    history.after(260)

    total = summary_of(history).total

    assert total.counterfactual_usd == Decimal("3.60") * (60 + 25 + 15 + 260) / 3600
    assert total.savings is not None
    assert round(total.savings, 6) == round(1 - (350 * 0.0001) / 0.36, 6)


def test_a_baseline_of_the_job_takes_the_place_of_the_on_demand_price():
    history = History(FREE_STORAGE, spec=spec(report={"baseline": 1.80}).to_dict())
    history.running(price="0.36")
    history.after(260)

    summary = summary_of(history)

    assert summary.total.counterfactual_usd == Decimal("1.80") * (60 + 25 + 15 + 260) / 3600
    assert "at $1.8 an hour (report.baseline)" in summary.assumptions


def test_repeated_work_of_a_command_without_checkpoints_is_rework_and_not_restore():
    history = History(FREE_STORAGE, spec={"train": {"run": "make model"}})
    launch = history.launch()
    history.record(launch)
    history.after(60).start(launch, booted_at=at(40))
    history.resume()
    assert status_word(history.state) == "training"
    history.after(500).notice()
    history.after(90).drained(None)
    history.gone(launch, EndedBy.ITSELF)
    launch = history.launch()
    history.record(launch)
    history.after(60).start(launch, booted_at=at(690))
    history.resume()
    running = seconds(summary_of(history.after(100)).total)
    history.after(500).completed(None)

    assert running == {"boot": 80, "setup": 40, "rework": 590, "productive": 100}
    total = summary_of(history).total
    assert seconds(total) == running | {"productive": 600}
    assert (total.interruptions, total.steps_redone) == (1, 0)


def test_a_script_that_ended_without_a_step_was_a_command():
    """Until then it may have been a training in its imports."""
    history = History(FREE_STORAGE, spec={"train": {"script": "plain.py"}})
    launch = history.launch()
    history.record(launch)
    history.start(launch)
    history.resume()
    history.after(100)
    assert (status_word(history.state), seconds(summary_of(history).total)) == ("starting", {"restore": 100})
    history.completed(None)
    assert seconds(summary_of(history).total) == {"productive": 100}


def test_an_interruption_without_notice_costs_detection_a_new_start_and_rework():
    history = History(FREE_STORAGE)
    first = history.running()  # trains from 100
    history.step = 10
    history.after(100).commit(taken_s_ago=30, stall_s=1)  # taken at 170
    history.step = 15
    history.after(50)  # lost at 250
    history.after(8).gone(first, EndedBy.CLOUD, ended_at=at(250), last_step=15)
    history.after(12)  # nobody asks for another until 270
    history.running()  # trains from 370
    history.after(100)

    summary = summary_of(history)

    assert seconds(summary.total) == {
        "boot": 120, "setup": 50, "restore": 30,
        "productive": 70 - 1 + 100, "stall": 1, "rework": 80, "detect": 8, "wait": 12,
    }  # fmt: skip
    assert summary.total.interruptions == 1
    assert summary.total.steps_redone == 5
    assert summary.total.spot_usd == Decimal("0.0001") * (240 + 190)


def test_unobserved_time_of_a_machine_that_was_off_is_detection_and_no_rework():
    """It was taken, its disk is left, and the runner was dead: it comes back ten minutes later."""
    history = History(FREE_STORAGE)
    first = history.running()  # trains from 100
    history.step = 10
    history.after(100).commit(taken_s_ago=30, stall_s=1)  # taken at 170
    history.after(50)  # off at 250
    history.after(600).gone(first, EndedBy.CLOUD, dearer_since=(at(250), "0"))
    history.running()  # trains from 950
    history.after(100)

    summary = summary_of(history)

    assert seconds(summary.total) == {
        "boot": 120, "setup": 50, "restore": 30, "productive": 70 - 1 + 100, "stall": 1, "rework": 80, "detect": 600,
    }  # fmt: skip
    (lost,) = summary.losses
    assert (lost.at, lost.detection) == (at(250), timedelta(minutes=10))


def test_time_from_the_last_heartbeat_to_an_unobserved_end_is_detection():
    history = History(FREE_STORAGE)
    first = history.running()  # trains from 100
    history.after(100).commit(taken_s_ago=30, stall_s=1)  # taken at 170
    history.after(50)  # heard last at 250
    recorded = history.state.launches[first].recorded
    known = {"billed_from": recorded.billed_from, "prices": recorded.prices, "bounded_by": "its time-to-live"}
    history.after(3600).write(gone(first, at(850), EndedBy.FAULT, stopped_at=at(250), **known))
    spans = seconds(summary_of(history).total)
    assert (spans["rework"], spans["stall"], spans["detect"]) == (80, 1, 3600)


def test_training_after_the_last_checkpoint_is_rework_once_its_attempt_is_over():
    history = History(FREE_STORAGE)
    launch = history.running()
    history.after(100).commit(taken_s_ago=40)
    history.after(30)
    assert "rework" not in seconds(summary_of(history).total)
    history.gone(launch)
    assert seconds(summary_of(history).total)["rework"] == 70


def test_the_overlap_with_a_standby_is_cost_and_not_downtime():
    history = History(FREE_STORAGE)
    first = history.running()
    history.after(200).notice()
    second = history.launch()
    history.after(10).record(second)
    history.step = 50
    history.after(90)  # the standby has booted at 350, and stands ready at 400
    final = history.commit(taken_s_ago=4, stall_s=1, final=True)  # taken at 396
    history.after(2).drained(final, stopped_s_ago=6)
    history.after(3).start(second, booted_at=at(350))
    history.resume()
    history.after(7).training()
    history.after(20).gone(first, EndedBy.CLOUD)
    history.after(80)

    summary = summary_of(history)

    assert seconds(summary.total) == {
        "boot": 60, "setup": 25 + 3, "restore": 15 + 7, "productive": 295 + 100, "stall": 1 + 6,
    }  # fmt: skip
    assert summary.total.interruptions == 1
    assert summary.total.steps_redone == 0
    first_s, second_s = 432 - 10, 512 - 310
    assert summary.total.spot_usd == Decimal("0.0001") * (first_s + second_s)


def test_goodput_is_training_over_what_was_paid_and_an_overlap_is_paid_twice():
    history = History(FREE_STORAGE)
    first = history.running()  # billed from 10, trains from 100
    second = history.after(200).launch()
    history.after(10).record(second)  # billed from 310
    final = history.after(90).commit(final=True)  # at 400
    history.drained(final)
    history.start(second, booted_at=at(350))
    history.resume()
    history.training()
    history.after(50).gone(first, EndedBy.USER)  # at 450
    history.after(150)

    total = summary_of(history).total

    assert total.productive == timedelta(seconds=300 + 200)
    assert total.paid == timedelta(seconds=440 + 290)
    assert total.goodput == 500 / 730
    assert total.usd_per_productive_hour == Decimal("0.0001") * 730 * 3600 / 500


def test_nothing_is_paid_for_what_is_forgiven_and_a_minute_for_what_we_ended_at_once():
    history = History(FREE_STORAGE)
    forgiven = history.launch()
    history.record(forgiven)
    history.after(59).gone(forgiven, EndedBy.CLOUD)
    assert (summary_of(history).total.paid, summary_of(history).total.goodput) == (timedelta(0), None)
    ended = history.launch()
    history.record(ended)
    history.after(5).gone(ended, EndedBy.USER)
    assert summary_of(history).total.paid == timedelta(seconds=60)
    assert summary_of(history).total.usd_per_productive_hour is None


def test_the_first_minute_of_what_the_cloud_takes_back_is_free():
    history = History(FREE_STORAGE)
    launch = history.launch()
    history.after(5).record(launch)
    history.after(59)
    assert summary_of(history).total.spot_usd == Decimal("0.0059")
    history.gone(launch, EndedBy.CLOUD)
    assert summary_of(history).total.cost_usd == 0


def test_a_short_life_that_we_ended_ourselves_is_billed_for_a_minute():
    history = History(FREE_STORAGE)
    launch = history.launch()
    history.record(launch)
    history.after(5).gone(launch, EndedBy.USER)
    assert summary_of(history).total.spot_usd == Decimal("0.006")


def test_a_price_that_changes_within_an_epoch_is_billed_from_then_on():
    history = History(FREE_STORAGE)
    launch = history.running()  # billed from 10
    history.step = 1
    history.after(100).epoch(0)  # finished at 200
    history.after(10).commit()
    history.step = 2
    history.after(100).epoch(1)  # finished at 310
    history.after(10).commit()
    history.after(10).gone(launch, EndedBy.CLOUD, dearer_since=(at(260), "7.2"))

    first, second = summary_of(history).epochs

    assert first.spot_usd == Decimal("0.0001") * 190
    assert second.spot_usd == Decimal("0.0001") * 60 + Decimal("0.002") * 50


def test_an_epoch_that_was_done_twice_is_completed_once_and_owns_both():
    history = History(FREE_STORAGE)
    first = history.running()
    history.step = 5
    history.after(50).commit()
    history.step = 10
    history.after(50).epoch(0)
    history.commit()  # durable at 200, and damaged afterwards
    history.after(10).gone(first)
    history.running(walk_back=1)  # from step 5, trains from 310
    history.step = 10
    history.after(50).epoch(0)
    history.after(5).commit()

    summary = summary_of(history)

    assert completed_epochs(history.state) == ((0, at(360)),)
    assert seconds(summary.epochs[0])["rework"] == 60
    assert summary.epochs[0].steps_redone == 5
    assert seconds(summary.rest) == {"productive": 5}
    assert summary.rest_name == "unfinished"


def test_epochs_that_one_checkpoint_makes_durable_have_their_own_dollars_and_times():
    history = History(FREE_STORAGE)
    launch = history.running()  # billed from 10, trains from 100
    for epoch in range(3):
        history.step += 7
        history.after(20).epoch(epoch)
    assert summary_of(history).epochs == ()
    history.after(1).gone(launch, EndedBy.CLOUD)  # at 161: all three are lost
    launch = history.running()  # trains from 261
    for epoch in range(3):
        history.step += 7
        history.after(20).epoch(epoch)  # finished at 281, 301, 321
    history.completed(history.after(4).commit(final=True))
    history.gone(launch, EndedBy.USER)

    summary = summary_of(history)

    assert [each.productive for each in summary.epochs] == [timedelta(seconds=20)] * 3
    assert [each.downtime for each in summary.epochs] == [timedelta(seconds=261), timedelta(0), timedelta(0)]
    assert [each.cost_usd for each in summary.epochs[1:]] == [Decimal("0.0001") * 20] * 2
    assert seconds(summary.rest) == {"productive": 4}
    assert summary.rest_name == "end of run"


def test_a_run_without_epochs_has_no_end_of_run():
    history = History(FREE_STORAGE)
    history.running()
    history.completed(history.after(5).commit(final=True))
    assert (summary_of(history).epochs, summary_of(history).rest_name) == ((), "no epochs")


def test_the_course_of_a_bill_ends_when_nothing_is_billed_any_more():
    history = History()
    launch = history.running()
    history.completed(history.after(20).commit(final=True))
    assert bill_series(history.state, history.now + timedelta(hours=3), 5)[-1][0] == history.now + timedelta(hours=3)
    ended_at = history.after(30).now
    history.gone(launch, EndedBy.ITSELF)

    series = bill_series(history.state, history.now + timedelta(days=9), 5)

    assert [moment for moment, _ in series] == [START + (ended_at - START) * n / 4 for n in range(5)]
    assert series[-1][1].cost_usd == summarise(history.state, history.now + timedelta(days=9)).total.cost_usd


def test_an_epoch_counts_once_a_checkpoint_at_or_past_its_end_is_durable():
    history = History()
    history.running()
    history.step = 10
    history.after(50).epoch(0)
    history.after(5).commit(step=9)
    assert summary_of(history).epochs == ()
    history.after(5).commit(suspect=True)
    assert summary_of(history).epochs == ()
    history.after(5).commit(step=12)
    assert completed_epochs(history.state) == ((0, at(150)),)


def test_a_stop_and_a_resume_leave_the_pause_out_of_every_time_but_not_out_of_the_bill():
    history = History(FREE_STORAGE)
    first = history.running()
    history.step = 5
    history.after(100).write(StopRequested(by="me"))
    final = history.after(10).commit(taken_s_ago=10, final=True)
    history.drained(final, stopped_s_ago=10)
    history.after(5).write(RunStopped(reason="as requested"))
    stopped = summary_of(history)
    history.after(15).gone(first, EndedBy.ITSELF)
    history.after(85).write(ResumeRequested(by="me"))
    history.after(20)
    history.running()

    total = summary_of(history).total

    assert stopped.state == "stopped"
    assert stopped.ended_at == at(215)
    assert stopped.total.wall == timedelta(seconds=215)
    assert seconds(total) == {
        "boot": 120, "setup": 50, "restore": 30, "productive": 100, "stall": 10, "wait": 5 + 20, "paused": 100,
    }  # fmt: skip
    assert total.wall == timedelta(seconds=215 + 120)
    assert total.spot_usd == Decimal("0.0001") * (220 + 90)
    assert total.interruptions == 0


def test_a_trainer_that_crashes_is_restored_on_the_same_instance():
    history = History(FREE_STORAGE)
    history.running()
    history.after(60).commit()
    history.after(40).exited()
    history.resume()
    history.after(12).training()
    history.after(30)
    assert seconds(summary_of(history).total) == {
        "boot": 60, "setup": 25, "restore": 15 + 12, "productive": 60 + 30, "rework": 40,
    }  # fmt: skip


def test_a_standby_that_fences_a_silent_instance_shows_when_that_really_ended():
    history = History(FREE_STORAGE)
    first = history.running()
    history.after(100).notice()
    second = history.launch()
    history.record(second)
    history.after(200).start(second, booted_at=at(250))
    history.resume()
    history.after(10).training()
    history.gone(first, EndedBy.CLOUD, ended_at=at(220))

    total = summary_of(history).total

    assert total.interruptions == 1
    assert seconds(total) == {"boot": 60 + 30, "setup": 25 + 150, "restore": 25, "rework": 120}


def test_storage_is_size_times_the_time_kept_and_requests_are_counted():
    history = History()
    history.running()
    history.commit(size_bytes=10**12)
    history.after(3600).commit(size_bytes=1)
    summary = summary_of(history)

    hour = STORAGE.usd_per_gb_month * 1000 / 730
    assert abs(summary.total.storage_usd - hour) < Decimal("1e-9")
    entries, commits, objects = len(history.entries), 2, 3
    puts, gets = entries + commits * (objects + 1), commits * objects
    assert summary.total.requests_usd == puts * Decimal("0.000005") + gets * Decimal("0.0000004")


def test_a_packed_set_up_is_stored_once_and_read_by_those_that_unpack_it():
    history = History()
    for how in ("run", "run", "unpacked"):  # the second one made it anew: the first was lost before it was stored
        launch = history.launch()
        history.record(launch)
        history.start(launch, setup=SetUp(seconds=9, how=how, packed_bytes=10**12))
        history.after(3600).gone(launch)
    total = summary_of(history).total

    assert abs(total.storage_usd - 3 * STORAGE.usd_per_gb_month * 1000 / 730) < Decimal("1e-8")
    facts = Facts(history.state, spec(), World(offerings=(), instances=()), history.now)
    assert storage_reserve(facts) == STORAGE.usd_per_gb_month * 1000
    objects = 29_803 + 1  # 32 MiB each, and the list of them
    puts, gets = len(history.entries) + 2 * objects, objects
    assert total.requests_usd == puts * Decimal("0.000005") + gets * Decimal("0.0000004")


def test_on_demand_and_spot_dollars_are_separate():
    history = History(FREE_STORAGE)
    first = history.running()
    history.after(100).gone(first, EndedBy.CLOUD)
    history.running(ON_DEMAND, "3.6")
    history.after(100)
    total = summary_of(history).total
    assert total.spot_usd == Decimal("0.0001") * 190
    assert total.on_demand_usd == Decimal("0.001") * 190


def test_an_attempt_that_gives_up_ends_in_a_run_that_failed():
    history = History()
    history.running()
    history.after(10).ended(Cause.USER_ERROR)
    history.after(1).write(RunStopped(reason="no use"))
    assert summary_of(history).state == "stopped"
    assert summary_of(history).total.interruptions == 0


def test_instance_with_an_unknown_price_is_reported_as_missing_from_the_bill():
    history = History()
    history.running()
    assert "UNKNOWN PRICE" not in summary_of(history).assumptions
    unpriced = fold(without_prices(history.entries))
    assert "UNKNOWN PRICE of 1 instance" in summarise(unpriced, history.now).assumptions


def test_an_end_that_tells_no_price_leaves_the_one_that_was_recorded():
    history = History()
    history.after(600).gone(history.running(), EndedBy.FAULT, never_ran=True)
    assert summary_of(history).total.spot_usd > 0
    assert "UNKNOWN PRICE" not in summary_of(history).assumptions


def without_prices(entries: list[Entry]) -> list[Entry]:
    return [
        replace(entry, event=replace(entry.event, prices=())) if isinstance(entry.event, LaunchRecorded) else entry
        for entry in entries
    ]


def test_a_long_run_is_summed_up_quickly_and_epoch_by_epoch():
    history = History()
    history.running()
    for number in range(1, 1001):
        history.step += 1
        if number % 10 == 0:
            history.epoch(number // 10 - 1)
        history.after(30).commit(taken_s_ago=3, stall_s=0.2)

    began = time.process_time()
    summary = summary_of(history)

    assert time.process_time() - began < 2
    assert len(summary.epochs) == 100
    assert summary.epochs[3].productive == timedelta(seconds=300 - 10 * 0.2)


# -- properties --------------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@quickly
@given(random_runs(), st.integers(0, 60))
def test_folds_split_anywhere_give_the_same_account(history: History, cut: int):
    in_two = fold(history.entries[cut:], start=fold(history.entries[:cut]) if cut else None)
    assert in_two == history.state
    assert summarise(in_two, history.now) == summarise(fold(history.entries), history.now)


@pytest.mark.exhaustive
@quickly
@given(random_runs(), st.integers(0, 500))
def test_the_epochs_and_the_rest_sum_to_the_total_exactly(history: History, later: int):
    check_sums(summarise(history.state, history.now + timedelta(seconds=later)))


@pytest.mark.exhaustive
@quickly
@given(random_runs())
def test_the_account_of_each_completed_epoch_ends_at_its_last_finish(history: History):
    last = {each.event.epoch: each.event.ended_at for each in history.entries if isinstance(each.event, EpochCompleted)}
    found = completed_epochs(history.state)
    assert [at for _, at in found] == [last[epoch] for epoch, _ in found]
    assert [epoch.epoch for epoch in summary_of(history).epochs] == list(range(len(found)))


@pytest.mark.exhaustive
@quickly
@given(random_runs(skewed=True))
def test_the_sums_hold_although_the_writers_clocks_disagree(history: History):
    check_sums(summary_of(history))
    check_timeline(history.state, timeline(history.state, history.now), history.now)
    ends = [START, *(at for _, at in completed_epochs(history.state))]
    assert ends == sorted(ends)


def check_sums(summary: RunSummary) -> None:
    parts = [*summary.epochs, summary.rest]
    for figure in ("cost_usd", "spot_usd", "on_demand_usd", "storage_usd", "requests_usd", "egress_usd",
                   "counterfactual_usd", "interruptions", "steps_redone"):  # fmt: skip
        values = [getattr(part, figure) for part in parts]
        assert all(value >= 0 for value in values), (figure, values)
        assert sum(values) == getattr(summary.total, figure), figure
    assert sum((part.paid for part in parts), timedelta(0)) == summary.total.paid
    assert all(part.paid >= timedelta(0) for part in parts)
    for kind in Activity:
        assert sum((part.times[kind] for part in parts), timedelta(0)) == summary.total.times[kind], kind
    assert sum((part.wall for part in parts), timedelta(0)) == summary.total.wall


@pytest.mark.exhaustive
@quickly
@given(random_runs(), st.integers(0, 500))
def test_each_instant_is_exactly_one_kind(history: History, later: int):
    now = history.now + timedelta(seconds=later)
    check_timeline(history.state, timeline(history.state, now), now)


def check_timeline(state: RunState, spans: tuple[Span, ...], now: datetime) -> None:
    moments = [state.created_at, *(span.end for span in spans)]
    assert [span.start for span in spans] == moments[:-1]
    assert all(span.start < span.end for span in spans)
    assert moments[-1] == account_end(state, now)


@pytest.mark.exhaustive
@quickly
@given(random_runs())
def test_wall_time_is_the_time_from_creation_to_the_end_without_the_pauses(history: History):
    state = history.state
    paused = sum((pause.until - pause.since for pause in state.pauses), timedelta(0))
    total = summary_of(history).total
    assert total.wall == account_end(state, history.now) - START - paused
    assert total.wall == total.productive + sum((total.times[kind] for kind in DOWNTIME), timedelta(0))


def test_an_instance_that_ended_as_its_bill_began_is_counted_once():
    history = History()
    launch = history.launch(ON_DEMAND, "3.6")
    history.record(launch)
    history.gone(launch, EndedBy.USER, ended_at=history.now)
    billed = history.state.launches[launch].meter(history.state.created.billing).cost_until(history.after(60).now)
    assert summary_of(history).total.on_demand_usd == billed > 0


@pytest.mark.exhaustive
@quickly
@given(random_runs())
def test_the_instances_bill_is_what_their_meters_say(history: History):
    state = history.state
    metered = sum(launch.meter(state.created.billing).cost_until(history.now) for launch in state.launches.values())
    total = summary_of(history).total
    assert total.spot_usd + total.on_demand_usd == metered


@pytest.mark.exhaustive
@quickly
@given(random_runs(), st.integers(1, 5000))
def test_a_run_that_has_ended_keeps_its_account(history: History, later: int):
    """But for what an instance that is still there costs."""
    state = history.state
    if state.terminal is None or any(one.recorded and one.gone is None for one in state.launches.values()):
        return
    assert summarise(state, history.now) == summarise(state, history.now + timedelta(seconds=later))


@pytest.mark.exhaustive
@quickly
@given(histories())
def test_training_is_only_ever_told_of_an_attempt(entries: list[Entry]):
    state = fold(entries)
    kinds = {Activity.PRODUCTIVE, Activity.REWORK, Activity.STALL, Activity.RESTORE}
    for span in timeline(state, max(entry.at for entry in entries)):
        assert (span.attempt in state.attempts) if span.kind in kinds else True
