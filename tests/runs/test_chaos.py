"""Real trainings on a real S3 server, each through 5 to 20 SIGKILLs. `make battery NAME=chaos` runs 200 (T4)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from spotrun.agent.status import Status, Upload
from tests.batteries import chaos
from tests.support.object_stores import RunningServer
from tests.support.process_signals import Uploads
from tests.support.sandbox import Sandbox

SEED = 7
"""Of five kills: one of each victim, and one more of an instance."""
MORE_SEEDS = (1, 2)
"""Side by side: a training waits for a third of its time, for boots and for the moments of its kills."""


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> chaos.Straight:
    """What nothing disturbed."""
    return chaos.undisturbed(tmp_path_factory.mktemp("calm") / "site")


@pytest.mark.timeout(chaos.RUN_WITHIN_S)
@pytest.mark.parametrize("seeds", [(SEED,), pytest.param(MORE_SEEDS, marks=pytest.mark.nightly)], ids=str)
def test_trainings_through_kills_are_the_one_without(
    seeds: tuple[int, ...],
    wanted: chaos.Straight,
    servers: Callable[[str], RunningServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = servers("s3")
    server.reach(monkeypatch)
    trainings = (partial(chaos.one, tmp_path / str(seed), server.new_prefix(), seed, wanted) for seed in seeds)
    outcomes = chaos.side_by_side(len(seeds), trainings)
    assert {outcome.seed: outcome.wrong for outcome in outcomes} == dict.fromkeys(seeds, ())


def test_the_kills_of_one_training_hit_all_victims() -> None:
    kills = chaos.plan(SEED)
    assert {kill.target for kill in kills} == set(chaos.VICTIMS)
    assert {kill.in_upload for kill in kills} == {True, False}


def test_half_of_the_kills_wait_for_an_upload() -> None:
    plans = [chaos.plan(seed) for seed in range(1, 201)]
    kills = [kill for plan in plans for kill in plan]
    assert {len(plan) for plan in plans} == set(range(chaos.ALONE.kills_min, chaos.KILLS_MAX + 1))
    assert 0.5 <= sum(kill.in_upload for kill in kills) / len(kills) < 0.6
    assert {kill.target for kill in kills} == set(chaos.VICTIMS)


def test_forty_trainings_of_a_gang_have_500_kills_of_all_victims() -> None:
    gang = chaos.Size(members=3)
    plans = [chaos.plan(seed, gang) for seed in range(1, 41)]
    assert sum(len(plan) for plan in plans) >= 500
    assert min(len(plan) for plan in plans) == gang.kills_min
    assert all(plan[-1].step < gang.steps for plan in plans)
    assert {kill.target for plan in plans for kill in plan} == set(chaos.VICTIMS)


def test_nothing_begins_once_the_battery_was_left(tmp_path: Path) -> None:
    results = chaos.side_by_side(2, (partial(Path.touch, tmp_path / str(number)) for number in range(10)))
    next(results)
    results.close()
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}


def test_last_status_of_a_killed_agent_is_no_upload_under_way(sandbox: Sandbox) -> None:
    uploads = Uploads(sandbox)
    assert not uploads.under_way()
    disk = sandbox.folder / "cloud" / "instances" / "i-1"
    disk.mkdir(parents=True)
    status = Status(disk)
    status.change(upload=Upload(1, 2))
    assert uploads.under_way()
    uploads.settle()
    assert not uploads.under_way()
    status.change(upload=Upload(2, 2))
    assert uploads.under_way()
    status.change(upload=None)
    assert not uploads.under_way()
