"""The entries of a gang, as its members and runners write them. A test names what it cares about."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

from spotrun.instance import PriceSegment
from spotrun.run import events as ev
from spotrun.run.gang import Gang, Layout, Meeting, MemberName, Seat, Shard
from spotrun.run.state import RunState
from tests.support import histories
from tests.support.checkpoint_entries import committed
from tests.support.histories import START, offering


def intended(count: int, for_gang: int | None = None, price: str = "0.36", **fields: Any) -> ev.LaunchIntended:
    more = {"not_after": START + timedelta(days=1), "count": count, "for_gang": for_gang}
    return histories.intended(offering(price=price), **(more | fields))


def recorded(name: MemberName, since: Any = START, price: str = "0.36") -> ev.LaunchRecorded:
    prices = (PriceSegment(since=since, usd_per_hour=Decimal(price)),)
    return ev.LaunchRecorded(
        launch=name.launch, member=name.member, instance_id=f"i-{name}", billed_from=since, prices=prices
    )


def ready(state: RunState, name: MemberName, **fields: Any) -> ev.MemberReady:
    others: dict[str, Any] = {"instance_id": f"i-{name}", "accelerators": 0, "after": state.last_end}
    others |= {"address": f"127.77.{name.launch}.{name.member}", "booted_at": START}
    return ev.MemberReady(launch=name.launch, member=name.member, **(others | fields))


def gang_of(names: Sequence[MemberName], ranks_each: int = 1) -> Gang:
    world = len(names) * ranks_each
    seats = tuple(Seat(name=name, rank=at * ranks_each) for at, name in enumerate(names))
    return Gang(members=seats, world=world, batches=(1,) * world)


def started(names: Sequence[MemberName], ranks_each: int = 1, **fields: Any) -> ev.AttemptStarted:
    lead = names[0]
    others: dict[str, Any] = {"launch": lead.launch, "instance_id": f"i-{lead}", "booted_at": START}
    return ev.AttemptStarted(**(others | {"gang": gang_of(names, ranks_each)} | fields))


def resumed(state: RunState, port: int | None = None, **fields: Any) -> ev.ResumedFrom:
    """At the newest checkpoint. Each incarnation has a port of its own."""
    attempt, newest = state.current, state.latest_commit()
    assert attempt is not None
    lead, incarnation = attempt.names[0], len(attempt.trainers)
    others: dict[str, Any] = {"attempt": attempt.number, "incarnation": incarnation, "epoch": 0}
    others |= {"commit": None, "step": 0} if newest is None else {"commit": newest.number, "step": newest.event.step}
    meet = Meeting(address=f"127.77.{lead.launch}.{lead.member}", port=29_500 + incarnation if port is None else port)
    return ev.ResumedFrom(**(others | {"meet": meet} | fields))


def shard(attempt: int, rank: int, step: int, world: int, **fields: Any) -> Shard:
    others: dict[str, Any] = {"incarnation": 0, "snapshot": 0, "size_bytes": 100, "objects": 1}
    others |= {"blake3": f"{rank:064}"}
    return Shard(attempt=attempt, rank=rank, step=step, world=world, **(others | fields))


def committed_by(attempt: int, shards: Sequence[Shard], layout: Layout = Layout.SHARDED, **fields: Any) -> Any:
    first = shards[0]
    others: dict[str, Any] = {"incarnation": first.incarnation, "manifest_blake3": first.blake3, "layout": layout}
    others |= {"size_bytes": sum(one.size_bytes for one in shards), "objects": sum(one.objects for one in shards)}
    prefix, step = f"checkpoints/{attempt}-{first.incarnation}-{first.snapshot}", first.step
    others |= {"shards": tuple(shards)} | fields
    return committed(attempt, others.pop("prefix", prefix), step, others.pop("taken_at", START), **others)
