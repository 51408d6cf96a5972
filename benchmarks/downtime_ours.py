"""
Our rule in that market: a simulated world, in which the production runner, ledger and policy and the agent's own rules
run over a virtual clock. The result is read from the ledger by the production account.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from math import ceil
from pathlib import Path

from benchmarks.downtime_market import Market
from spotrun.account.timeline import Span, timeline
from spotrun.run.events import Cause
from spotrun.spec.model import RunSpec
from tests.support.world import SimulatedWorld, Training

IDLE_S = 30.0
"""
Seconds between two ticks that would see nothing new; ticks in between are left out: three times as fast, and all
figures stay the same.
"""


class OurWorld(SimulatedWorld):
    """One job in one market; it trains for longer than the horizon, a step a second."""

    def __init__(self, market: Market) -> None:
        self._market, setting = market, market.setting
        super().__init__(
            job_spec(setting.every_s),
            Training(steps=ceil(setting.horizon_s) + 1, epochs=1, stall_s=0.0, upload_s=setting.commit_s),
            market.weather,
            seed=market.seed,
            timings=setting.timings,
            starts=market.start_s,
            idle_s=IDLE_S,
        )
        self._horizon_s = setting.horizon_s

    def life(self) -> tuple[Span, ...]:
        """Return the activity of each instant until the horizon, by the production account."""
        self.run(self._horizon_s)
        assert not self.done, f"the run of seed {self.seed} ended before its horizon"
        return timeline(self.state, self.clock.now())

    def moves(self) -> Iterator[bool]:
        """Yield, for each handover after a recommendation, whether it avoided a loss."""
        for attempt in self.state.attempts.values():
            told, end = attempt.rebalance_at, attempt.end
            if told is None or end is None or end.cause is not Cause.REPLACED:
                continue
            zone = self.state.launch_of(attempt).intent.offering.zone
            loss = self._market.loss_after(zone, self._seconds(told))
            setting = self._market.setting
            yield loss is not None and loss.at_s - self._seconds(told) <= setting.lead_s + setting.notice_s

    def _seconds(self, at: datetime) -> float:
        return (at - self.state.created_at).total_seconds()


def job_spec(every_s: float) -> RunSpec:
    """Return a job on spot, with a checkpoint every `every_s` seconds."""
    return RunSpec.model_validate(
        {
            "name": "demo",
            "workdir": str(Path.cwd()),
            "train": {"run": "true"},
            "resources": {"spot_policy": "spot"},
            "checkpoint": {"every": f"{every_s:.3f}s"},
        }
    )
