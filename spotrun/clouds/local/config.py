"""What a local cloud is told about its market, as plain values that survive JSON."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

from spotrun.clouds.local.catalog import INSTANCE_TYPES, ZONES, InstanceType, Zone
from spotrun.spec.market_script import Action, Trigger, parse_trigger

if TYPE_CHECKING:
    from spotrun.spec.model import LocalMarketSpec  # a supervisor has no use for it, and starts without

NOTICE = timedelta(minutes=2)
"""How long before an interruption EC2 gives notice, when it gives one."""


class ScriptStep(msgspec.Struct, frozen=True, kw_only=True):
    """
    Once `when` holds, do `then`; only after that is the next step looked at.

    `when` is the text of a trigger (spotrun.spec.market_script). `notice_s` is run time; None is without notice.
    """

    when: str
    then: Action
    notice_s: float | None = NOTICE.total_seconds()

    @property
    def trigger(self) -> Trigger:
        return parse_trigger(self.when)

    @property
    def notice(self) -> timedelta | None:
        return None if self.notice_s is None else timedelta(seconds=self.notice_s)


class MarketConfig(msgspec.Struct, frozen=True, kw_only=True):
    """
    Which market the instances of a run live in.

    `kind` calm: fixed prices, and capacity for ever. generated: prices, capacity and interruptions follow from
    `seed` and run time alone. The steps of `script` happen on top of either. `boot_s` passes between launch and
    the start of an instance, in run time. Before the share `recommended` of a generated market's interruptions a
    recommendation to rebalance comes, and as many come that nothing follows.
    """

    seed: int = 0
    kind: Literal["calm", "generated"] = "calm"
    boot_s: float = 60.0
    recommended: float = 0.0
    script: tuple[ScriptStep, ...] = ()
    instance_types: tuple[InstanceType, ...] = INSTANCE_TYPES
    zones: tuple[Zone, ...] = ZONES


def market_config(spec: LocalMarketSpec) -> MarketConfig:
    """The market that a job describes."""
    steps = tuple(
        ScriptStep(
            when=str(step.when),
            then=step.then,
            notice_s=None if step.notice is None else step.notice.total_seconds(),
        )
        for step in spec.script
    )
    return MarketConfig(
        seed=spec.seed,
        kind=spec.market,
        boot_s=spec.boot.total_seconds(),
        recommended=float(spec.recommended or 0),
        script=steps,
    )
