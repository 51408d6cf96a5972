"""What a runner sees around its run may be less than all; that never ends the run, nor what trains."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spotrun.instance import EndedBy
from tests.support.played_run import PlayedRun
from tests.support.worlds import MARKET

ELSEWHERE = "local-2"


@pytest.fixture
def played() -> PlayedRun:
    """A run whose market has a second, dearer region."""
    played = PlayedRun()
    there = [replace(each, region=ELSEWHERE, zone=each.zone.replace("local-1", ELSEWHERE)) for each in MARKET]
    dearer = [replace(each, price_usd_per_hour=each.price_usd_per_hour + 1) for each in there]
    played.market.all |= {each.pool: each for each in dearer}
    return played


def trained(played: PlayedRun) -> str:
    """The instance on which the run trains, in the nearer region."""
    runner = played.runner()
    for _ in range(12):
        played.turn()
        runner.tick()
    here = played.training_on()
    assert here is not None
    assert here.offering.region != ELSEWHERE
    return here.instance_id


def test_a_region_that_the_run_does_not_use_may_fail_while_it_replaces_a_loss(played: PlayedRun) -> None:
    lost = trained(played)
    runner = played.runner()
    played.cloud.down_in = {ELSEWHERE}
    played.cloud.end(lost, EndedBy.CLOUD)
    ticks = [runner.tick() for _ in range(4)]
    assert [tick.blind for tick in ticks] == [None] * 4
    assert {tick.remark for tick in ticks} == {f"{ELSEWHERE} does not answer"}
    assert [each.offering.region for each in played.cloud.alive] == ["local-1"]


def test_a_region_in_which_the_run_has_an_instance_has_to_be_seen(played: PlayedRun) -> None:
    trains = trained(played)
    runner = played.runner()
    played.cloud.down_in = {"local-1"}
    played.clock.advance(3600)
    assert runner.tick().blind == "local-1 does not answer"
    played.cloud.down_in = set()
    assert [each.instance_id for each in played.cloud.alive] == [trains]
    assert played.cloud.terminations == []


def test_a_copy_of_an_instance_is_ended_with_a_word_about_its_cost(played: PlayedRun) -> None:
    trains = trained(played)
    launch = played.cloud.alive[0].launch
    copy = played.cloud.launch(replace(played.cloud.launches[0], token="copy")).instance_id
    tick = played.runner().tick()
    assert (
        tick.remark == f"{copy} has to end, and its cost is not in the ledger: it only has the tags of launch {launch}"
    )
    assert played.cloud.terminations == [copy]
    assert [each.instance_id for each in played.cloud.alive] == [trains]
    assert played.runner().tick().remark is None


def test_while_a_region_fails_the_run_is_placed_in_another(played: PlayedRun) -> None:
    played.cloud.down_in = {"local-1"}
    played.settle(played.runner())
    assert [each.offering.region for each in played.cloud.alive] == [ELSEWHERE]
