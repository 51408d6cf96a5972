"""Where to ask first: by price, by what a pool did to this run, and by what it did to the runs before it."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from math import exp
from random import Random

import pytest
from msgspec.structs import replace

from spotrun.clock import ScaledClock
from spotrun.clouds.registry import cloud_of
from spotrun.errors import StoreError, StoreUnavailable
from spotrun.folder.market_record import FOLDER, KEPT, READ_EVERY, MarketRecord
from spotrun.instance import EndedBy
from spotrun.market.observations import REFUSALS_APART, Fate, Observation, observations_of, past_by_pool
from spotrun.market.world import World
from spotrun.policy.explain import considered
from spotrun.policy.facts import Facts
from spotrun.policy.pools import TROUBLE_LASTS
from spotrun.run.state import Launch
from spotrun.runner.creation import newborn
from spotrun.strategies.history import FADING_S, MarketHistory, Past
from tests.support.decisions import MARKET, POOLS, asked, decided, spec
from tests.support.histories import ON_DEMAND, SPOT, START, History
from tests.support.memory_store import MemoryStore
from tests.support.played_run import PlayedRun
from tests.support.world.faults import Watched


def other(**created: object) -> History:
    return History(**{"uid": "other", **created})


def lost(history: History) -> History:
    """The first spot instance of a run, in local-a, is taken half an hour after it was asked for."""
    launch = history.running()
    history.after(1700).gone(launch, EndedBy.CLOUD)
    return history


def told(history: History, store: MemoryStore, **reader: object) -> tuple[Observation, ...]:
    """What another run, born when this one has told all, learns from the store."""
    MarketRecord(store).exchange(history.state, MARKET, history.now)
    return MarketRecord(store).exchange(History(**reader).after(0).state, MARKET, history.now)


@pytest.mark.parametrize("zone", ["gpu_a100-40.x", "_", "a_lost_b_spot_1800_c_17"])
def test_observation_of_a_zone_with_any_name_is_read(zone: str) -> None:
    pool = replace(POOLS[0], zone=zone)
    history, store = other(), MemoryStore()
    history.close(history.launch(zone=zone))
    reader = MarketRecord(store)
    MarketRecord(store).exchange(history.state, (pool,), history.now)
    (seen,) = reader.exchange(History().after(0).state, (pool,), history.now)
    assert seen.pool == pool.pool
    assert reader.trouble is None


# -- the order of asking ---------------------------------------------------------------------------------------------


def test_the_next_run_does_not_ask_first_where_the_run_before_it_was_just_lost() -> None:
    """SkyPilot#10021: a relaunch went to the very zone that had just taken the instance back."""
    before = PlayedRun(steps=10**9, uid="before")
    runner = before.runner()
    for _ in range(12):
        before.turn()
        runner.tick()
    victim = before.training_on()
    assert victim is not None
    assert victim.offering.zone == "local-1a"
    before.cloud.end(victim.instance_id, EndedBy.CLOUD)
    before.settle(runner, 6)
    after = PlayedRun(before, uid="after")
    after.settle(after.runner())
    zones = {found.run_uid: found.offering.zone for found in after.cloud.alive}
    assert zones == {"before": "local-1b", "after": "local-1b"}


def test_pool_that_refused_another_run_comes_last_for_a_while_and_a_notice_counts_as_a_loss() -> None:
    refused, noticed = other(), other(uid="third")
    refused.close(refused.launch())
    noticed.running()
    noticed.notice()
    for history, kind in ((refused, Fate.REFUSED), (noticed, Fate.LOST)):
        seen = tuple(observations_of(history.state))
        assert [each.kind for each in seen] == [kind]
        young = History().after((history.now - START).total_seconds() + 60)
        assert asked(decided(young, market=POOLS, observations=seen)) == ("local-b", SPOT)
        young.after(TROUBLE_LASTS.total_seconds())
        assert asked(decided(young, market=POOLS, observations=seen)) == ("local-a", SPOT)


def test_a_cheaper_pool_that_others_keep_losing_comes_after_a_dearer_one_that_lasts() -> None:
    at = START - timedelta(hours=1)
    facts = {"run": "other", "cloud": "local", "region": "local", "launch": 1}
    shaky = [Observation(pool=POOLS[0].pool, kind=Fate.LOST, at=at, up_s=120, **facts) for _ in range(8)]
    firm = Observation(pool=POOLS[1].pool, kind=Fate.KEPT, at=at, up_s=6 * 3600, **facts)
    near = (POOLS[0], replace(POOLS[1], price_usd_per_hour=Decimal("0.33")), *POOLS[2:])
    assert asked(decided(History(), market=near)) == ("local-a", SPOT)
    assert asked(decided(History(), market=near, observations=(*shaky, firm))) == ("local-b", SPOT)


