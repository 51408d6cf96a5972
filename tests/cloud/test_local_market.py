"""Instances of the local cloud live in its simulated market: what it announces, takes, charges and refuses."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from spotrun.clock import ScaledClock
from spotrun.clouds.local.config import MarketConfig
from spotrun.clouds.local.driver import LocalDriver
from spotrun.clouds.local.market import Loss, Market
from spotrun.clouds.local.records import CloudPaths
from spotrun.clouds.local.script import NodeStatus, Observer, Script, UploadStatus, has_come_true
from spotrun.errors import InsufficientCapacity
from spotrun.instance import EndedBy, Instance, InstanceState
from spotrun.offering import CapacityType, Offering, Pool
from spotrun.spec.market_script import Action, UploadAt
from tests.support.eventually import eventually
from tests.support.local_clouds import RUN, SLEEP, Bench, until
from tests.support.local_markets import SPOT, step


def offering_of(cloud: LocalDriver, pool: Pool) -> Offering:
    return next(each for each in cloud.offerings() if each.pool == pool)


@pytest.mark.parametrize("bench", [60.0], indirect=True)
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
    """A market in which a pool that has capacity now loses it in five to seven minutes, with notice."""
    now = bench.clock.now()
    for seed in range(1000):
        market = Market(MarketConfig(seed=seed, kind="generated"), bench.clock.epoch)
        for pool in SPOT:
            loss = market.next_loss(pool, now)
            assert loss is not None
            soon = timedelta(minutes=5) < loss.at - now < timedelta(minutes=7)
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
    return [json.loads(line) for line in CloudPaths(bench.root).log.read_text().splitlines()]


UPLOADER = """
import json, os, time
def tell(**status):
    with open("new", "w") as file: json.dump({"phase": "train", "epoch": 0, "batch": 1, "batches": 10, **status}, file)
    os.replace("new", "status.json")
while True:
    for percent in range(0, 101):
        tell(upload={"sent_bytes": percent, "size_bytes": 100}); time.sleep(0.001)
    tell(upload=None, batch=9)
    time.sleep(0.2)
"""


def trains(cloud: LocalDriver, instance: Instance, **status: Any) -> None:
    told = {"phase": "train", "epoch": 0, "batch": 0, "batches": 10, "step": 0, "upload": None, **status}
    disk = cloud.folder(instance.instance_id)
    (disk / "new").write_text(json.dumps(told))
    (disk / "new").replace(disk / "status.json")


def test_an_instance_is_taken_in_the_middle_of_its_upload(bench: Bench) -> None:
    """An upload lasts about 150 ms. On a busy machine, the script may miss some: the first it sees is the one."""
    init = [sys.executable, "-c", UPLOADER]
    cloud = bench.cloud(init=init, script=(step("upload at 50%", Action.INTERRUPT, None),))
    instance = cloud.launch(bench.request(cloud))
    assert until(cloud, instance, InstanceState.TERMINATED, within_s=60).ended_by is EndedBy.CLOUD


def test_only_an_upload_that_has_come_so_far_is_met() -> None:
    def met(upload: UploadStatus | None) -> bool:
        status = NodeStatus(phase="train", epoch=0, batch=9, batches=10, upload=upload)
        return has_come_true(UploadAt(0.5), Observer("i", CapacityType.SPOT, under_notice=False, status=status))

    assert [met(UploadStatus(sent_bytes=sent, size_bytes=100)) for sent in (0, 49, 50, 100)] == [0, 0, 1, 1]
    assert not met(None)
    assert not met(UploadStatus(sent_bytes=0, size_bytes=0))


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
    eventually(lambda: not Script(CloudPaths(bench.root).market(RUN), steps, bench.clock.epoch).spot_is_gone())
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
    eventually(lambda: CloudPaths(bench.root).market(RUN).exists())
    calm = LocalDriver(bench.root, ScaledClock(bench.clock.epoch, 60), MarketConfig(boot_s=1), init=SLEEP)
    assert calm.launch(msgspec.structs.replace(bench.request(calm), run_uid="fedcba9876")).alive
