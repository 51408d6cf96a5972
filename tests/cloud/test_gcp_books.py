"""
The ledger of a run on Google Cloud, and what its project was charged: runners that were away for a week, machines whose
clock is off, lists that are late, and an API that sees a guest's death minutes after it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

import pytest

from spotrun.account.unseen_ends import cost_ranges
from spotrun.run import events as ev
from spotrun.run.events import Entry
from tests.support.gce_answers import forbidden
from tests.support.gce_calls import wished
from tests.support.gce_supply import SPOT
from tests.support.gce_vm import Vm
from tests.support.memory_run import UID
from tests.support.plain_gcp_run import PlainGcpRun
from tests.support.plain_run import PASS_S

WEEK_S = 7 * 86_400.0
HEARTBEATS_APART_S = 600.0
LATE = timedelta(seconds=60)
A, B, C = "us-central1-a", "us-central1-b", "us-central1-c"
L4 = "g2-standard-4"


@pytest.fixture(params=["spot", "on-demand"])
def run(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> PlainGcpRun:
    """It trains, and has done so for a minute."""
    run = PlainGcpRun(monkeypatch, spot_policy=request.param)
    assert run.trains_within(60)
    run.goes_on(60)
    return run


def comes_back(run: PlainGcpRun) -> ev.InstanceGone:
    """The runner that was away for a week sees what the ledger says of the instance that trained."""
    run.is_alone(WEEK_S, HEARTBEATS_APART_S)
    run.goes_on(300)  # an agent has some minutes to be heard again
    gone = next(iter(run.state.launches.values())).gone
    assert gone is not None
    return gone


@pytest.fixture(params=[True, False], ids=["operations are kept", "operations are forgotten"])
def remembers(request: pytest.FixtureRequest, run: PlainGcpRun) -> bool:
    """Google keeps operations for some days, and does not say for how many."""
    if not request.param:
        run.google.project.operations.kept = timedelta(days=1)
    return bool(request.param)


# -- a week without a runner -------------------------------------------------------------------------------------------


def test_a_week_in_which_its_time_to_live_ended_it_is_billed_as_it_was_charged(
    run: PlainGcpRun, remembers: bool
) -> None:
    gone = comes_back(run)
    assert bool(gone.bounded_by) is not remembers
    assert run.misbooked() == []


def test_a_week_in_which_it_completed_and_powered_off_is_billed_with_its_disk(
    run: PlainGcpRun, remembers: bool
) -> None:
    """Nothing that Google does ends the disk of what has switched itself off. The runner that is back does."""
    run.is_alone(3000, HEARTBEATS_APART_S)
    run.completes()
    run.is_alone(WEEK_S, HEARTBEATS_APART_S)
    assert run.account.left != []
    assert run.ends_within(300)
    assert run.misbooked() == []
    assert run.left_behind == []


@pytest.mark.parametrize("run", ["on-demand"], indirect=True)
def test_a_week_in_which_it_hung_until_its_time_to_live_is_billed_as_it_was_charged(
    run: PlainGcpRun, remembers: bool
) -> None:
    run.is_hung = True
    hung_at = run.clock.now()
    gone = comes_back(run)
    assert gone.bounded_by == ("" if remembers else "its time-to-live")
    assert run.misbooked() == []
    assert remembers or (gone.stopped_at is not None and gone.stopped_at <= hung_at)


@pytest.mark.parametrize("run", ["spot"], indirect=True)
def test_spot_that_was_taken_without_a_word_in_a_week_is_billed_up_to_its_last_heartbeat(
    run: PlainGcpRun, remembers: bool
) -> None:
    run.is_alone(2 * 3600.0, HEARTBEATS_APART_S)
    run.is_interrupted()
    assert comes_back(run).bounded_by == ("" if remembers else "its last heartbeat")
    heartbeat_usd = 0.42 * HEARTBEATS_APART_S / 3600
    (ended, charged_usd), *_ = run.account.charged_usd.items()
    within_usd = charged_usd / 100 if remembers else heartbeat_usd
    assert abs(run.booked_usd[ended] - charged_usd) <= within_usd


@pytest.mark.parametrize("run", ["spot"], indirect=True)
def test_spot_that_hung_in_a_week_cost_an_amount_in_the_ledgers_range(run: PlainGcpRun, remembers: bool) -> None:
    """What has hung looks like what was taken, and its machine ran until its time-to-live was over."""
    run.is_hung = True
    comes_back(run)
    (charged_usd, *_) = run.account.charged_usd.values()
    held = [each.least_usd <= Decimal(charged_usd) <= each.most_usd for each in cost_ranges(run.state)]
    assert held == ([] if remembers else [True])


# -- machines that ended long before their disks -----------------------------------------------------------------------

HISTORY = "compute.advice.capacityHistory"
DAY_S = 86_400.0


def powers_off(run: PlainGcpRun, vm: Vm) -> None:
    run.google.project.power_off(vm.name)


def is_stopped(run: PlainGcpRun, vm: Vm) -> None:
    run.google.project.stop(vm, "a user")


def has_a_bad_host(run: PlainGcpRun, vm: Vm) -> None:
    run.google.project.host_error(vm.name)


ENDS = [powers_off, is_stopped, has_a_bad_host]
"""What leaves a disk: https://cloud.google.com/compute/docs/instances/instance-lifecycle."""