def test_spot_that_lasts_too_shortly_to_be_cheap_is_left_for_on_demand_and_not_returned_to() -> None:
    at = START - timedelta(minutes=20)
    facts = {"run": "other", "cloud": "local", "region": "local", "launch": 1}
    shaky = tuple(
        Observation(pool=found.pool, kind=Fate.LOST, at=at, up_s=30, **facts) for found in POOLS[:3] for _ in range(60)
    )
    market = (*POOLS[:3], replace(POOLS[3], price_usd_per_hour=Decimal("0.50")))
    spot_only = spec(resources={"spot_policy": "spot"})
    assert asked(decided(History(), market=market, observations=shaky)) == ("local-a", ON_DEMAND)
    assert asked(decided(History(), spot_only, market=market, observations=shaky)) == ("local-a", SPOT)
    settled = History()
    settled.running(ON_DEMAND)
    settled.after(3600)
    assert asked(decided(settled, market=market, observations=shaky)) is None
    assert asked(decided(settled, market=market)) == ("local-a", SPOT)


def test_a_short_rest_of_work_is_still_done_on_spot_as_on_demand_would_have_to_start_too() -> None:
    dear = tuple(replace(found, price_usd_per_hour=Decimal("0.80")) for found in POOLS[:1])
    short = spec(policy={"expected_work": "1m"})
    assert asked(decided(History(), short, market=(*dear, POOLS[3]))) == ("local-a", SPOT)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2))
def test_fallback_does_not_flap_however_spot_comes_and_goes(seed: int) -> None:
    """On-demand, once paid for, is kept for the cool-down."""
    played, rng = PlayedRun(steps=10**9), Random(seed)
    runner = played.runner(policy={"on_demand_after": "1m", "return_cooldown": "10m"})
    spot = {found.pool for found in played.market.all.values() if found.pool.capacity_type is SPOT}
    for _ in range(30):
        played.market.empty = rng.choice([set(), spot])
        for _ in range(rng.randint(5, 25)):
            for found in played.cloud.alive:
                if found.offering.pool in played.market.empty:
                    played.cloud.end(found.instance_id, EndedBy.CLOUD)
            played.turn()
            runner.tick()
    state = played.state
    bought = [attempt for attempt in state.attempts.values() if _bought(state.launch_of(attempt))]
    left = [attempt for attempt in bought if attempt.end is not None]
    assert left
    assert all(attempt.end.known_at - attempt.started_at >= timedelta(minutes=10) for attempt in left)


def _bought(launch: Launch) -> bool:
    return launch.intent.offering.capacity_type is ON_DEMAND


def test_a_plan_says_why_each_offering_would_be_asked_by_what_others_saw() -> None:
    young = newborn(spec(), cloud_of(spec()), ScaledClock(START, 1.0))
    at = young.created_at - timedelta(minutes=4)
    seen = Observation(
        run="other", cloud="local", region="local", launch=1, pool=POOLS[0].pool, kind=Fate.LOST, at=at, up_s=600
    )
    capped = spec(resources={"max_price": "0.45"})
    plain = considered(Facts.at_birth(young, capped, World(offerings=POOLS, instances=())))
    warned = considered(Facts.at_birth(young, capped, World(offerings=POOLS, instances=(), observations=(seen,))))
    assert [(each.offering.zone, each.why) for each in plain] == [
        ("local-a", "asked first: the cheapest spot"),
        ("local-b", "if those above have no capacity, or the run lost an instance there"),
        ("local-c", "above max_price"),
        ("local-a", "above max_price"),
        ("local-b", "above max_price"),
    ]
    assert [(each.offering.zone, each.why) for each in warned[:2]] == [
        ("local-b", "asked first: cheaper spot would last less, or was lost"),
        ("local-a", "asked last: an instance was lost there 4m ago"),
    ]
    on_demand = considered(
        Facts.at_birth(young, spec(resources={"spot_policy": "on-demand"}), World(offerings=POOLS, instances=()))
    )
    assert [each.why for each in on_demand][-3:] == ["spot_policy is on-demand"] * 3


# -- what is told ----------------------------------------------------------------------------------------------------


def test_another_run_reads_what_was_told_exactly() -> None:
    history = lost(other())
    (seen,) = told(history, MemoryStore())
    assert seen == replace(next(iter(observations_of(history.state))), up_s=seen.up_s)
    assert (seen.kind, seen.pool.zone, seen.up_s) == (Fate.LOST, "local-a", 1790)


def test_a_run_that_was_not_lost_tells_for_how_long_its_instance_was_there() -> None:
    history = other()
    launch = history.running()
    history.after(3600).completed(history.commit(final=True))
    history.gone(launch, EndedBy.ITSELF)
    (seen,) = observations_of(history.state)
    assert (seen.kind, seen.up_s) == (Fate.KEPT, 3690)


def test_pool_that_keeps_refusing_is_recorded_now_and_then_and_counts_as_lost_once() -> None:
    history = other()
    for _ in range(21):
        history.close(history.launch())
        history.after(60)
    seen = list(observations_of(history.state))
    assert len(seen) == 1 + timedelta(minutes=20) // REFUSALS_APART
    faded = exp(-20 * 60 / FADING_S)
    assert past_by_pool(seen, history.now)[POOLS[0].pool].losses == pytest.approx(faded, abs=0.01)


