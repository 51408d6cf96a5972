"""benchmarks/downtime: that its three lives of one job are what their rules say, second by second."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import downtime
from benchmarks.downtime import interruptions
from benchmarks.downtime_market import ZONES, Loss, Market, Setting
from benchmarks.downtime_ours import OurWorld
from benchmarks.downtime_rivals import POLL_AND_RELAUNCH, SCALING_GROUP, spans

LOST_S = 3000.0
HOUR = Setting(horizon_s=3600.0)


class OneLoss(Market):
    """The first zone is taken once, and is empty from then on; elsewhere there is always capacity."""

    def __init__(self, told_s: float | None, setup_s: float, setting: Setting = HOUR) -> None:
        super().__init__(0, setting)
        self._loss, self._setup_s = Loss(LOST_S, told_s), setup_s

    def has(self, zone: str, now_s: float) -> bool:
        gone_s = LOST_S if self._loss.told_s is None else self._loss.told_s
        return zone != ZONES[0] or now_s < gone_s

    def loss_after(self, zone: str, now_s: float) -> Loss | None:
        return self._loss if zone == ZONES[0] and now_s < LOST_S else None

    def start_s(self, ordinal: int) -> tuple[float, float]:
        return 60.0, self._setup_s


def ours(market: Market) -> dict[str, float]:
    (found,) = interruptions(OurWorld(0, market).run())
    return found


def test_a_standby_that_is_ready_in_time_leaves_the_last_save_and_the_fetch() -> None:
    found = ours(OneLoss(LOST_S - 120, setup_s=0.0))
    assert found["save"] == pytest.approx(HOUR.commit_s, abs=1)
    assert found["restore"] == pytest.approx(HOUR.fetch_s, abs=1)
    assert sum(found.values()) - found["save"] - found["restore"] <= 3, found


def test_a_standby_that_needs_longer_than_the_notice_costs_the_rest_of_it() -> None:
    setup_s = 180.0
    found = ours(OneLoss(LOST_S - 120, setup_s=setup_s))
    drained_before_s = 1.5 * HOUR.commit_s + 5 - HOUR.commit_s
    assert found["rework"] == 0.0
    late_s = 60 + setup_s - 120 + drained_before_s
    assert found["boot"] + found["set-up"] == pytest.approx(late_s, abs=10)  # looks at the notice, at the ledger
    assert found["restore"] == pytest.approx(HOUR.imports_s, abs=1)


def test_a_loss_without_a_notice_costs_ours_all_of_it_but_the_poll() -> None:
    found = ours(OneLoss(None, setup_s=50.0))
    assert found["poll"] + found["capacity"] <= 5
    assert found["boot"] == pytest.approx(60, abs=3)
    assert found["set-up"] == pytest.approx(50, abs=1)
    assert 0 < found["rework"] <= HOUR.every_s + HOUR.commit_s


def test_the_others_pay_for_everything_whether_they_are_told_or_not() -> None:
    for told_s in (None, LOST_S - 120):
        market = OneLoss(told_s, setup_s=50.0)
        (polled,), (respawned,) = (
            list(interruptions(spans(rule, 4, market))) for rule in (POLL_AND_RELAUNCH, SCALING_GROUP)
        )
        assert (polled["boot"], polled["set-up"], polled["restore"]) == (60.0, 50.0, HOUR.imports_s)
        kept_s = 118 + (LOST_S - 118 - HOUR.commit_s) // HOUR.every_s * HOUR.every_s
        assert polled["rework"] == pytest.approx(LOST_S - kept_s)
        assert polled["poll"] == pytest.approx((7.5 - LOST_S) % 15)
        assert respawned == polled | {"poll": 0.0}


def test_where_nothing_can_be_had_a_launch_is_tried_again_after_a_minute() -> None:
    class Nowhere(OneLoss):
        def has(self, zone: str, now_s: float) -> bool:
            return super().has(zone, now_s) and not LOST_S <= now_s < LOST_S + 100

    (found,) = interruptions(spans(SCALING_GROUP, 0, Nowhere(None, setup_s=0.0)))
    assert found["capacity"] == 120.0


def test_relaunching_asks_the_other_regions_first() -> None:
    market = OneLoss(None, setup_s=0.0)
    assert POLL_AND_RELAUNCH.zone(market, LOST_S, None) == ZONES[1]
    assert POLL_AND_RELAUNCH.zone(market, LOST_S, ZONES[0]) == ZONES[4]
    assert SCALING_GROUP.zone(market, LOST_S, ZONES[0]) == ZONES[1]


def test_the_program_compares_them_in_the_same_markets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = tmp_path / "out.json"
    words = ["downtime", "--jobs", "4", "--horizon", "43200", "--workers", "2", "--json", str(told)]
    monkeypatch.setattr(sys, "argv", words)
    assert downtime.main() == 0
    facts = json.loads(told.read_text())
    assert set(facts["rules"]) == {"ours", "poll and relaunch", "scaling group"}
    assert all(row["interruptions"] >= 5 for row in facts["rules"].values())
    assert facts["shares"]["poll and relaunch"] < 0.7
    assert "seconds lost an interruption" in capsys.readouterr().out
