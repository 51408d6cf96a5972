"""The simulated market is the same for everybody who looks, and its script happens once, in order."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotrun.clouds.local.config import NOTICE, MarketConfig, ScriptStep
from spotrun.clouds.local.market import Loss, Market
from spotrun.clouds.local.script import NodeStatus, Observer, Script, StatusFile, UploadStatus
from spotrun.offering import CapacityType, Pool
from spotrun.spec.market_script import Action
from tests.support.local_markets import GENERATED, ORIGIN, SPOT, pools, step

# -- prices and capacity ---------------------------------------------------------------------------------------------


def test_the_catalog_has_gpus_and_a_plain_machine_in_several_zones_of_two_regions() -> None:
    offerings = Market(MarketConfig(), ORIGIN).offerings(ORIGIN)
    assert len({each.region for each in offerings}) == 2
    assert len({each.zone for each in offerings}) >= 4
    assert {each.accelerators for each in offerings} == {"V100:1", "A100:1", "A100:2", "A10G:1", "T4:1", ""}
    assert all(each.simulated for each in offerings)


@pytest.mark.parametrize("kind", ["calm", "generated"])
def test_spot_costs_a_quarter_to_two_fifths_and_differs_by_zone(kind: Any) -> None:
    market = Market(MarketConfig(kind=kind), ORIGIN)
    for hours in range(0, 48, 5):
        price = {each.pool: each.price_usd_per_hour for each in market.offerings(ORIGIN + timedelta(hours=hours))}
        for pool in SPOT:
            on_demand = price[msgspec.structs.replace(pool, capacity_type=CapacityType.ON_DEMAND)]
            assert 0.2499 <= price[pool] / on_demand <= 0.4001
        v100 = {price[pool] for pool in SPOT if pool.instance_type == "p3.2xlarge"}
        assert len(v100) > 1


def test_a_calm_market_never_changes() -> None:
    market = Market(MarketConfig(), ORIGIN)
    first, later = market.offerings(ORIGIN), market.offerings(ORIGIN + timedelta(days=30))
    assert first == later
    assert all(market.next_loss(each.pool, ORIGIN) is None for each in first)
    assert all(market.has_capacity(each.pool, ORIGIN) for each in first)


def test_on_demand_is_always_there_at_its_price() -> None:
    market = Market(GENERATED, ORIGIN)
    for pool in (each for each in pools() if each.capacity_type is CapacityType.ON_DEMAND):
        for hours in range(0, 100, 7):
            at = ORIGIN + timedelta(hours=hours)
            assert market.has_capacity(pool, at)
            assert market.next_loss(pool, at) is None
            assert market.price(pool, at) == market.price(pool, ORIGIN)


@pytest.mark.exhaustive
@given(st.lists(st.tuples(st.sampled_from(SPOT), st.integers(0, 10**6)), min_size=1, max_size=12))
def test_the_market_does_not_depend_on_who_looks_when(looks: list[tuple[Pool, int]]) -> None:
    def seen(market: Market, pool: Pool, seconds: int) -> object:
        at = ORIGIN + timedelta(seconds=seconds)
        return market.price_step(pool, at), market.has_capacity(pool, at), market.next_loss(pool, at)

    market = Market(GENERATED, ORIGIN)
    forward = [seen(market, *look) for look in looks]
    assert forward == [seen(Market(GENERATED, ORIGIN), *look) for look in reversed(looks)][::-1]


def test_another_process_computes_the_same_market() -> None:
    code = (
        "from datetime import *; from spotrun.clouds.local.config import MarketConfig\n"
        "from spotrun.clouds.local.market import Market\n"
        "o = datetime(2026, 3, 1, tzinfo=timezone.utc); m = Market(MarketConfig(seed=7, kind='generated'), o)\n"
        "print([(str(e.price_usd_per_hour), m.next_loss(e.pool, o)) for e in m.offerings(o + timedelta(days=3))])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


@given(st.sampled_from(SPOT), st.integers(0, 10**6))
def test_there_is_no_capacity_between_the_announcement_of_a_loss_and_the_loss(pool: Pool, seconds: int) -> None:
    market = Market(GENERATED, ORIGIN)
    at = ORIGIN + timedelta(seconds=seconds)
    loss = market.next_loss(pool, at)
    assert loss is not None
    assert loss.at > at
    if market.has_capacity(pool, at):
        assert loss.at - at > NOTICE
    assert not market.has_capacity(pool, loss.at - timedelta(seconds=1))
    assert not market.has_capacity(pool, loss.at)


@given(st.sampled_from(SPOT), st.integers(0, 10**6))
def test_a_price_holds_for_its_whole_step(pool: Pool, seconds: int) -> None:
    market = Market(GENERATED, ORIGIN)
    step = market.price_step(pool, ORIGIN + timedelta(seconds=seconds))
    assert step.since <= ORIGIN + timedelta(seconds=seconds) < step.until
    assert market.price_step(pool, step.since) == step
    assert market.price_step(pool, step.until).since == step.until


def test_capacity_lasts_half_an_hour_in_the_median_with_a_heavy_tail() -> None:
    lasts = []
    for seed in range(40):
        market = Market(MarketConfig(seed=seed, kind="generated"), ORIGIN)
        for pool in SPOT[:10]:
            lasts += [(until_ - since).total_seconds() / 3600 for since, until_ in _periods(market, pool, 8)]
    assert 0.4 < statistics.median(lasts) < 0.7
    assert 2 < statistics.mean(lasts) < 5
    assert 0.1 < statistics.quantiles(lasts, n=10)[0] < 0.25


def test_some_losses_come_without_notice_but_most_with() -> None:
    market = Market(GENERATED, ORIGIN)
    notices = [loss.notice for pool in SPOT for loss in _losses(market, pool, 20)]
    assert set(notices) == {NOTICE, None}
    assert 0.02 < notices.count(None) / len(notices) < 0.25


def _losses(market: Market, pool: Pool, count: int) -> Iterator[Loss]:
    at = ORIGIN
    for _ in range(count):
        loss = market.next_loss(pool, at)
        assert loss is not None
        yield loss
        at = loss.at


def _periods(market: Market, pool: Pool, count: int) -> Iterator[tuple[datetime, datetime]]:
    timeline = market._availability_of(pool)
    at = timeline.at(ORIGIN).until  # a period met by looking at some moment is a long one more often than not
    for _ in range(count):
        period = timeline.at(at)
        yield period.since, period.until
        at = period.until


@pytest.mark.exhaustive
def test_a_market_recommends_before_the_share_of_losses_that_it_was_told_and_as_often_in_vain() -> None:
    none, half = (Market(MarketConfig(seed=7, kind="generated", recommended=share), ORIGIN) for share in (0.0, 0.5))
    early, in_vain, losses = 0, 0, 0
    for pool in SPOT:
        now = ORIGIN
        while now < ORIGIN + timedelta(days=60):
            loss = half.next_loss(pool, now)
            assert loss is not None
            assert loss == none.next_loss(pool, now)
            assert none.next_recommendation(pool, now) is None
            if loss.at - now > timedelta(hours=3):
                losses += 1
                told = half.next_recommendation(pool, now)
                in_vain += told is not None and loss.at - told >= timedelta(minutes=30)
                last = half.next_recommendation(pool, loss.at - timedelta(minutes=29))
                early += last is not None
                assert last is None or timedelta() <= loss.at - NOTICE - last <= timedelta(minutes=10)
            now = loss.at
    assert losses > 200
    assert early / losses == pytest.approx(0.5, abs=0.1)
    assert in_vain / losses == pytest.approx(0.5, abs=0.1)


def test_pool_that_is_never_lost_gets_no_recommendation() -> None:
    calm = Market(MarketConfig(recommended=1.0), ORIGIN)
    assert all(calm.next_recommendation(pool, ORIGIN) is None for pool in SPOT)


# -- the script ------------------------------------------------------------------------------------------------------


def observer(capacity_type: CapacityType = CapacityType.SPOT, under_notice: bool = False, **status: Any) -> Observer:
    told = NodeStatus(**{"phase": "train", "epoch": 0, "batch": 0, "batches": 10, **status})
    return Observer(instance_id="i-1", capacity_type=capacity_type, under_notice=under_notice, status=told)


def script(path: Path, *steps: ScriptStep) -> Script:
    return Script(path / "market.json", steps, ORIGIN)


def actions(of: Script) -> list[Action]:
    return [each.then for each, _ in of.happened()]


def test_a_market_configuration_survives_json() -> None:
    config = MarketConfig(seed=3, kind="generated", script=(step("epoch 2 at 40%", Action.NO_SPOT, None),))
    assert msgspec.json.decode(msgspec.json.encode(config), type=MarketConfig) == config


@pytest.mark.parametrize(
    ("epoch", "batch", "happens"), [(0, 9, False), (1, 3, False), (1, 4, True), (1, 9, True), (2, 0, True)]
)
def test_an_epoch_condition_counts_epochs_from_one(tmp_path: Path, epoch: int, batch: int, happens: bool) -> None:
    market = script(tmp_path, step("epoch 2 at 40%", Action.INTERRUPT))
    market.advance(ORIGIN, observer(epoch=epoch, batch=batch))
    assert bool(market.happened()) is happens


def test_steps_happen_in_order_and_once(tmp_path: Path) -> None:
    steps = step("epoch 2 at 0%", Action.INTERRUPT), step("epoch 1 at 0%", Action.NO_SPOT)
    market = script(tmp_path, *steps)
    market.advance(ORIGIN, observer(epoch=0, batch=5))
    assert actions(market) == []
    for _ in range(3):
        market.advance(ORIGIN, observer(epoch=1))
    assert actions(market) == [Action.INTERRUPT, Action.NO_SPOT]
    assert actions(script(tmp_path, *steps)) == [Action.INTERRUPT, Action.NO_SPOT]


def test_only_half_an_upload_makes_an_upload_step_happen(tmp_path: Path) -> None:
    market = script(tmp_path, step("upload at 50%", Action.INTERRUPT, None))
    for upload in (None, UploadStatus(0, 0), UploadStatus(49, 100)):
        market.advance(ORIGIN, observer(upload=upload))
    assert actions(market) == []
    assert market.waits_for_upload()
    market.advance(ORIGIN, observer(upload=UploadStatus(50, 100)))
    assert actions(market) == [Action.INTERRUPT]
    assert not market.waits_for_upload()


@pytest.mark.parametrize(
    "who",
    [
        None,
        observer(CapacityType.ON_DEMAND, epoch=5),
        observer(under_notice=True, epoch=5),
        observer(phase="standby", epoch=5),
        observer(phase="restore", epoch=5),
    ],
)
def test_only_a_spot_instance_that_trains_and_stays_is_interrupted(tmp_path: Path, who: Observer | None) -> None:
    for when in ("epoch 1 at 0%", "after 1s"):
        market = script(tmp_path, step(when, Action.INTERRUPT))
        market.advance(ORIGIN + timedelta(hours=1), who)
        assert actions(market) == []


def test_spot_is_gone_from_one_step_until_another(tmp_path: Path) -> None:
    market = script(tmp_path, step("epoch 1 at 0%", Action.NO_SPOT), step("after 10m", Action.SPOT_RETURNS))
    assert not market.spot_is_gone()
    market.advance(ORIGIN, observer())
    assert market.spot_is_gone()
    market.advance(ORIGIN + timedelta(minutes=9, seconds=59), None)
    assert market.spot_is_gone()
    market.advance(ORIGIN + timedelta(minutes=25), None)
    assert not market.spot_is_gone()
    assert market.happened()[-1][1].at == ORIGIN + timedelta(minutes=10)


def test_a_step_seen_by_many_at_once_happens_once(tmp_path: Path) -> None:
    steps = [step("after 1s", Action.NO_SPOT), step("after 1h", Action.SPOT_RETURNS)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: script(tmp_path, *steps).advance(ORIGIN + timedelta(minutes=1), None), range(64)))
    assert actions(script(tmp_path, *steps)) == [Action.NO_SPOT]


@pytest.mark.parametrize(
    "written", ['{"epoch": 1%s}' % ("0" * 400), '{"epoch": -1}', "[" * 100_000, '{"phase": "\\ud800"}']
)
def test_malformed_status_file_changes_nothing(tmp_path: Path, written: str) -> None:
    path = tmp_path / "status.json"
    path.write_text('{"phase": "train", "epoch": 2}')
    file = StatusFile(path)
    before = file.read()
    path.unlink()
    path.write_text(written)
    assert file.read() == before