@pytest.fixture(params=["on-demand", "spot"])
def unpriced(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> PlainGcpRun:
    """A run of whose instances no later driver knows a price: on demand, or spot whose history may not be read."""
    run = PlainGcpRun(monkeypatch, spot_policy=request.param)
    denied = forbidden(HISTORY, "projects/acme-training")
    run.google.fault = lambda call: denied if call == HISTORY else None
    return run


def is_deleted_by_hand(run: PlainGcpRun, vm: Vm) -> None:
    """By the console, days later; and then a runner comes that has never seen the instance."""
    run.clock.advance(2 * DAY_S)
    run.google.project.settle()
    run.google.project.delete(vm, "a user", None)
    run.clock.advance(60)
    run.runner = run.new_runner()
    run.goes_on(30)


@pytest.mark.parametrize("end", ENDS)
def test_machine_is_billed_until_its_own_end_and_the_disk_until_it_is_deleted(
    unpriced: PlainGcpRun, end: Callable[[PlainGcpRun, Vm], None]
) -> None:
    run = unpriced
    assert run.trains_within(60)
    run.goes_on(60)
    (name,) = run.account.alive
    vm = run.google.project.vm(name)
    run.clock.advance(1800)
    run.google.project.settle()
    end(run, vm)
    is_deleted_by_hand(run, vm)
    gone = next(iter(run.state.launches.values())).gone
    assert gone is not None
    assert gone.bounded_by == ""
    assert [each for each in run.misbooked() if name in each] == []
    assert run.booked_usd[name] < 1.5


def test_machine_whose_start_no_runner_has_seen_is_billed_at_the_price_of_its_launch(unpriced: PlainGcpRun) -> None:
    run = unpriced
    run.goes_on(5)  # its runner dies right after the launch
    (name,) = (vm.name for vm in run.google.project.vms.values())
    vm = run.google.project.vm(name)
    assert [each.recorded for each in run.state.launches.values()] == [None]
    run.clock.advance(1800)
    powers_off(run, vm)
    is_deleted_by_hand(run, vm)
    assert [each for each in run.misbooked() if name in each] == []
    assert run.booked_usd[name] < 1.5


@pytest.mark.parametrize("run", ["spot"], indirect=True)
@pytest.mark.parametrize("powers_itself_off", [False, True], ids=["taken", "off"])
def test_price_that_changed_since_prices_were_read_is_booked(run: PlainGcpRun, powers_itself_off: bool) -> None:
    """A runner reads prices each hour, and Google changes them at midnight in California."""
    run.clock.advance(600)
    run.google.project.price(L4, "us-central1", Decimal("0.84"), run.clock.now())
    run.clock.advance(1800)
    if powers_itself_off:
        run.completes()
    else:
        run.is_interrupted()
    run.goes_on(180)
    assert run.misbooked() == []


@pytest.mark.parametrize("run", ["spot"], indirect=True)
def test_price_that_changed_while_no_runner_was_there_is_booked(run: PlainGcpRun, remembers: bool) -> None:
    run.is_alone(6 * 3600.0, HEARTBEATS_APART_S)
    run.google.project.price(L4, "us-central1", Decimal("0.84"), run.clock.now())
    assert bool(comes_back(run).bounded_by) is not remembers
    assert run.misbooked() == []


# -- clocks, and lists -------------------------------------------------------------------------------------------------


def lives(run: PlainGcpRun) -> list[Entry]:
    """It trains, loses spot, goes on on demand as there is no other, and completes; all its entries but commits."""
    assert run.trains_within(240)
    run.goes_on(60)
    run.clock.advance(1800)
    run.google.project.price(L4, "us-central1", Decimal("0.55"), run.clock.now())
    run.goes_on(60)
    run.clock.advance(1800)
    run.goes_on(60)
    for zone in (A, B, C):
        run.google.project.stock_out(zone, L4, SPOT)
    run.is_interrupted()
    assert run.trains_within(1000)
    run.goes_on(120)
    run.clock.advance(1800)
    run.goes_on(60)
    run.completes()
    assert run.ends_within(240)
    assert run.misbooked() == []
    assert run.left_behind == []
    return [entry for entry in run.entries if not isinstance(entry.event, ev.CheckpointCommitted)]


def decisions(entries: list[Entry]) -> list[tuple[str, str]]:
    return [(ev.kind(entry.event), str(getattr(entry.event, "offering", ""))) for entry in entries]


@pytest.fixture(scope="module")
def right() -> list[Entry]:
    """The entries with exact clocks, and lists that are up to date."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        return lives(PlainGcpRun(monkeypatch, ahead=timedelta()))


@pytest.mark.parametrize("minutes", [-4.0, 4.0])
def test_p30_a_clock_that_is_off_bends_neither_bill_nor_decisions(
    monkeypatch: pytest.MonkeyPatch, right: list[Entry], minutes: float
) -> None:
    wrong = lives(PlainGcpRun(monkeypatch, ahead=timedelta(minutes=minutes)))
    assert decisions(wrong) == decisions(right)
    apart = [abs(one.at - other.at) for one, other in zip(wrong, right, strict=True)]
    assert max(apart) <= timedelta(seconds=PASS_S + 1)


@pytest.mark.parametrize("minutes", [0.0, *(pytest.param(each, marks=pytest.mark.nightly) for each in (-4.0, 4.0))])
def test_lists_that_are_a_minute_late_bend_neither_bill_nor_decisions(
    monkeypatch: pytest.MonkeyPatch, right: list[Entry], minutes: float
) -> None:
    late = PlainGcpRun(monkeypatch, ahead=timedelta(minutes=minutes))
    late.google.stale = LATE
    assert decisions(lives(late)) == decisions(right)


@pytest.mark.parametrize("label", ["spotrun-nano-usd-per-hour", "spotrun-launch", "spotrun-cpus"])
def test_p31_odd_labels_of_a_foreign_instance_change_no_decision(
    monkeypatch: pytest.MonkeyPatch, right: list[Entry], label: str
) -> None:
    run = PlainGcpRun(monkeypatch, ahead=timedelta())
    labels = {"spotrun-run": UID[::-1], label: "nan"}
    plain = {"provisioningModel": "STANDARD", "onHostMaintenance": "MIGRATE"}
    run.google.project.insert(B, wished("foreign", "e2-medium", plain, labels=labels), "somebody", None)
    run.google.foreign.add("foreign")
    assert decisions(lives(run)) == decisions(right)
