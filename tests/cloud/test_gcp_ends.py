"""Instances of Compute Engine end without anybody, and what is left of them is paid for, seen and deleted."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction

import pytest

from spotrun.instance import EndedBy
from tests.support import gce_operations as kinds
from tests.support.gce_bills import dollars
from tests.support.gcp_accidents import DELETE
from tests.support.plain_gcp_run import PlainGcpRun

AWAY_S = 4 * 3600.0


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> PlainGcpRun:
    return PlainGcpRun(monkeypatch)


def test_an_instance_whose_runner_dies_right_after_its_launch_is_gone_when_its_limit_is_over(run: PlainGcpRun) -> None:
    run.goes_on(5)
    assert len(run.google.project.vms) == 1
    (launch,) = run.state.launches.values()
    assert launch.recorded is None
    run.clock.advance(launch.intent.time_to_live_s + 180)
    assert run.account.left == []
    ends = [each.kind for each in run.google.project.operations.known(run.clock.now())]
    assert ends == ["insert", kinds.DEFERRED_DELETE]


def test_deletion_is_requested_once_while_it_is_under_way(run: PlainGcpRun) -> None:
    assert run.trains_within(60)
    run.google.project.timings.shutdown = timedelta(seconds=90)
    run.is_hung = True
    run.goes_on(450)
    assert run.training is not None
    assert len(run.account.alive) == 1
    assert run.is_asked(DELETE) == 1


def test_the_disk_of_an_instance_that_powered_itself_off_is_billed_until_the_next_tick_deletes_it(
    run: PlainGcpRun,
) -> None:
    assert run.trains_within(60)
    (name,) = run.account.alive
    run.account.power_off(name)
    run.is_alone(AWAY_S, 60.0)
    assert {*run.account.left} == {name}
    off = run.google.project.charges.running[0].until
    run.goes_on(60)
    assert name not in run.account.left

    (gone,) = (launch.gone for launch in run.state.launches.values() if launch.gone is not None)
    assert gone.ended_by is EndedBy.ITSELF
    assert off is not None
    assert gone.ended_at - off >= timedelta(seconds=AWAY_S), "its disk was there"
    charged = dollars(run.google.project.charges, name)
    assert Fraction("0.06") < charged < Fraction("0.07")
    assert abs(Fraction(run.booked_usd[name]) - charged) < Fraction(1, 10**6)
