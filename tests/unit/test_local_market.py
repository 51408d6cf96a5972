"""The simulated market is the same for everybody who looks, and its script happens once, in order."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotrun.clock import ScaledClock
from spotrun.clouds.local.config import NOTICE, MarketConfig, ScriptStep
from spotrun.clouds.local.driver import LocalCloud
from spotrun.clouds.local.market import Loss, Market
from spotrun.clouds.local.records import Places
from spotrun.clouds.local.script import NodeStatus, Observer, Script, UploadStatus
from spotrun.errors import InsufficientCapacity
from spotrun.instance import EndedBy, Instance, InstanceState
from spotrun.offering import CapacityType, Offering, Pool
from spotrun.spec.market_script import Action
from tests.support.eventually import eventually
from tests.support.local_clouds import RUN, SLEEP, Bench, until

ORIGIN = datetime(2026, 3, 1, tzinfo=UTC)
GENERATED = MarketConfig(seed=7, kind="generated")


def pools(config: MarketConfig = GENERATED) -> list[Pool]:
    return [each.pool for each in Market(config, ORIGIN).offerings(ORIGIN)]


SPOT = [pool for pool in pools() if pool.capacity_type is CapacityType.SPOT]


# -- prices and capacity ---------------------------------------------------------------------------------------------


def test_the_catalog_has_gpus_and_a_plain_machine_in_several_zones_of_two_regions() -> None:
    offerings = Market(MarketConfig(), ORIGIN).offerings(ORIGIN)
    assert len({each.region for each in offerings}) == 2
    assert len({each.zone for each in offerings}) >= 4
    assert {each.accelerators for each in offerings} == {"V100:1", "A100:1", "A10G:1", "T4:1", ""}
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


# -- the generated market on real instances --------------------------------------------------------------------------


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench(tmp_path / "a cloud", monkeypatch, scale=getattr(request, "param", 60.0))
    yield bench
    bench.close()


def offering_of(cloud: LocalCloud, pool: Pool) -> Offering:
    return next(each for each in cloud.offerings() if each.pool == pool)


@pytest.mark.parametrize("bench", [180.0], indirect=True)
def test_the_generated_market_announces_and_takes_an_instance_when_it_said(bench: Bench) -> None:
    seed, pool, loss = _soon_lost(bench)
    cloud = bench.cloud(seed=seed, kind="generated", boot_s=1)
    request = msgspec.structs.replace(bench.request(cloud), offering=offering_of(cloud, pool))
    instance = until(cloud, cloud.launch(request), InstanceState.RUNNING)
    ended = until(cloud, instance, InstanceState.TERMINATED, within_s=60)
    assert ended.ended_by is EndedBy.CLOUD
    assert ended.notice_deadline == loss.at
    assert ended.ended_at is not None
    assert timedelta() <= ended.ended_at - loss.at < timedelta(seconds=180)
    with pytest.raises(InsufficientCapacity):
        cloud.launch(msgspec.structs.replace(request, token="another"))
    assert _log(bench)[-1]["event"] == "refused"


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


def test_what_is_never_lost_is_recommended_nothing() -> None:
    calm = Market(MarketConfig(recommended=1.0), ORIGIN)
    assert all(calm.next_recommendation(pool, ORIGIN) is None for pool in SPOT)


def test_a_generated_recommendation_reaches_the_instance_before_its_notice(bench: Bench) -> None:
    now = bench.clock.now()
    seed, pool = next(
        (seed, pool)
        for seed in range(5000)
        for market in [Market(MarketConfig(seed=seed, kind="generated", recommended=1.0), bench.clock.epoch)]
        for pool in SPOT
        for told in [market.next_recommendation(pool, now)]
        if told is not None and timedelta(minutes=2) < told - now < timedelta(minutes=4)
        if market.has_capacity(pool, now)
    )
    cloud = bench.cloud(seed=seed, kind="generated", boot_s=1, recommended=1.0)
    request = msgspec.structs.replace(bench.request(cloud), offering=offering_of(cloud, pool))
    until(cloud, cloud.launch(request), InstanceState.RUNNING)
    eventually(lambda: "rebalance" in [line["event"] for line in _log(bench)], within_s=30)
    events = [line["event"] for line in _log(bench)]
    assert "notice" not in events[: events.index("rebalance")]


def _soon_lost(bench: Bench) -> tuple[int, Pool, Loss]:
    """A market in which a pool that has capacity now loses it in three to five minutes, with notice."""
    now = bench.clock.now()
    for seed in range(1000):
        market = Market(MarketConfig(seed=seed, kind="generated"), bench.clock.epoch)
        for pool in SPOT:
            loss = market.next_loss(pool, now)
            assert loss is not None
            soon = timedelta(minutes=3.5) < loss.at - now < timedelta(minutes=5)
            if soon and loss.notice and market.has_capacity(pool, now):
                return seed, pool, loss
    raise AssertionError("no such market")


@pytest.mark.parametrize("bench", [3_000.0], indirect=True)
def test_an_instance_is_charged_each_price_from_when_it_held(bench: Bench) -> None:
    cloud = bench.cloud(seed=3, kind="generated", boot_s=1)
    market = Market(MarketConfig(seed=3, kind="generated"), bench.clock.epoch)
    pool = max(SPOT, key=lambda pool: _time_left(market, pool, bench.clock.now()))
    request = bench.request(cloud, time_to_live=timedelta(days=100))
    request = msgspec.structs.replace(request, offering=offering_of(cloud, pool))
    instance = until(cloud, cloud.launch(request), InstanceState.RUNNING)
    eventually(lambda: len(cloud.describe(instance.instance_id).prices) >= 3, within_s=60)  # type: ignore[union-attr]
    cloud.terminate(instance.instance_id)
    ended = until(cloud, instance, InstanceState.TERMINATED)
    for before, after in zip(ended.prices, ended.prices[1:], strict=False):
        assert before.since < after.since
        assert market.price(pool, after.since) == after.usd_per_hour
        assert market.price(pool, after.since - timedelta(microseconds=1)) != after.usd_per_hour
    told = [line for line in _log(bench) if line["event"] == "price"]
    assert [line["usd_per_hour"] for line in told] == [str(each.usd_per_hour) for each in ended.prices]


def _time_left(market: Market, pool: Pool, now: datetime) -> timedelta:
    loss = market.next_loss(pool, now)
    assert loss is not None
    return loss.at - now if market.has_capacity(pool, now) else timedelta()


def _log(bench: Bench) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Places(bench.root).log.read_text().splitlines()]


# -- the script ------------------------------------------------------------------------------------------------------


def step(when: str, then: Action, notice_s: float | None = 120) -> ScriptStep:
    return ScriptStep(when=when, then=then, notice_s=notice_s)


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


# -- the script on real instances ------------------------------------------------------------------------------------

UPLOADER = """
import json, os, time
def tell(**status):
    with open("new", "w") as file: json.dump({"phase": "train", "epoch": 0, "batch": 1, "batches": 10, **status}, file)
    os.replace("new", "status.json")
