"""
The ledger of a run on AWS, and what its account was charged: runners that were away for a week, machines whose clock is
off, and lists that are stale.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from spotrun.clouds.aws.description import instance_of
from spotrun.instance import InstanceState
from spotrun.run import events as ev
from spotrun.run.events import Entry
from tests.support.plain_aws import REGION, TYPE
from tests.support.plain_aws_run import PlainAwsRun
from tests.support.plain_run import BEGAN_AT, PASS_S

WEEK_S = 7 * 86_400.0
HEARTBEATS_APART_S = 600.0
STALE = timedelta(seconds=60)


@pytest.fixture(params=["spot", "on-demand"])
def run(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> PlainAwsRun:
    """It trains, and has done so for a minute."""
    run = PlainAwsRun(monkeypatch, spot_policy=request.param)
    assert run.trains_within(60)
    run.goes_on(60)
    return run


def comes_back(run: PlainAwsRun) -> ev.InstanceGone:
    """The runner that was away for a week sees what the ledger says of the instance that trained."""
    run.is_alone(WEEK_S, HEARTBEATS_APART_S)
    run.goes_on(300)  # an agent has some minutes to be heard again
    gone = next(iter(run.state.launches.values())).gone
    assert gone is not None
    assert gone.bounded_by, "EC2 lists it no longer"
    return gone


def test_a_week_in_which_it_completed_and_powered_off_is_billed_as_it_was_charged(run: PlainAwsRun) -> None:
    run.is_alone(3000, HEARTBEATS_APART_S)
    run.completes()
    comes_back(run)
    assert run.misbooked() == []
    assert run.left_behind == []


def test_a_week_in_which_its_time_to_live_ended_it_is_billed_as_it_was_charged(run: PlainAwsRun) -> None:
    comes_back(run)
    assert run.misbooked() == []


@pytest.mark.parametrize("frozen", [False, True], ids=["agent", "machine"])
@pytest.mark.parametrize("run", ["on-demand"], indirect=True)
def test_a_week_in_which_it_hung_until_its_time_to_live_is_billed_as_it_was_charged(
    run: PlainAwsRun, frozen: bool
) -> None:
    """A machine that stands still does not power itself off: its guard ends it."""
    assert run.training is not None
    if frozen:
        run.aws.frozen.add(run.training.instance_id)
    run.is_hung = True
    hung_at = run.clock.now()
    gone = comes_back(run)
    assert gone.bounded_by == "its time-to-live"
    assert run.misbooked() == []
    assert gone.stopped_at is not None
    assert gone.stopped_at <= hung_at, "no step is counted for the time in which it hung"


@pytest.mark.parametrize("run", ["spot"], indirect=True)
def test_spot_that_was_taken_without_a_word_in_a_week_is_billed_up_to_its_last_heartbeat(run: PlainAwsRun) -> None:
    run.is_alone(2 * 3600.0, HEARTBEATS_APART_S)
    run.is_interrupted()
    assert comes_back(run).bounded_by == "its last heartbeat"
    run.aws.spot_is_gone = True
    heartbeat_usd = 0.42 * HEARTBEATS_APART_S / 3600
    (ended, charged_usd), *_ = run.aws.charged_usd.items()
    assert abs(run.booked_usd[ended] - charged_usd) <= heartbeat_usd


@pytest.mark.parametrize("run", ["spot"], indirect=True)
def test_instance_that_ec2_forgot_is_billed_at_each_spot_price_of_its_life(run: PlainAwsRun) -> None:
    run.is_alone(6 * 3600.0, HEARTBEATS_APART_S)
    run.aws.spot_costs(0.80)
    comes_back(run)
    run.aws.spot_is_gone = True
    (charged_usd, *_) = run.aws.charged_usd.values()
    assert charged_usd > 6 * 0.40 + 17 * 0.80
    assert run.misbooked() == []


def test_machine_of_an_instance_that_a_user_stopped_costs_nothing_from_then_on() -> None:
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Stop_Start.html: its volumes are charged."""
    row = {
        "InstanceId": "i-1",
        "InstanceType": TYPE,
        "State": {"Name": "stopped"},
        "LaunchTime": BEGAN_AT,
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "StateTransitionReason": "User initiated (2026-06-01 00:30:00 GMT)",
    }
    found = instance_of(row, REGION, (), BEGAN_AT)
    assert (found.state, found.off_since) == (InstanceState.STOPPED, BEGAN_AT + timedelta(minutes=30))


