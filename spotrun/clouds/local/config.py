"""The configuration of a local cloud's market, as plain values that can be stored as JSON."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

from spotrun.clouds.local.catalog import INSTANCE_TYPES, ZONES, InstanceType, Zone
from spotrun.spec.market_script import Action, Trigger, parse_trigger

if TYPE_CHECKING:
    from spotrun.spec.model import LocalMarketSpec  # a supervisor starts faster without this import

NOTICE = timedelta(minutes=2)
"""Time from EC2's notice to the interruption, if EC2 sends a notice."""


class ScriptStep(msgspec.Struct, frozen=True, kw_only=True):
    """
    One step of a market's script. As soon as the condition `when` is true, the action `then` happens. The next step can
    happen only after that.

    `when` is the text of a trigger (spotrun.spec.market_script). `notice_s` is in run time; None means no notice. In a
    gang, the action affects `members` instances, and happens only when at least that many are training.
    """

    when: str
    then: Action
    notice_s: float | None = NOTICE.total_seconds()
    members: int = 1

    @property
    def trigger(self) -> Trigger:
        return parse_trigger(self.when)

    @property
    def notice(self) -> timedelta | None:
        return None if self.notice_s is None else timedelta(seconds=self.notice_s)


class MarketConfig(msgspec.Struct, frozen=True, kw_only=True):
    """
    The simulated market of a run.

    If `kind` is calm, prices are fixed and there is always capacity. If it is generated, prices, capacity and
    interruptions depend only on `seed` and run time. The steps of `script` happen in both kinds of market.

    `boot_s` is the run time between a launch and the start of the instance. `recommended` is for a generated market:
    the share of interruptions that are preceded by a recommendation to rebalance. The market has equally many false
    recommendations, which no interruption follows. `capacity` is the maximum number of instances that the run can have
    in a spot pool at the same time; None means no limit.
    """

    seed: int = 0
    kind: Literal["calm", "generated"] = "calm"
    boot_s: float = 60.0
    recommended: float = 0.0
    capacity: int | None = None
    script: tuple[ScriptStep, ...] = ()
    instance_types: tuple[InstanceType, ...] = INSTANCE_TYPES
    zones: tuple[Zone, ...] = ZONES


def market_config(spec: LocalMarketSpec) -> MarketConfig:
    steps = tuple(
        ScriptStep(
            when=str(step.when),
            then=step.then,
            notice_s=None if step.notice is None else step.notice.total_seconds(),
            members=step.members or 1,
        )
        for step in spec.script
    )
    return MarketConfig(
        seed=spec.seed,
        kind=spec.market,
        boot_s=spec.boot.total_seconds(),
        recommended=float(spec.recommended or 0),
        capacity=spec.capacity,
        script=steps,
    )
