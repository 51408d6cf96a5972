"""benchmarks/downtime: that its three lives of one job are what their rules say, second by second."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from math import inf

import pytest

from benchmarks import downtime
from benchmarks.downtime import interruptions
from benchmarks.downtime_market import ON_DEMAND, SPOT, ZONES, Market, Setting
from benchmarks.downtime_ours import OurWorld
from benchmarks.downtime_rivals import LAUNCHED_AT, POLL_AND_RELAUNCH, POLL_WITH_PACKS, SCALING_GROUP, spans
from spotrun.instance import EndedBy
from tests.support.world import TickMarket
from tests.support.world.rng import Rng

LOST_S = 3000.0
HOUR = Setting(horizon_s=3600.0, unannounced=0.0).unwarned.anew
SILENT_HOUR = replace(HOUR, unannounced=1.0)


def but(*lost: str) -> dict[str, float]:
    return {zone: float(SPOT[zone].price_usd_per_hour) for zone in ZONES if zone not in lost}


def one_loss(setup_s: float, setting: Setting = HOUR, seed: int = 0, nowhere_s: int = 0) -> Market:
    """The first zone is taken once, and is empty from then on, and the others too for `nowhere_s`, in hundreds."""
    weather = [but()] * 30 + [but(*ZONES)] * (nowhere_s // 100) + [but(ZONES[0])] * 30
    market = TickMarket(weather, LOST_S / 30, SPOT, on_demand=(ON_DEMAND,))
    return Market(seed, replace(setting, boot_s=(60.0, 60.0), setup_s=(setup_s, setup_s)), market)


def seconds(at: datetime) -> float:
    return (at - LAUNCHED_AT).total_seconds()


def ours(market: Market) -> dict[str, float]:
    (found,) = interruptions(OurWorld(market).life())
    return found


def test_a_standby_that_is_ready_in_time_leaves_the_last_save_and_the_fetch() -> None:
    found = ours(one_loss(setup_s=0.0))
    assert found["save"] == pytest.approx(HOUR.commit_s, abs=1)
    assert found["restore"] == pytest.approx(HOUR.fetch_s, abs=1)
    assert sum(found.values()) - found["save"] - found["restore"] <= 3, found


def test_a_standby_that_needs_longer_than_the_notice_costs_the_rest_of_it() -> None:
    setup_s = 180.0
    found = ours(one_loss(setup_s))
    drained_before_s = 1.5 * HOUR.commit_s + 5 - HOUR.commit_s
    assert found["rework"] == 0.0
    late_s = 60 + setup_s - 120 + drained_before_s
    assert found["boot"] + found["set-up"] == pytest.approx(late_s, abs=10)  # looks at the notice, at the ledger
    assert found["restore"] == pytest.approx(HOUR.imports_s, abs=1)


def test_a_set_up_that_was_packed_is_ready_at_the_notice_however_long_the_first_took() -> None:
    packing = replace(HOUR, unpack=0.1)
    assert ours(one_loss(180.0, packing)) == pytest.approx(ours(one_loss(18.0, HOUR)), abs=1)
    market = one_loss(180.0, packing)
    (polled,), (packed,) = (list(interruptions(spans(rule, market))) for rule in (POLL_AND_RELAUNCH, POLL_WITH_PACKS))
    assert (polled["set-up"], packed["set-up"]) == (180.0, pytest.approx(18.0))


def test_setup_lost_before_it_was_stored_runs_again() -> None:
    setting = replace(SILENT_HOUR, unpack=0.9, horizon_s=5500.0)
    found = ours(one_loss(1700.0, setting))  # ready after 1760 s, stored after 3290
    assert found["set-up"] == pytest.approx(1700, abs=1)


def test_a_loss_without_a_notice_costs_ours_all_of_it_but_the_poll() -> None:
    found = ours(one_loss(50.0, SILENT_HOUR))
    assert found["poll"] + found["capacity"] <= 5
    assert found["boot"] == pytest.approx(60, abs=3)
    assert found["set-up"] == pytest.approx(50, abs=1)
    assert 0 < found["rework"] <= HOUR.every_s + HOUR.commit_s


def test_a_move_before_a_recommended_loss_costs_the_handover_and_counts_as_the_loss_that_it_spared() -> None:
    warned = replace(HOUR, recommended=1.0)
    market = next(found for found in (one_loss(180.0, warned, seed) for seed in range(20)) if _lead_s(found) > 300)
    lost = downtime.ours(market)
    (found,) = lost.stretches
    assert (lost.moves, lost.in_vain) == (1, 0)
    assert found["save"] == pytest.approx(HOUR.commit_s, abs=1)
    assert sum(found.values()) <= HOUR.commit_s + HOUR.fetch_s + 4, found


def _lead_s(market: Market) -> float:
    told_s = market.setting.timings.recommended_s(Rng(market.seed), SPOT[ZONES[0]].pool, LOST_S, 0.0, "")
    return LOST_S - HOUR.notice_s - told_s


def test_a_move_in_vain_is_no_interruption_and_its_seconds_are_counted() -> None:
    stretch = dict.fromkeys(downtime.CAUSES, 0.0)
    spared, in_vain, late = ({**stretch, "save": seconds} for seconds in (14.0, 16.0, 90.0))
    found = downtime.figures([downtime.Lost([spared, in_vain], moves=2, in_vain=1), downtime.Lost([late])])
    assert (found["interruptions"], found["moves"], found["in_vain"]) == (2, 2, 1)
    assert found["mean"] == 60.0


def test_baselines_pay_for_everything_with_or_without_a_notice() -> None:
    for setting in (HOUR, SILENT_HOUR):
        market = one_loss(50.0, setting, seed=4)
        (polled,), (respawned,) = (
            list(interruptions(spans(rule, market))) for rule in (POLL_AND_RELAUNCH, SCALING_GROUP)
        )
        assert (polled["boot"], polled["set-up"], polled["restore"]) == (60.0, 50.0, HOUR.imports_s)
        kept_s = 118 + (LOST_S - 118 - HOUR.commit_s) // HOUR.every_s * HOUR.every_s
        assert polled["rework"] == pytest.approx(LOST_S - kept_s)
        assert polled["poll"] == pytest.approx((7.5 - LOST_S) % 15)
        assert respawned == polled | {"poll": 0.0}


def test_where_nothing_can_be_had_a_launch_is_tried_again_after_a_minute() -> None:
    (found,) = interruptions(spans(SCALING_GROUP, one_loss(0.0, SILENT_HOUR, nowhere_s=100)))
    assert found["capacity"] == 120.0


def test_relaunching_asks_the_other_regions_first() -> None:
    market = one_loss(0.0)
    assert POLL_AND_RELAUNCH.zone(market, LOST_S, None) == ZONES[1]
    assert POLL_AND_RELAUNCH.zone(market, LOST_S, ZONES[0]) == ZONES[4]
    assert SCALING_GROUP.zone(market, LOST_S, ZONES[0]) == ZONES[1]


def test_a_zone_that_will_be_taken_gives_out_nothing_from_the_notice_on() -> None:
    told_s = LOST_S - HOUR.notice_s
    for setting, given in ((HOUR, False), (SILENT_HOUR, True)):
        market = one_loss(0.0, setting)
        assert market.has(ZONES[0], told_s - 1)
        assert market.has(ZONES[0], told_s + 1) is given
        assert not market.has(ZONES[0], LOST_S)


def test_ours_meets_the_losses_and_the_starts_that_the_others_meet() -> None:
    market = Market(11, Setting(horizon_s=2 * 3600.0, unannounced=0.5).unwarned)
    world = OurWorld(market)
    world.life()
    told = set()
    for each in world.cloud.all:
        loss = market.loss_after(each.offering.zone, seconds(each.launched_at))
        if each.notice_deadline is None and each.ended_by is not EndedBy.CLOUD:
            continue
        lost_at = each.notice_deadline or each.ended_at
        assert loss is not None
        assert lost_at is not None
        assert seconds(lost_at) == pytest.approx(loss.at_s)
        assert (each.notice_deadline is not None) == (loss.told_s < inf)
        told.add(loss.told_s < inf)
    assert told == {False, True}
    for attempt in world.state.attempts.values():
        boot_s = seconds(attempt.booted_at) - seconds(world.state.launch_of(attempt).intended_at)
        assert boot_s == pytest.approx(market.start_s(world.cloud.ordinal(attempt.instance_id))[0])