tell(upload=None)
time.sleep(0.2)
for percent in range(0, 101):
    tell(upload={"sent_bytes": percent, "size_bytes": 100}); time.sleep(0.001)
tell(upload=None, batch=9)
time.sleep(1000)
"""


def trains(cloud: LocalCloud, instance: Instance, **status: Any) -> None:
    told = {"phase": "train", "epoch": 0, "batch": 0, "batches": 10, "step": 0, "upload": None, **status}
    disk = cloud.folder(instance.instance_id)
    (disk / "new").write_text(json.dumps(told))
    (disk / "new").replace(disk / "status.json")


def test_an_instance_is_taken_in_the_middle_of_its_upload(bench: Bench) -> None:
    """The upload lasts about 150 ms; the script must catch its second half."""
    init = [sys.executable, "-c", UPLOADER]
    cloud = bench.cloud(init=init, script=(step("upload at 50%", Action.INTERRUPT, None),))
    instance = cloud.launch(bench.request(cloud))
    ended = until(cloud, instance, InstanceState.TERMINATED)
    assert ended.ended_by is EndedBy.CLOUD
    last = json.loads((cloud.folder(instance.instance_id) / "status.json").read_text())
    assert last["upload"] is not None
    assert 50 <= last["upload"]["sent_bytes"] <= 100


def test_an_interruption_takes_the_training_instance_and_not_its_standby(bench: Bench) -> None:
    cloud = bench.cloud(script=(step("epoch 2 at 40%", Action.INTERRUPT, 60),))
    training, standby = bench.running(cloud), bench.running(cloud)
    trains(cloud, standby, phase="standby")
    trains(cloud, training, epoch=1, batch=4)
    ended = until(cloud, training, InstanceState.TERMINATED)
    assert ended.ended_by is EndedBy.CLOUD
    assert ended.notice_deadline is not None
    seen = cloud.describe(standby.instance_id)
    assert seen is not None
    assert seen.alive
    assert seen.notice_deadline is None


def test_a_scripted_recommendation_is_made_to_what_trains_and_takes_nothing(bench: Bench) -> None:
    cloud = bench.cloud(script=(step("epoch 2 at 40%", Action.REBALANCE, None),))
    training, standby = bench.running(cloud), bench.running(cloud)
    trains(cloud, standby, phase="standby")
    trains(cloud, training, epoch=1, batch=4)
    eventually(lambda: [line["instance_id"] for line in _log(bench) if line["event"] == "rebalance"])
    assert [line["instance_id"] for line in _log(bench) if line["event"] == "rebalance"] == [training.instance_id]
    for instance in (training, standby):
        seen = cloud.describe(instance.instance_id)
        assert seen is not None
        assert seen.alive
        assert seen.notice_deadline is None


def test_when_spot_is_gone_all_spot_instances_go_and_none_is_to_be_had_until_it_returns(bench: Bench) -> None:
    steps = (step("epoch 1 at 50%", Action.NO_SPOT, 60), step("epoch 1 at 90%", Action.SPOT_RETURNS))
    cloud = bench.cloud(script=steps)
    training, standby = bench.running(cloud), bench.running(cloud)
    on_demand = bench.running(cloud, CapacityType.ON_DEMAND)
    trains(cloud, training, batch=5)
    for instance in (training, standby):
        assert until(cloud, instance, InstanceState.TERMINATED).ended_by is EndedBy.CLOUD
    with pytest.raises(InsufficientCapacity):
        cloud.launch(bench.request(cloud))
    trains(cloud, on_demand, batch=9)
    eventually(lambda: not Script(Places(bench.root).market(RUN), steps, bench.clock.epoch).spot_is_gone())
    assert bench.running(cloud).notice_deadline is None
    seen = cloud.describe(on_demand.instance_id)
    assert seen is not None
    assert seen.alive


def test_spot_returns_though_nothing_runs_that_could_see_it(bench: Bench) -> None:
    steps = (step("after 1s", Action.NO_SPOT, None), step("after 1m", Action.SPOT_RETURNS))
    cloud = bench.cloud(script=steps)
    eventually(lambda: bench.clock.now() - bench.clock.epoch > timedelta(seconds=5))
    with pytest.raises(InsufficientCapacity):
        cloud.launch(bench.request(cloud))
    request = bench.request(cloud)

    def launched() -> bool:
        try:
            return cloud.launch(request).alive
        except InsufficientCapacity:
            return False

    eventually(launched)


def test_another_run_on_the_same_cloud_has_a_market_of_its_own(bench: Bench) -> None:
    scripted = bench.cloud(script=(step("epoch 1 at 0%", Action.NO_SPOT),))
    trains(scripted, bench.running(scripted))
    eventually(lambda: Places(bench.root).market(RUN).exists())
    calm = LocalCloud(bench.root, ScaledClock(bench.clock.epoch, 60), MarketConfig(boot_s=1), init=SLEEP)
    assert calm.launch(msgspec.structs.replace(bench.request(calm), run_uid="fedcba9876")).alive