def test_observations_add_up_to_a_watched_market() -> None:
    watched = MarketHistory().observed({"z"}, 0.0).observed(set(), 5000.0)
    told_of = MarketHistory.from_pasts({"z": Past.of(lost=True, up_s=5000.0, ago_s=4000.0)}, 9000.0)
    lives = [history.expected_life_s("z", 9000.0, 7200.0) for history in (watched, told_of)]
    assert lives[0] == pytest.approx(lives[1])
    assert lives[0] != pytest.approx(MarketHistory().expected_life_s("z", 9000.0, 7200.0))


def test_two_runners_of_a_run_record_the_same_and_overwrite_nothing() -> None:
    store, called = MemoryStore(), []
    watched = Watched(store, called.append, lambda _: None)
    history = lost(other())
    for _ in range(2):
        MarketRecord(watched).exchange(history.state, MARKET, history.now)
    assert len(store.objects) == 1
    assert {"put", "put_status", "delete"}.isdisjoint(called)


def test_the_store_is_listed_once_a_minute_while_there_is_nothing_to_tell() -> None:
    store, called = MemoryStore(), []
    record = MarketRecord(Watched(store, called.append, lambda _: None))
    history = History()
    for _ in range(60):
        record.exchange(history.after(2).state, MARKET, history.now)
    assert called.count("list") == timedelta(seconds=120) // READ_EVERY


def test_old_observation_is_neither_used_nor_kept() -> None:
    store = MemoryStore()
    told(lost(other()), store)
    later = lost(other(uid="late").after(KEPT.total_seconds() + 3600))
    (seen,) = told(later, store)
    assert seen.run == "late"
    assert len(store.objects) == 1


def test_a_sighting_cannot_be_newer_than_its_object_and_clocks_of_other_speeds_stay_apart() -> None:
    store = MemoryStore()
    ahead = lost(other())
    store._now = lambda: START  # a store whose clock is behind that of the writer, or a writer that lies
    (seen,) = told(ahead, store)
    assert seen.at == START
    assert told(ahead, store, time_scale=60.0) == ()


def test_runs_on_a_faster_clock_meet_in_the_time_of_the_wall() -> None:
    store = MemoryStore()
    first = lost(other(time_scale=60.0))
    MarketRecord(store).exchange(first.state, MARKET, first.now)
    ended_on_the_wall = START + (first.now - START) / 60
    second = History(time_scale=60.0, clock_epoch=ended_on_the_wall + timedelta(seconds=10))
    store._written_at = dict.fromkeys(store.objects, ended_on_the_wall)
    (seen,) = MarketRecord(store).read(second.state.created, MARKET, second.state.created.clock_epoch)
    assert second.state.created.clock_epoch - seen.at == timedelta(minutes=10)


# -- a record that cannot be used ------------------------------------------------------------------------------------


def test_objects_that_are_no_sightings_are_passed_over_and_said() -> None:
    store = MemoryStore()
    told(lost(other()), store)
    (name,) = store.objects
    folder = name.rpartition("/")[0]
    for junk in ("notes.txt", "20261399T000000.000000Z_lost_a_b_spot_1_x_1", name.rpartition("/")[2][:-4] + "_"):
        store.put_status(f"{folder}/{junk}", b"\xff")
    store.put_status(name, b"damaged")
    record = MarketRecord(store)
    history = lost(other())
    assert len(record.exchange(History().state, MARKET, history.now)) == 1
    assert record.trouble == f"skipped objects in {FOLDER}/ that are not observations: 3"


@pytest.mark.parametrize("error", [StoreError("access denied"), StoreUnavailable("connection reset")])
def test_a_run_trains_on_without_the_record_and_says_so_until_it_is_back(error: StoreError) -> None:
    played, faults = PlayedRun(steps=10**9), [True]

    def fail(_: str) -> None:
        if faults[0]:
            raise error

    played.beside = Watched(played.beside, fail, lambda _: None)
    runner = played.runner()
    seen = runner.tick()
    for _ in range(12):
        played.turn()
        seen = runner.tick()
    assert played.training_on() is not None
    assert seen.remark == f"other runs' observations of the market cannot be used: {error.message}"
    faults[0] = False
    played.clock.advance(READ_EVERY.total_seconds())
    assert runner.tick().remark is None


def test_failed_observation_is_written_later() -> None:
    store, faults = MemoryStore(), [True]

    def fail(name: str) -> None:
        if faults[0] and name == "put_if_absent":
            raise StoreUnavailable("connection reset")

    record, history = MarketRecord(Watched(store, fail, lambda _: None)), lost(other())
    record.exchange(history.state, MARKET, history.now)
    assert not store.objects
    faults[0] = False
    record.exchange(history.state, MARKET, history.after(READ_EVERY.total_seconds()).now)
    assert len(store.objects) == 1
