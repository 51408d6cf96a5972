"""Instances that ended while no runner was there, and that the cloud no longer lists when one is back."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from spotrun.account.summary import summarise
from spotrun.account.unseen_ends import cost_ranges
from spotrun.bill import aws
from spotrun.bill.reconcile import Reason, Reconciliation, line_filter, reconcile
from spotrun.folder import poll_throttle
from spotrun.instance import EndedBy
from spotrun.market.world import World
from spotrun.policy import finished
from spotrun.policy.unobserved_terminations import POWER_OFF_GRACE
from spotrun.report import compare, machine_readable
from spotrun.run import events as ev
from spotrun.run.billing import gcp_rule, hourly
from spotrun.run.events import Cause
from tests.support.bills import Billed, billed, cost_and_usage_rows, write_csv
from tests.support.decisions import decided, events_of
from tests.support.histories import AWS_RULE, SPOT, History, offering
from tests.support.played_run import PlayedRun

AWAY = timedelta(days=5)
GCP_RULE = gcp_rule(100, ["us-central1"])


def seen_later(history: History, launch: int, heard_at: datetime | None = None) -> ev.InstanceGone:
    """What is written of its end by the runner that comes back."""
    history.after(AWAY.total_seconds())
    heard = {} if heard_at is None else {launch: heard_at}
    silent = {} if heard_at is None else {launch: history.now - heard_at}
    (gone, *_) = events_of(decided(history, heard=heard, silent=silent))
    assert isinstance(gone, ev.InstanceGone)
    history.write(gone)
    return gone


def test_last_heartbeat_bounds_an_unobserved_end() -> None:
    history = History()
    launch = history.running()
    heard_at = history.after(300).now
    gone = seen_later(history, launch, heard_at)
    assert (gone.ended_at, gone.bounded_by) == (heard_at, "its last heartbeat")
    assert "estimated from its last heartbeat" in gone.evidence
    assert history.state.settled_usd == Decimal("0.039")  # 390 s at $0.36 an hour; five days would be $43.24


def test_a_commit_after_the_last_heartbeat_is_a_sign_of_life_too() -> None:
    history = History()
    launch = history.running()
    heard_at = history.now
    committed_at = history.after(20).now
    history.commit()
    assert seen_later(history, launch, heard_at).ended_at == committed_at


def test_the_end_of_its_attempt_bounds_it_if_no_heartbeat_was_ever_stored() -> None:
    history = History()
    launch = history.running()
    history.after(100).ended(Cause.STOPPED)
    over_at = history.now + POWER_OFF_GRACE
    gone = seen_later(history, launch)
    assert (gone.ended_at, gone.bounded_by) == (over_at, "the end of its attempt")


def test_an_instance_that_said_so_and_had_time_to_go_is_gone_at_once_where_its_cloud_has_forgotten_it() -> None:
    """A cluster may forget a job within minutes, or with its controller."""
    history = History()
    launch = history.running()
    heard_at = history.after(100).now
    history.ended(Cause.STOPPED)
    history.after(POWER_OFF_GRACE.total_seconds())
    assert [each for each in _decided(history, launch, heard_at) if isinstance(each, ev.InstanceGone)] == []
    history.after(1)
    (gone,) = (each for each in _decided(history, launch, heard_at) if isinstance(each, ev.InstanceGone))
    assert (gone.ended_at, gone.bounded_by) == (heard_at, "its last heartbeat")


def _decided(history: History, launch: int, heard_at: datetime) -> list[ev.AnyEvent]:
    return events_of(decided(history, heard={launch: heard_at}, silent={launch: history.now - heard_at}))


def test_time_to_live_bounds_an_end_without_any_heartbeat() -> None:
    history = History()
    launch = history.launch()
    history.record(launch)
    billed_from = history.now
    history.after(60).close(launch, Cause.EXTERNAL)
    gone = seen_later(history, launch)
    assert (gone.ended_at, gone.bounded_by) == (billed_from + timedelta(days=1), "its time-to-live")


def test_no_end_is_before_its_beginning_whatever_the_clocks_say() -> None:
    history = History()
    launch = history.launch()
    history.record(launch)
    billed_from = history.now
    history.close(launch, Cause.EXTERNAL)
    gone = seen_later(history, launch, billed_from - timedelta(minutes=4))
    assert gone.ended_at == billed_from


@pytest.mark.parametrize(("lived_on_s", "by", "usd"), [(118, EndedBy.CLOUD, 0.0), (25, EndedBy.FAULT, 0.0115)])
def test_instance_alive_at_its_notice_deadline_was_ended_by_the_cloud(
    lived_on_s: float, by: EndedBy, usd: float
) -> None:
    """EC2 does not charge for what it takes in the first hour; what powers off before is charged."""
    history = History(billing=AWS_RULE)
    launch = history.running()
    history.notice()
    history.after(20).drained(None)
    gone = seen_later(history, launch, history.now + timedelta(seconds=lived_on_s - 20))
    assert gone.ended_by is by
    attached = AWS_RULE.attached_usd_per_hour * Decimal(90 + lived_on_s) / 3600
    assert float(history.state.settled_usd - attached) == pytest.approx(usd, abs=1e-6)


def test_a_runner_that_was_away_for_five_days_bills_up_to_the_last_heartbeat() -> None:
    played = PlayedRun()
    runner = played.runner()
    for _ in range(8):
        played.turn()
        runner.tick()
    here = played.training_on()
    assert here is not None
    for _ in range(3):
        played.turn()
    heard_at = played.clock.now()
    played.clock.advance(5)
    played.cloud.end(here.instance_id, EndedBy.FAULT)
    played.clock.advance(AWAY.total_seconds())
    played.cloud.forget(here.instance_id)
    back = played.runner()
    for _ in range(12):
        back.tick()
        played.clock.advance(poll_throttle.EVERY_S)
    gone = played.state.launches[here.launch].gone
    assert gone is not None
    assert (gone.ended_at, gone.bounded_by) == (heard_at, "its last heartbeat")


def test_instance_that_no_list_ever_showed_is_billed_by_the_reports_of_its_agent() -> None:
    """Its runner died right after the launch, and the cloud has forgotten the instance."""
    history = History()
    launch = history.launch()
    booted_at = history.after(40).now
    history.start(launch, booted_at)
    heard_at = history.after(600).now
    gone = seen_later(history, launch, heard_at)
    assert (gone.instance_id, gone.billed_from) == (f"i-{launch}", booted_at)
    assert (gone.ended_at, gone.bounded_by) == (heard_at, "its last heartbeat")
    assert history.state.settled_usd == Decimal("0.06")  # 600 s at $0.36 an hour


def test_run_is_not_finished_while_the_end_of_an_instance_that_trained_is_unknown() -> None:
    history = History()
    history.start(history.launch(), history.now)
    history.resume()
    history.completed(None)
    assert not finished(history.state, World(offerings=(), instances=()))
    history.gone(1, EndedBy.ITSELF)
    assert finished(history.state, World(offerings=(), instances=()))


@pytest.mark.parametrize("rule", [AWS_RULE, GCP_RULE], ids=["aws", "gcp"])
def test_cost_of_an_end_that_no_runner_saw_lies_between_its_last_sign_and_its_time_to_live(
    rule: ev.BillingRule,
) -> None:
    history = History(billing=rule)
    launch = history.running()
    began = history.state.launches[launch].billed_from
    assert began is not None
    heard_at = history.after(300).now
    seen_later(history, launch, heard_at)
    (found,) = cost_ranges(history.state)
    machine = hourly(Decimal("0.36"), heard_at - began)
    attached = history.state.launches[launch].meter(rule).cost_until(heard_at) - machine
    is_free = rule is AWS_RULE
    assert found.may_be_free is is_free, "EC2 does not charge for what it takes in the first hour"
    assert found.booked_usd == machine + attached
    assert found.least_usd == attached + (0 if is_free else machine)
    days = (history.now - began) / timedelta(days=1)
    disk, address = rule.volume_usd_per_hour, rule.attached_to(offering(SPOT)).address_usd_per_hour
    longest = 24 * (Decimal("0.36") + address) + disk * 24 * Decimal(days)
    assert float(found.most_usd) == pytest.approx(float(longest), rel=1e-6)
    summary = summarise(history.state, history.now)
    assert "no runner saw the end of 1 instance: the run cost $" in summary.assumptions
    shown = machine_readable.report(summary)
    rest_usd = summary.total.cost_usd - found.booked_usd
    assert Decimal(shown["least_usd"]) == rest_usd + found.least_usd
    assert Decimal(shown["most_usd"]) == rest_usd + found.most_usd
    history.corrected(launch, heard_at + timedelta(seconds=60))
    known = summarise(history.state, history.now)
    assert "least_usd" not in machine_readable.report(known)
    assert [each["most_usd"] for each in compare.as_json([summary, known])["runs"]] == [shown["most_usd"], None]
    assert [*cost_ranges(history.state)] == [], "the bill has said"


@pytest.mark.parametrize("is_late", [False, True])
def test_launch_of_which_no_list_came_in_time_may_have_cost_its_whole_time_to_live(is_late: bool) -> None:
    history = History()
    launch = history.launch()
    history.after(AWAY.total_seconds() if is_late else 1250).close(launch, Cause.CAPACITY, answered=False)
    history.write(*events_of(decided(history)))
    found = [(each.least_usd, each.booked_usd, each.most_usd) for each in cost_ranges(history.state)]
    assert found == ([(0, 0, Decimal("86.4"))] if is_late else [])  # a day at $3.60 an hour at most


# -- the cloud's bill, which comes later -----------------------------------------------------------------------------


def reconciled(history: History, lines: list[Billed], folder: Path) -> Reconciliation:
    path = write_csv(folder / "cur.csv", cost_and_usage_rows(lines))
    statement = aws.read_cost_and_usage_report([path], line_filter(history.state))
    return reconcile(history.state, statement, history.now)


@pytest.mark.parametrize("lived_on_s", [-60, 1800])
def test_a_bill_that_knows_the_end_explains_the_difference(tmp_path: Path, lived_on_s: float) -> None:
    history, truth = History(), History()
    for each in (history, truth):
        launch = each.running()
    heard_at = history.after(1000).now
    truth.now = heard_at + timedelta(seconds=lived_on_s)
    truth.gone(launch, EndedBy.FAULT)
    seen_later(history, launch, heard_at)
    found = reconciled(history, billed(truth), tmp_path)
    assert found.unexplained == ()
    (part,) = [each for each in found.parts if each.reason is Reason.UNSEEN_END]
    assert float(part.usd) == pytest.approx(lived_on_s * 0.36 / 3600, abs=0.001)


def test_a_bill_for_longer_than_its_time_to_live_is_not_explained(tmp_path: Path) -> None:
    history, truth = History(), History()
    for each in (history, truth):
        launch = each.running()
    truth.after(2 * 86_400).gone(launch, EndedBy.FAULT)
    seen_later(history, launch, history.after(1000).now)
    assert reconciled(history, billed(truth), tmp_path).unexplained != ()
