"""What crosses regions between an instance and its bucket: in the choice of a region, the bill, and the budget."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.fidelity.lifetimes import by_runner
from spotrun.account.cross_region import spent_usd
from spotrun.account.gcs_prices import gcs_prices
from spotrun.account.storage_prices import s3_standard, storage_prices
from spotrun.account.summary import assumptions, summarise
from spotrun.address import parse
from spotrun.clock import ScaledClock
from spotrun.clouds.registry import cloud_of
from spotrun.forecast.lifetimes import Drawn, Lifetime, SpotPools
from spotrun.forecast.measured import RunMeasurements
from spotrun.forecast.plan import plan
from spotrun.forecast.ticks import simulate
from spotrun.market.world import World
from spotrun.offering import CapacityType, Offering
from spotrun.policy.cross_region import transfer_limit
from spotrun.policy.explain import considered
from spotrun.policy.facts import Facts
from spotrun.run import entry_bytes
from spotrun.run import events as ev
from spotrun.run.events import SetUp
from spotrun.run.state import RunState
from spotrun.runner.creation import newborn, region_of
from spotrun.spec.model import RunSpec
from spotrun.store.opening import open_store
from spotrun.strategies.history import MarketHistory
from spotrun.strategies.port import ON_DEMAND as ON_DEMAND_PLACE
from spotrun.strategies.port import Job, Situation
from spotrun.strategies.reserve import Reserve, return_to
from tests.support.decisions import asked, decided, spec
from tests.support.histories import ON_DEMAND, SPOT, START, History, offering
from tests.support.world import SimulatedWorld, TickMarket, Training

EAST, WEST, TOKYO = "us-east-1", "us-west-2", "ap-northeast-1"
IN_EAST = replace(s3_standard(), region=EAST)
GB = 10**9


def at(region: str, capacity_type: CapacityType, price: str) -> Offering:
    return replace(offering(capacity_type, price, f"{region}a"), region=region)


NEAR, FAR = at(EAST, SPOT, "0.40"), at(WEST, SPOT, "0.30")
OFFERED = (NEAR, FAR, at(EAST, ON_DEMAND, "1.20"), at(WEST, ON_DEMAND, "1.20"))


def lost_with(size_gb: float, storage: ev.StoragePrices = IN_EAST, **created: object) -> History:
    """A run that was trained for an hour, left a checkpoint of so many GB, and lost its instance a while ago."""
    history = History(storage, **created)
    launch = history.launch()
    history.record(launch)
    history.start(launch)
    history.resume()
    history.training()
    history.step = 3600
    history.after(3600).commit(size_bytes=int(size_gb * GB))
    history.gone(launch)
    return history.after(1200)


def asks_in(history: History, **wanted: object) -> str:
    """The region that is asked for spot."""
    found = asked(decided(history, spec(**wanted), market=OFFERED))
    assert found is not None
    return found[0][:-1]


# -- where ------------------------------------------------------------------------------------------------------------


def test_the_price_table_has_who_sends_pay() -> None:
    assert (IN_EAST.read_usd_per_gb(TOKYO), IN_EAST.write_usd_per_gb(TOKYO)) == (Decimal("0.02"), Decimal("0.09"))
    assert (IN_EAST.read_usd_per_gb(EAST), IN_EAST.write_usd_per_gb(EAST)) == (0, 0)


def test_a_bucket_in_several_regions_costs_something_at_home_too_and_is_not_far() -> None:
    """Google bills what it copies to another region, and what is read from all of a continent."""
    prices = gcs_prices("us")
    here = replace(prices, between={"local": prices.between["us"]})
    history = lost_with(10, here)

    assert not here.crosses("local")
    assert spent_usd(history.state) >= 10 * Decimal("0.02")
    assert "local $0.02 a GB read, $0.02 written" in assumptions(history.state, None)


def test_unknown_region_of_the_store_has_no_egress() -> None:
    unknown = storage_prices(parse("s3://bucket/runs"))
    assert unknown.read_usd_per_gb(WEST) == unknown.write_usd_per_gb(WEST) == 0
    assert storage_prices("/tmp/runs", EAST).region == ""
    assert asks_in(lost_with(50, unknown)) == WEST


def test_a_large_checkpoint_stays_near_its_bucket_and_a_small_one_goes_where_spot_is_cheap() -> None:
    assert asks_in(lost_with(50)) == EAST
    assert asks_in(lost_with(0.1)) == WEST


def test_data_counts_before_the_first_checkpoint() -> None:
    assert asks_in(History(IN_EAST)) == WEST
    assert asks_in(History(IN_EAST, spec={"data": {"gb": 100}}), data={"gb": 100}) == EAST


def test_rare_checkpoints_cost_less_to_send() -> None:
    assert asks_in(lost_with(1), checkpoint={"every": "30s"}) == EAST
    assert asks_in(lost_with(1), checkpoint={"every": "1h"}) == WEST


def test_on_demand_is_taken_near_the_bucket_too() -> None:
    dear_at_home = (NEAR, at(EAST, ON_DEMAND, "1.20"), at(WEST, ON_DEMAND, "1.19"))
    for size_gb, region in ((0.001, WEST), (5, EAST)):
        wanted = spec(resources={"spot_policy": "on-demand"})
        assert asked(decided(lost_with(size_gb), wanted, market=dear_at_home)) == (f"{region}a", ON_DEMAND)


def test_a_run_with_a_deadline_counts_it_too() -> None:
    policy = {"policy": {"deadline": "8h", "expected_work": "3h"}}
    assert asks_in(lost_with(50, deadline_at=START + timedelta(hours=8)), **policy) == EAST
    assert asks_in(lost_with(0.1, deadline_at=START + timedelta(hours=8)), **policy) == WEST


def moment(running: str | None, tolls: dict[str, float]) -> Situation:
    job = Job(4 * 3600.0, 12 * 3600.0, 360.0, 60.0, 3.0)
    history = MarketHistory.from_pasts({}, 3600.0, ["a"])
    return Situation(job, 3600.0, 4 * 3600.0, running, True, {"a": 1.0}, history, tolls=tolls)


def test_a_toll_is_part_of_what_a_return_to_spot_costs() -> None:
    free, dear = moment(ON_DEMAND_PLACE, {}), moment(ON_DEMAND_PLACE, {"a": 60.0})
    assert return_to("a", dear).cost_s == return_to("a", free).cost_s + 60.0 / 3.0 * 3600
    assert (Reserve().choose(free), Reserve().choose(dear)) == ("a", ON_DEMAND_PLACE)


def test_spot_whose_toll_makes_it_dearer_than_on_demand_is_waited_out() -> None:
    assert Reserve().choose(moment(None, {"a": 1.0})) == "a"
    assert Reserve().choose(moment(None, {"a": 60.0})) is None
    assert Reserve().choose(moment("a", {"a": 60.0})) == "a"  # what runs has paid


def test_why_shows_the_egress_of_an_offering() -> None:
    wanted = spec(data={"gb": 100}, checkpoint={"uri": "s3://bucket/runs"})
    young = newborn(wanted, cloud_of(wanted), ScaledClock(START, 1.0), EAST)
    facts = Facts.at_birth(young, wanted, World(offerings=OFFERED, instances=()))
    told = {each.offering: each.why for each in considered(facts)}
    assert told[NEAR] == "asked first: cheaper spot is far from the bucket, would last less, or was lost"
    assert "the bucket is in us-east-1: each GB of a checkpoint costs $0.02 more, $2.00 a start" in told[FAR]


# -- what it came to ---------------------------------------------------------------------------------------------------


def test_the_bill_has_reads_and_writes_that_crossed_and_none_that_did_not() -> None:
    history = History(replace(IN_EAST, region="elsewhere"), spec={"data": {"gb": 10}})
    for number, how in enumerate(("run", "unpacked")):
        launch = history.launch()
        history.after(60).record(launch)
        history.start(launch, setup=SetUp(seconds=9, how=how, packed_bytes=5 * GB))
        history.resume()
        history.training()
        history.step += 100
        history.after(600).commit(size_bytes=3 * GB)
        history.epoch(number)
        history.commit(size_bytes=3 * GB)
        history.gone(launch)
    summary = summarise(history.state, history.now)
    data, restored, written, packed, unpacked = 2 * 10, 3, 4 * 3, 5, 5
    assert summary.total.egress_usd == Decimal("0.02") * (data + restored + written + packed + unpacked)
    parts = [*summary.epochs, summary.rest]
    assert sum(part.egress_usd for part in parts) == summary.total.egress_usd
    assert summary.total.cost_usd > summary.total.egress_usd
    assert spent_usd(history.state) == summary.total.egress_usd
    assert "egress between the bucket in elsewhere and local $0.02 a GB read" in assumptions(history.state, None)
    at_home = replace(history.state.created, storage=replace(IN_EAST, region="local"))
    assert summarise(replace(history.state, created=at_home), history.now).total.egress_usd == 0


# -- never above the cap -----------------------------------------------------------------------------------------------


def test_a_budget_stays_at_home_until_it_is_known_what_a_checkpoint_costs_to_send() -> None:
    assert asks_in(History(IN_EAST, budget_usd=Decimal(400)), budget={"max_usd": "400"}) == EAST
    assert asks_in(lost_with(0.1, budget_usd=Decimal(400)), budget={"max_usd": "400"}) == WEST


def test_egress_of_a_life_is_reserved_with_its_budget() -> None:
    history = lost_with(0.1, budget_usd=Decimal(400))
    wanted = spec(budget={"max_usd": "400"})
    (intent,) = [each.event for each in decided(history, wanted, market=OFFERED) if hasattr(each, "event")]
    assert isinstance(intent, ev.LaunchIntended)
    life = timedelta(seconds=intent.time_to_live_s)
    facts = Facts(history.state, wanted, World(offerings=OFFERED, instances=()), history.now)
    assert intent.egress_usd == pytest.approx(transfer_limit(facts, WEST).over(life))
    assert intent.egress_usd >= Decimal("0.002") * int(life / timedelta(seconds=30))
    before = history.state.reserved_usd()
    history.write(intent)
    assert history.state.reserved_usd() - before > intent.egress_usd


class FarWorld(SimulatedWorld):
    """Two hours of work, spot in another region than the bucket's, and checkpoints each half a minute."""

    def __init__(self, seed: int, budget: str | None, size_gb: float) -> None:
        spot = {"near": replace(NEAR, zone="near"), "far": replace(FAR, zone="far")}
        up = [{"near": 0.40, "far": 0.30}, {"far": 0.30}, {"near": 0.40}, {}]
        wanted = {
            "name": "demo",
            "workdir": "/tmp",
            "train": {"run": "true"},
            "checkpoint": {"every": "30s", "uri": "s3://bucket/runs"},
            "budget": {} if budget is None else {"max_usd": budget},
            "data": {"gb": 1},
        }
        super().__init__(
            RunSpec.model_validate(wanted),
            Training(steps=2 * 3600, size_bytes=int(size_gb * GB)),
            TickMarket([up[(tick * 7 + seed) % 4] for tick in range(96)], 1800.0, spot, OFFERED[2:]),
            seed=seed,
            idle_s=30.0,
            bucket_region=EAST,
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize("size_gb", [0.001, 0.3])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_egress_takes_no_run_above_its_budget(seed: int, size_gb: float) -> None:
    for budget in ("0.5", "1.3"):
        world = FarWorld(seed, budget, size_gb)
        result = world.run(2e5)
        assert world.done
        assert result.cost_usd <= Decimal(budget)


@pytest.mark.exhaustive
def test_a_run_without_a_budget_does_cross_and_pays_for_it() -> None:
    """What the property above would miss, if nothing ever crossed."""
    world = FarWorld(1, None, 0.01)
    world.run(2e5)
    total = summarise(world.state, world.clock.now()).total
    assert {launch.intent.offering.region for launch in world.state.launches.values()} == {EAST, WEST}
    assert total.egress_usd > Decimal("0.02")


# -- before it is spent ------------------------------------------------------------------------------------------------


def test_a_start_costs_its_toll_in_a_simulated_lifetime() -> None:
    job = Job(3600.0, 7200.0, 360.0, 60.0, 3.0)
    market = [{"a": 1.0}] * 240
    free, tolled = (simulate(Reserve(), job, market, tolls=tolls) for tolls in ({}, {"a": 0.25}))
    assert tolled.starts == free.starts == 1
    assert tolled.cost_usd - free.cost_usd == pytest.approx(0.25)


@pytest.mark.exhaustive
def test_a_forecast_knows_what_crosses_regions() -> None:
    wanted = spec(checkpoint={"every": "10m", "uri": "s3://bucket/runs"})
    hour = timedelta(hours=1)
    known = RunMeasurements(checkpoint_bytes=2 * GB)

    def cost(region: str) -> dict[str, float]:
        created = newborn(wanted, cloud_of(wanted), ScaledClock(START, 1.0), region).created
        found = plan(wanted, [NEAR, OFFERED[2]], 4 * hour, None, 40, measured=known, created=created)
        assert ("traffic between regions is counted, for checkpoints of 2 GB" in found.assumed) == (region == WEST)
        return {row.strategy: row.cost_mean_usd for row in found.forecasts}

    at_home, far = cost(EAST), cost(WEST)
    writes, start = 4 * 6 * 2 * 0.02, 2 * 0.02
    assert far["on_demand_only"] - at_home["on_demand_only"] == pytest.approx(writes + start, rel=0.1)
    assert far["spot_only"] - at_home["spot_only"] > 0.9 * (writes + start)


def test_hourly_egress_is_added_to_any_price() -> None:
    drawn = Drawn(np.array([[True, True], [True, False]]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    ticks = Lifetime(SpotPools("2", ("a", "b"), ("east", "west"), (1.0, 2.0), sending=(0.0, 0.5)), drawn)
    assert list(ticks) == [{"a": 1.0, "b": 2.5}, {"a": 3.0}]


@pytest.mark.exhaustive
def test_the_runner_pays_for_what_crosses_about_what_the_forecast_says() -> None:
    wanted = spec(checkpoint={"every": "10m", "uri": "s3://bucket/runs"}, policy={"return_to_spot": False})
    created = newborn(wanted, cloud_of(wanted), ScaledClock(START, 1.0), WEST).created
    known, hour, market = RunMeasurements(checkpoint_bytes=2 * GB), timedelta(hours=1), [NEAR, OFFERED[2]]
    found = plan(wanted, market, 2 * hour, None, 1, measured=known, created=created)
    lived = by_runner(found, wanted, market, 1, measured=known, created=created)
    assert lived.ticks_usd > 2 * 0.40 + 2 * 6 * 2 * 0.02
    assert lived.runner_usd == pytest.approx(lived.ticks_usd, rel=0.2)


def test_entry_0_holds_the_region_and_the_prices_for_readers(tmp_path: object) -> None:
    wanted = spec(checkpoint={"uri": "s3://bucket/runs"})
    state: RunState = newborn(wanted, cloud_of(wanted), ScaledClock(START, 1.0), EAST)
    entry = ev.Entry(number=0, run="unborn", nonce="", at=START, writer="", event=state.created)
    read = entry_bytes.decode_entry(entry_bytes.encode_entry(entry))
    assert read is not None
    assert read.event == state.created
    assert region_of(open_store(str(tmp_path))) == ""
