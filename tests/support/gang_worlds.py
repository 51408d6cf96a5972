"""Simulated worlds in which three instances train together for an hour, in two zones whose places are counted."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from random import Random
from typing import Any

from msgspec.structs import replace

from spotrun.instance import Instance
from spotrun.run import events as ev
from spotrun.run.billing import ZERO
from spotrun.run.member import Member
from spotrun.run.state import RunState
from spotrun.spec.model import RunSpec
from tests.support.histories import gone
from tests.support.small_worlds import DEAR, ZONES
from tests.support.world import CountedMarket, SimulatedWorld, Training

SIZE = 3
TICK_S = 601.5
STEPS = 3600


def gang_spec(size: int = SIZE, budget_usd: int | None = None, **policy: object) -> RunSpec:
    """A job may not ask for several instances yet: what reads it is told that it does."""
    job = {"name": "demo", "workdir": "/tmp", "train": {"run": "true"}, "checkpoint": {"every": "5m"}}
    wanted = RunSpec.model_validate({**job, "policy": policy, "budget": {"max_usd": budget_usd}})
    return wanted.model_copy(update={"num_nodes": size})


def counted(*pattern: str, tick_s: float = TICK_S) -> CountedMarket:
    """One word for each tick, with a digit for each zone: "30" has three places in `a` and none in `b`."""
    ticks = [dict(zip(ZONES, map(int, word), strict=True)) for word in pattern]
    return CountedMarket(ticks, tick_s, ZONES, DEAR)


def changing(seed: int, ticks: int = 12) -> CountedMarket:
    """Places come and go, and now and then there are enough for a gang."""
    random = Random(seed)
    words = ["33", *("".join(random.choice("0233345") for _ in ZONES) for _ in range(ticks - 1))]
    return counted(*words)


def gang_world(market: CountedMarket, *, seed: int = 0, wanted: RunSpec | None = None, **more: Any) -> SimulatedWorld:
    more.setdefault("idle_s", 30.0)
    return SimulatedWorld(wanted or gang_spec(), Training(steps=STEPS), market, seed=seed, **more)


def training_members(world: SimulatedWorld) -> list[str]:
    """The instances that train now, the lead first."""
    current = world.state.current
    assert current is not None
    members = world.state.members_of(current)
    return [member.recorded.instance_id for member in members if member.recorded is not None]


def members_by_instance(state: RunState) -> dict[str, Member]:
    """By the instance that its end names. Of some the cloud never showed any."""
    gone = ((member.gone, member) for member in state.members())
    return {end.instance_id: member for end, member in gone if end is not None and end.instance_id}


def charged_usd(instances: Sequence[Instance], rule: ev.BillingRule) -> Decimal:
    """What the cloud's own records come to, by the rule of the run's account."""
    return sum((_charged(each, rule) for each in instances), ZERO)


def _charged(instance: Instance, rule: ev.BillingRule) -> Decimal:
    """Each instance by itself, as if it were a run's only one."""
    assert instance.ended_at is not None
    assert instance.ended_by is not None
    end = gone(1, instance.ended_at, instance.ended_by, billed_from=instance.billed_from, prices=instance.prices)
    return replace(Member(), gone=end).meter(rule, instance.offering).cost_until(instance.ended_at)
