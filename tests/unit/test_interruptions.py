"""What each interruption and other loss of steps cost: worked by hand, and held against the account for any run."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from io import StringIO

import pytest
from hypothesis import HealthCheck, given, settings
from rich.console import Console

from spotrun.account.losses import Loss
from spotrun.account.summary import summarise
from spotrun.instance import EndedBy
from spotrun.report import machine_readable, terminal
from spotrun.report.html import listings
from spotrun.run.events import Cause, InstanceCondemned, ResumeRequested, RunStopped, StopRequested
from tests.support.histories import START, History, random_runs


def told(history: History) -> tuple[Loss, ...]:
    return summarise(history.state, history.now).losses


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def test_a_loss_without_notice_says_how_late_it_was_found_and_what_it_undid() -> None:
    history = History()
    launch = history.running()  # trains from 100
    history.step = 10
    history.after(100).commit(taken_s_ago=30)  # taken at 170
    history.step = 15
    history.after(50)  # lost at 250, and found 8 s later
    history.after(8).gone(launch, ended_at=START + seconds(250), last_step=15)
    (before,) = told(history)
    history.after(12).running()  # from 270; trains from 370

    (after,) = told(history)

    assert (after.attempt, after.offering.zone, after.at) == (3, "local-a", START + seconds(250))
    assert (after.notice_lead, after.detection, after.commit_age) == (None, seconds(8), seconds(80))
    assert (after.steps_lost, after.to_first_step) == (5, seconds(120))
    assert (before.commit_age, before.steps_lost, before.to_first_step) == (seconds(80), 0, None)


def test_a_notice_that_was_used_loses_no_step_and_is_found_at_once() -> None:
    history = History()
    first = history.running()
    history.after(200).notice()  # at 300: until 420
    history.step = 50
    final = history.after(40).commit(taken_s_ago=4, final=True)  # taken at 336
    history.drained(final, stopped_s_ago=4)
    history.after(70).gone(first)
    history.running()  # from 410; trains from 510

    (found,) = told(history)

    assert (found.at, found.notice_lead, found.detection) == (START + seconds(336), seconds(120), seconds(0))
    assert (found.commit_age, found.steps_lost, found.to_first_step) == (seconds(0), 0, seconds(174))


def test_rework_covers_a_run_without_a_commit_and_excludes_the_pause_of_a_stopped_one() -> None:
    history = History()
    history.step = 7
    launch = history.running()
    history.after(60).gone(launch, last_step=7)  # at 160
    history.after(5).write(StopRequested(by="me"))
    history.write(RunStopped(reason="as requested"))
    history.after(1000).write(ResumeRequested(by="me"))
    history.after(5).running()

    (found,) = told(history)

    assert (found.commit_age, found.steps_lost) == (None, 7)
    assert found.to_first_step == seconds(5 + 5 + 100)


def test_steps_are_lost_by_the_attempt_that_trained_and_not_by_one_that_was_lost_before_it_did() -> None:
    history = History()
    launch = history.running()
    history.step = 7
    history.after(60).gone(launch, last_step=7)
    second = history.launch()
    history.after(10).record(second)
    history.after(50).start(second, history.now)
    history.after(5).gone(second)
    history.after(5).running()
    assert [each.steps_lost for each in told(history)] == [7, 0]
    assert summarise(history.state, history.now).total.steps_redone == 7


def test_an_end_without_an_interruption_has_no_row_unless_it_cost_steps() -> None:
    history = History()
    history.gone(history.running(), EndedBy.USER)
    assert told(history) == ()
    history.running()
    assert told(history) == ()


@pytest.mark.parametrize("by", [EndedBy.FAULT, EndedBy.USER, EndedBy.ITSELF, EndedBy.TIME_TO_LIVE])
def test_loss_of_steps_to_a_broken_or_cancelled_machine_names_who_ended_it(by: EndedBy) -> None:
    history = History()
    launch = history.running()
    history.step = 10
    history.after(100).commit(taken_s_ago=30)  # taken at 170
    history.after(50).gone(launch, by, last_step=15)  # at 250
    history.after(20).running()  # trains from 370
    (found,) = told(history)
    assert (found.cause, found.steps_lost, found.at) == (by, 5, START + seconds(250))
    assert (found.commit_age, found.to_first_step) == (seconds(80), seconds(120))
    assert summarise(history.state, history.now).total.interruptions == 0


def test_loss_of_steps_to_a_silent_agent_is_a_hang() -> None:
    history = History()
    launch = history.running()
    history.write(InstanceCondemned(launch=launch, cause=Cause.HANG, detail="its agent is silent"))
    history.after(10).gone(launch, EndedBy.USER, last_step=9)
    history.running()
    assert [(each.cause, each.steps_lost) for each in told(history)] == [(Cause.HANG, 9)]


def test_script_that_fails_loses_its_steps_at_each_restart_and_at_the_end_of_its_attempt() -> None:
    history = History()
    launch = history.running()  # trains from 100
    history.step = 7
    history.after(60).exited(Cause.OUT_OF_MEMORY)  # at 160
    history.resume()
    history.after(12).training()
    history.step = 9
    history.after(60).ended(Cause.HANG)  # at 232
    history.after(5).gone(launch, EndedBy.ITSELF)
    history.running()  # trains from 337
    first, second = told(history)
    assert (first.cause, first.steps_lost, first.at) == (Cause.OUT_OF_MEMORY, 7, START + seconds(160))
    assert (first.to_first_step, first.detection, first.notice_lead) == (seconds(12), seconds(0), None)
    assert (second.cause, second.steps_lost, second.at) == (Cause.HANG, 9, START + seconds(232))
    assert summarise(history.state, history.now).total.steps_redone == 16


def test_report_shows_the_cause_of_a_loss_if_one_is_no_interruption() -> None:
    history = History()
    for by in (EndedBy.CLOUD, EndedBy.FAULT):
        history.gone(history.running(), by, last_step=7)
    history.running()
    summary = summarise(history.state, history.now)
    console = Console(file=StringIO(), width=80)
    terminal.show(summary, console)
    assert "Interruptions and other losses" in console.file.getvalue()
    assert [terminal.loss_texts(summary, each)[1] for each in summary.losses] == ["interrupted", "fault"]
    told = machine_readable.report(summary)
    assert [each["cause"] for each in told["interruptions"]] == ["interrupted"]
    assert [(each["cause"], each["steps_lost"]) for each in told["other_losses"]] == [("fault", 7)]
    assert ">cause<" in listings.losses(summary).text
    assert ">cause<" not in listings.losses(replace(summary, losses=summary.losses[:1])).text


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(random_runs())
def test_they_are_those_that_the_account_counts(history: History) -> None:
    total = summarise(history.state, history.now).total
    found = told(history)
    assert [each.cause for each in found].count(Cause.INTERRUPTED) == total.interruptions
    assert sum(each.steps_lost for each in found) == total.steps_redone
    nothing = timedelta(0)
    for each in found:
        assert each.detection >= nothing
        assert all(time is None or time >= nothing for time in (each.commit_age, each.to_first_step, each.notice_lead))
