"""Ask in one line what the policy decides about a history."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from msgspec.structs import replace

from spotrun.instance import Instance, InstanceState, PriceSegment
from spotrun.market.world import World
from spotrun.offering import CapacityType, Offering
from spotrun.policy import Action, Append, decide
from spotrun.run import events as ev
from spotrun.run.gang import MemberName
from spotrun.spec.model import RunSpec
from tests.support.histories import ON_DEMAND, SPOT, History, offering

MARKET = (
    offering(SPOT, "0.30", "local-a"),
    offering(SPOT, "0.40", "local-b"),
    offering(SPOT, "0.50", "local-c"),
    offering(ON_DEMAND, "1.00", "local-a"),
    offering(ON_DEMAND, "1.00", "local-b"),
)


def spec(**changes: object) -> RunSpec:
    plain = {"name": "demo", "workdir": "/tmp", "train": {"run": "true"}}
    policy = {"on_demand_after": "10m", "return_to_spot": True, "return_cooldown": "10m"}
    return RunSpec.model_validate({**plain, "policy": policy, **changes})


def instance(history: History, launch: int, state: InstanceState = InstanceState.RUNNING, **facts: object) -> Instance:
    made = Instance(
        instance_id=f"i-{launch}",
        token=f"{history.uid}-{launch}",
        run_uid=history.uid,
        launch=launch,
        offering=MARKET[0],
        state=state,
        launched_at=history.now,
        billed_from=history.now,
        prices=(PriceSegment(since=history.now, usd_per_hour=Decimal("0.30")),),
    )
    return replace(made, **facts)


def decided(
    history: History,
    wanted: RunSpec | None = None,
    instances: Iterable[Instance] = (),
    market: tuple[Offering, ...] = MARKET,
    **world: object,
) -> list[Action]:
    for known in ("silent", "heard"):
        world[known] = {named(which): told for which, told in world.get(known, {}).items()}  # type: ignore[attr-defined]
    seen = World(offerings=market, instances=tuple(instances), **world)  # type: ignore[arg-type]
    return decide(history.state, wanted or spec(), seen, history.now)


def named(which: int | MemberName) -> MemberName:
    """A member, or the only one of a launch."""
    return MemberName(which, 0) if isinstance(which, int) else which


def events_of(actions: list[Action]) -> list[ev.AnyEvent]:
    return [action.event for action in actions if isinstance(action, Append)]


def asked(actions: list[Action]) -> tuple[str, CapacityType] | None:
    """Zone and capacity type of the launch that was decided on."""
    intents = [event for event in events_of(actions) if isinstance(event, ev.LaunchIntended)]
    return (intents[0].offering.zone, intents[0].offering.capacity_type) if intents else None


def ask(history: History, wanted: RunSpec | None = None, **world: object) -> tuple[str, CapacityType] | None:
    """Carry out what is decided: a launch that is intended is refused for want of capacity."""
    actions = decided(history, wanted, **world)  # type: ignore[arg-type]
    for event in events_of(actions):
        number = history.write(event)
        if isinstance(event, ev.LaunchIntended):
            history.close(number)
    return asked(actions)


def trains(history: History, capacity_type: CapacityType = SPOT) -> Instance:
    """An attempt that trains, on an instance that the cloud shows."""
    launch = history.running(capacity_type)
    return instance(history, history.state.attempts[launch].launch if launch in history.state.attempts else launch)


POOLS = tuple(replace(found, instance_type="sim-gpu") for found in MARKET)
