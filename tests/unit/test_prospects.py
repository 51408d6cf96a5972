"""What could never be done on spot is refused before it costs money, with the reason and what to write instead."""

from __future__ import annotations

from datetime import timedelta

import pytest

from spotrun.market.observations import Fate, Observation
from spotrun.policy.feasibility import MEDIAN_LIFE, Earlier, earlier, hopeless_on_spot, interval_between, median_life
from spotrun.spec import model
from spotrun.spec.model import RunSpec
from tests.support.decisions import POOLS, spec
from tests.support.histories import START, History
from tests.support.short_runs import bare

MINUTE = timedelta(minutes=1)
SLOW = Earlier(run="demo-1", commit=3 * MINUTE, stall=timedelta(seconds=1), step=timedelta(seconds=2))
STORMY = {"local": {"market": "generated"}}


def job(**changes: object) -> RunSpec:
    return spec(**{**STORMY, **changes})


def with_cloud(cloud: str, uri: str) -> RunSpec:
    made = job(checkpoint={"uri": uri})
    return made.model_copy(update={"resources": made.resources.model_copy(update={"cloud": cloud})})


class Elsewhere:
    """Any cloud whose instances are not processes of this machine."""

    here = shares_folders = False

    def interrupts(self, spec: RunSpec) -> bool:
        return True


@pytest.mark.parametrize("cloud", ["aws", "elsewhere"])
def test_checkpoints_that_go_with_the_machine_are_refused_on_spot(cloud: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = model.find_cloud
    monkeypatch.setattr(model, "find_cloud", lambda name: Elsewhere() if name == "elsewhere" else find(name))
    found = hopeless_on_spot(with_cloud(cloud, "/data/runs"), None, MEDIAN_LIFE)
    assert found is not None
    assert "are lost with the spot instance" in found.reason
    assert "s3://" in found.fix
    assert hopeless_on_spot(with_cloud(cloud, "s3://bucket/runs"), None, MEDIAN_LIFE) is None


def test_an_interval_above_the_median_life_is_refused_where_the_notice_is_too_short_for_a_checkpoint() -> None:
    found = hopeless_on_spot(job(checkpoint={"every": "45m"}), SLOW, MEDIAN_LIFE)
    assert found is not None
    assert found.reason == (
        "a checkpoint every 45m comes too late for most spot instances, whose median lifetime is 32m; and in demo-1, "
        "a checkpoint took 3m to become durable, too long for a notice of 2m"
    )
    assert found.fix.startswith("write checkpoint.every: auto")


@pytest.mark.parametrize(
    ("changes", "known"),
    [
        ({"checkpoint": {"every": "20m"}}, SLOW),
        ({"checkpoint": {"every": "auto"}}, SLOW),
        ({"checkpoint": {"every": "45m"}}, Earlier(run="demo-1", commit=MINUTE)),
        ({"checkpoint": {"every": "45m"}}, Earlier(run="demo-1")),
        ({"checkpoint": {"every": "45m"}}, None),
        ({"checkpoint": {"every": "5000 steps"}}, Earlier(run="demo-1", commit=3 * MINUTE)),
        ({"checkpoint": {"every": "500 steps"}}, SLOW),
        ({"checkpoint": {"every": "45m"}, "resources": {"spot_policy": "on-demand"}}, SLOW),
        ({"checkpoint": {"every": "45m"}, "local": {"market": "calm"}}, SLOW),
    ],
)
def test_job_that_saves_its_work_or_may_do_so_is_not_refused(changes: dict[str, object], known: Earlier | None) -> None:
    assert hopeless_on_spot(job(**changes), known, MEDIAN_LIFE) is None


def test_an_interval_in_steps_counts_by_their_measured_pace() -> None:
    assert interval_between(job(checkpoint={"every": "5000 steps"}), SLOW) == timedelta(seconds=10_000)
    assert hopeless_on_spot(job(checkpoint={"every": "5000 steps"}), SLOW, MEDIAN_LIFE) is not None


def test_a_command_that_made_no_checkpoint_in_longer_than_a_life_is_refused() -> None:
    found = hopeless_on_spot(job(), Earlier(run="demo-1", bare=2 * 60 * MINUTE), MEDIAN_LIFE)
    assert found is not None
    assert "demo-1 took 2h and made no checkpoint" in found.reason
    assert hopeless_on_spot(job(), Earlier(run="demo-1", bare=20 * MINUTE), MEDIAN_LIFE) is None


def test_the_median_life_is_what_runs_saw_once_they_saw_enough() -> None:
    def seen(minutes: int) -> Observation:
        pool = POOLS[0].pool
        facts = {"run": "a", "launch": 1, "cloud": "local", "region": "local", "at": START, "kind": Fate.LOST}
        return Observation(pool=pool, up_s=minutes * 60, **facts)

    assert median_life([seen(minutes) for minutes in range(5)]) == MEDIAN_LIFE
    assert median_life([seen(minutes) for minutes in range(1, 22)]) == 11 * MINUTE


def test_an_earlier_run_says_what_it_measured_in_the_time_of_the_next() -> None:
    history = History(time_scale=2.0)
    history.running()
    for _ in range(4):
        history.step += 100
        history.after(200).commit(taken_s_ago=30, stall_s=0.5)
    found = earlier(history.state, 20.0)
    assert (found.commit, found.stall) == (300 * timedelta(seconds=1), 5 * timedelta(seconds=1))
    assert found.step is not None
    assert found.step.total_seconds() == pytest.approx(20, rel=0.15)
    assert found.bare is None


def test_a_run_without_checkpoints_says_how_long_it_took() -> None:
    found = earlier(bare().state, 1.0)
    assert found.bare is not None
    assert found.bare.total_seconds() == pytest.approx(2 * 3600, abs=60)
