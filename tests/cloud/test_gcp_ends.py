"""Instances of Compute Engine end without anybody, and what is left of them is paid for, seen and deleted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import pytest

from spotrun.account.summary import summarise
from spotrun.instance import EndedBy
from tests.support import gce_launches
from tests.support import gce_operations as kinds
from tests.support.gce_bills import dollars
from tests.support.gce_run import GceRun
from tests.support.google_server import GoogleServer
from tests.support.world.faults import Killed


@pytest.fixture
def run(gce: GoogleServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GceRun:
    gce_launches.reach(gce, tmp_path, monkeypatch)
    return GceRun(gce)


def dies_after(verb: str) -> Callable[[str], None]:
    def die(called: str) -> None:
        if called == verb:
            raise Killed(verb)

    return die


def test_an_instance_whose_runner_dies_right_after_its_launch_is_gone_when_its_limit_is_over(run: GceRun) -> None:
    with pytest.raises(Killed):
        run.ticks(run.runner(after=dies_after("launch")))
    run.clock.advance(60)
    assert len(run.instances) == 1
    (launch,) = run.state.launches.values()
    assert launch.recorded is None
    run.clock.advance(launch.intent.time_to_live_s + 120)
    assert run.instances == []
    assert run.project.disks == {}
    ends = [each.kind for each in run.project.operations.known(run.project.now)]
    assert ends == ["insert", kinds.DEFERRED_DELETE]


def test_the_disk_of_an_instance_that_powered_itself_off_is_billed_until_the_next_tick_deletes_it(run: GceRun) -> None:
    runner = run.runner()
    while not any(launch.recorded for launch in run.state.launches.values()):
        run.ticks(runner)
    agent = run.agent()
    run.ticks(runner)
    run.project.power_off(agent.instance_id)
    run.clock.advance(4 * 3600)
    assert run.instances == [agent.instance_id]
    off = run.project.charges.running[0].until
    later = run.runner()
    run.ticks(later)
    run.clock.advance(30)
    assert agent.instance_id not in run.instances
    run.ticks(later)

    (gone,) = (launch.gone for launch in run.state.launches.values() if launch.gone is not None)
    assert gone.ended_by is EndedBy.ITSELF
    assert off is not None
    assert gone.ended_at - off > timedelta(hours=4), "its disk was there"
    charged = dollars(run.project.charges, agent.instance_id)
    assert Fraction("0.06") < charged < Fraction("0.07")
    total = summarise(run.state, gone.ended_at).total
    assert abs(Fraction(total.spot_usd) - charged) < Fraction(1, 10**6)
