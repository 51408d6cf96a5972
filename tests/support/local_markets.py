"""The local cloud's simulated market from a moment on, and steps of its script."""

from __future__ import annotations

from datetime import UTC, datetime

from spotrun.clouds.local.config import MarketConfig, ScriptStep
from spotrun.clouds.local.market import Market
from spotrun.offering import CapacityType, Pool
from spotrun.spec.market_script import Action

ORIGIN = datetime(2026, 3, 1, tzinfo=UTC)
GENERATED = MarketConfig(seed=7, kind="generated")


def pools(config: MarketConfig = GENERATED) -> list[Pool]:
    return [each.pool for each in Market(config, ORIGIN).offerings(ORIGIN)]


SPOT = [pool for pool in pools() if pool.capacity_type is CapacityType.SPOT]


def step(when: str, then: Action, notice_s: float | None = 120, members: int = 1) -> ScriptStep:
    return ScriptStep(when=when, then=then, notice_s=notice_s, members=members)
