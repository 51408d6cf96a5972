"""
Runs on Google Cloud beside what happens there: another runner, answers that are lost, a zone or a region that is down,
instances of others. No instance is rented twice, none is left, and none that lives is taken for dead.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from tests.support.gce_answers import Refusal
from tests.support.gce_calls import wished
from tests.support.gce_launches import CONFIG
from tests.support.gcp_accidents import DELETE, INSERT
from tests.support.google_cloud import Lost
from tests.support.memory_run import UID
from tests.support.plain_gcp_run import PlainGcpRun

LATE = timedelta(seconds=60)
A, B, C = "us-central1-a", "us-central1-b", "us-central1-c"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> PlainGcpRun:
    """Nothing of it is asked for yet."""
    return PlainGcpRun(monkeypatch)


def completes(run: PlainGcpRun, instances: int) -> None:
    run.goes_on(60)
    run.completes()
    assert run.ends_within(240)
    assert len(run.account.rented) == instances
    assert run.misbooked() == []
    assert run.left_behind == []


@pytest.mark.parametrize("stale", [timedelta(), LATE], ids=["lists are right", "lists are late"])
def test_a_second_runner_in_the_same_second_rents_nothing_twice(run: PlainGcpRun, stale: timedelta) -> None:
    run.google.stale = stale
    run.has_beside = run.new_runner()
    assert run.trains_within(240)
    run.goes_on(60)
    run.is_interrupted()
    assert run.trains_within(600)
    completes(run, instances=2)
    assert len(run.google.project.charges.running) == 2


def test_a_launch_that_lists_do_not_show_yet_is_not_asked_for_again(run: PlainGcpRun) -> None:
    run.google.stale = LATE
    run.goes_on(45)
    assert run.google.counts[INSERT] == 1
    assert run.trains_within(240)
    completes(run, instances=1)


def test_p7_an_instance_that_is_not_listed_yet_is_unknown_and_not_dead(run: PlainGcpRun) -> None:
    run.google.stale = LATE
    run.goes_on(20)
    (name,) = run.account.alive
    driver = run.outfit(run.clock).driver
    assert driver.describe(name) is None
    assert driver.instances(UID) == []
    run.clock.advance(LATE.total_seconds())
    seen = driver.describe(name)
    assert seen is not None
    assert seen.alive


@pytest.mark.parametrize("call", [INSERT, DELETE])
def test_a_call_whose_answers_are_all_lost_for_a_while_is_done_once(run: PlainGcpRun, call: str) -> None:
    run.fails(call, Lost, 30)
    assert run.trains_within(120)
    completes(run, instances=1)
    operations = run.google.project.operations.known(run.clock.now())
    assert [each.kind for each in operations].count("insert") == 1


def test_a_zone_that_does_not_answer_is_no_death_of_what_trains_there(run: PlainGcpRun) -> None:
    """G4: its agent goes on writing. Where nothing of the run is, a silent zone holds up nothing."""
    assert run.trains_within(60)
    run.goes_on(60)
    run.google.project.unreachable = {A}
    run.goes_on(900)
    assert run.training is not None
    assert len(run.state.launches) == 1
    run.google.project.unreachable = {C}
    run.goes_on(60)
    assert "last known list" not in (run.ticks[-1].remark or "")
    run.is_interrupted()
    assert run.trains_within(120)
    run.google.project.unreachable = set()
    completes(run, instances=2)


@pytest.mark.parametrize("trouble", ["unreachable", "refused"])
def test_p3_one_bad_zone_is_left_for_another(run: PlainGcpRun, trouble: str) -> None:
    if trouble == "unreachable":
        run.google.project.unreachable = {A}
    else:
        zones = iter([A])
        refuse = Refusal(400, "invalid", "Invalid value for field 'resource.networkInterfaces[0].subnetwork'.")
        run.google.fault = lambda call: refuse if call == INSERT and next(zones, None) else None
    assert run.trains_within(300)
    (vm,) = run.account.alive
    assert run.google.project.vm(vm).zone in (B, C)
    run.google.project.unreachable = set()
    completes(run, instances=1)


def test_p29_another_region_that_is_down_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    run = PlainGcpRun(monkeypatch, config=replace(CONFIG, regions=("europe-west4", "us-central1")))
    run.google.project.unreachable = {"europe-west4-a", "europe-west4-b"}
    assert run.trains_within(60)
    run.goes_on(60)
    run.is_interrupted()
    assert run.trains_within(120)
    assert "europe-west4" in (run.ticks[-1].remark or "")
    completes(run, instances=2)


def test_an_api_that_sees_a_death_three_minutes_late_bends_no_bill(run: PlainGcpRun) -> None:
    """G4: 2 to 3.5 min in two public drills. The agent's silence is no proof while Google says RUNNING."""
    assert run.trains_within(60)
    run.goes_on(1200)
    run.google.project.lag(timedelta(minutes=3))
    run.is_interrupted()
    run.google.project.lag(timedelta())
    assert run.trains_within(300)
    completes(run, instances=2)


@pytest.mark.parametrize("at_once", [True, False], ids=["from the start", "while it trains"])
def test_instance_that_hangs_without_its_labels_is_ended_before_another_trains(run: PlainGcpRun, at_once: bool) -> None:
    """A policy has taken them away. What is found by them alone would run on unseen, along with the next one."""
    run.goes_on(5 if at_once else 60)
    (vm,) = run.google.project.vms.values()
    vm.labels = {}
    assert run.trains_within(60)
    run.goes_on(60)
    assert f"{vm.name} has no label spotrun-run" in (run.ticks[-1].remark or "")
    run.is_hung = True
    run.goes_on(1200)
    assert vm.name not in run.account.alive
    assert len(run.account.alive) == 1
    completes(run, instances=2)


def test_foreign_copy_of_an_instance_neither_is_ended_nor_keeps_a_completed_run(run: PlainGcpRun) -> None:
    """The console's *Create similar* copies the labels, and what starts the agent."""
    assert run.trains_within(60)
    (mine,) = run.account.alive
    labels = dict(run.google.project.vm(mine).labels)
    run.google.project.insert(B, wished("copy", labels=labels), "somebody", None)
    run.google.foreign.add("copy")
    run.goes_on(120)
    assert sorted(run.account.alive) == ["copy", mine]
    remark = run.ticks[-1].remark or ""
    assert remark.count("copy has a run's labels, but spotrun has not made it") == 1
    assert "cannot be ended" not in remark
    assert run.training is not None
    assert len(run.state.launches) == 1
    run.completes()
    assert run.ends_within(240)
    assert run.account.alive == ["copy"]
    assert run.misbooked() == []
    assert run.left_behind == []