# -- clocks, and lists -------------------------------------------------------------------------------------------------


def lives(run: PlainAwsRun) -> list[Entry]:
    """It trains, loses spot, goes on on demand as there is no other, and completes; all its entries but commits."""
    assert run.trains_within(180)
    run.goes_on(60)
    run.clock.advance(1800)
    run.aws.spot_costs(0.55)
    run.goes_on(60)
    run.clock.advance(1800)
    run.goes_on(60)
    run.aws.spot_is_gone = True
    run.is_interrupted()
    assert run.trains_within(1000)
    run.goes_on(120)
    run.clock.advance(1800)
    run.goes_on(60)
    run.completes()
    assert run.ends_within(180)
    assert run.misbooked() == []
    return [entry for entry in run.entries if not isinstance(entry.event, ev.CheckpointCommitted)]


def decisions(entries: list[Entry]) -> list[tuple[str, str]]:
    return [(ev.kind(entry.event), str(getattr(entry.event, "offering", ""))) for entry in entries]


@pytest.fixture(scope="module")
def right() -> list[Entry]:
    """The entries with exact clocks, and lists that are up to date."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        return lives(PlainAwsRun(monkeypatch, ahead=timedelta()))


@pytest.mark.parametrize("minutes", [-4.0, 4.0])
def test_a_clock_that_is_off_bends_neither_bill_nor_decisions(
    monkeypatch: pytest.MonkeyPatch, right: list[Entry], minutes: float
) -> None:
    wrong = lives(PlainAwsRun(monkeypatch, ahead=timedelta(minutes=minutes)))
    assert decisions(wrong) == decisions(right)
    apart = [abs(one.at - other.at) for one, other in zip(wrong, right, strict=True)]
    assert max(apart) <= timedelta(seconds=PASS_S + 1)


@pytest.mark.parametrize("minutes", [-4.0, 0.0, 4.0])
def test_a_list_that_is_a_minute_old_bends_neither_bill_nor_decisions(
    monkeypatch: pytest.MonkeyPatch, right: list[Entry], minutes: float
) -> None:
    late = PlainAwsRun(monkeypatch, ahead=timedelta(minutes=minutes))
    late.aws.stale = STALE
    assert decisions(lives(late)) == decisions(right)


@pytest.fixture(params=[60, 600], ids=lambda seconds: f"{seconds} s")
def late(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> PlainAwsRun:
    """It trains before EC2's list shows its instance."""
    run = PlainAwsRun(monkeypatch, spot_policy="on-demand")
    run.aws.stale, run.aws.pends = timedelta(seconds=request.param), timedelta(seconds=15)
    run.goes_on(20)
    (row,) = run.aws.rows
    run.boots_on(next(iter(run.state.launches)), row["InstanceId"])
    return run


def _waits_for_the_list_and_books_all(late: PlainAwsRun) -> None:
    late.goes_on(40)
    late.completes()
    late.goes_on(10)
    assert not late.ticks[-1].done
    assert late.ends_within(1500)
    assert late.misbooked() == []
    assert late.left_behind == []


def test_run_that_completes_before_ec2_lists_its_instance_is_booked_and_leaves_no_guard(late: PlainAwsRun) -> None:
    _waits_for_the_list_and_books_all(late)


def test_a_new_runner_waits_too_for_an_instance_whose_agent_has_reported(late: PlainAwsRun) -> None:
    """It has not seen the answer of RunInstances."""
    late.runner = late.new_runner()
    _waits_for_the_list_and_books_all(late)


def test_instance_that_a_stale_list_shows_as_pending_is_billed_from_its_agents_first_report(late: PlainAwsRun) -> None:
    late.goes_on(900)
    late.completes()
    assert late.ends_within(1500)
    assert late.misbooked() == []
    assert late.left_behind == []
