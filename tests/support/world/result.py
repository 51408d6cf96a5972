"""What became of a simulated run: the account that a report would show, and a hash of all that happened."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal

import msgspec

from spotrun.account.summary import summarise
from spotrun.instance import Instance
from spotrun.run.events import Entry, RunCreated
from spotrun.run.state import RunState


class RunResult(msgspec.Struct, frozen=True):
    """
    One world's run, by the account of the real reports.

    `finished_s` is None where the training was not completed; `missed` is against its deadline. `cost_usd` includes
    storage, requests and egress, `instances_usd` does not. `seconds` are those of each kind of the timeline, productive
    time included. `bought` has the capacity type of each attempt. `trace_sha256` is equal where everything happened
    alike.
    """

    seed: int
    outcome: str
    finished_s: float | None
    deadline_s: float | None
    cost_usd: Decimal
    instances_usd: Decimal
    egress_usd: Decimal
    losses: int
    steps_redone: int
    seconds: dict[str, float]
    bought: tuple[str, ...]
    entries: int
    trace_sha256: str

    @property
    def missed(self) -> bool:
        return self.deadline_s is not None and (self.finished_s is None or self.finished_s > self.deadline_s)

    @property
    def downtime_s(self) -> float:
        return sum(self.seconds.values()) - self.seconds["productive"] - self.seconds["paused"]


def result_of(
    seed: int, state: RunState, entries: Iterable[Entry], instances: Iterable[Instance], now: datetime
) -> RunResult:
    summary = summarise(state, now)
    created, began_at, total = state.created, summary.started_at, summary.total
    completed = summary.state == "completed" and summary.ended_at is not None
    return RunResult(
        seed=seed,
        outcome=summary.state,
        finished_s=(summary.ended_at - began_at).total_seconds() if completed and summary.ended_at else None,
        deadline_s=None if created.deadline_at is None else (created.deadline_at - began_at).total_seconds(),
        cost_usd=total.cost_usd,
        instances_usd=total.spot_usd + total.on_demand_usd,
        egress_usd=total.egress_usd,
        losses=total.interruptions,
        steps_redone=total.steps_redone,
        seconds={str(kind): time.total_seconds() for kind, time in total.times.items()},
        bought=tuple(str(state.launch_of(each).intent.offering.capacity_type) for each in state.attempts.values()),
        entries=state.next_number,
        trace_sha256=trace_sha256(entries, instances),
    )


def trace_sha256(entries: Iterable[Entry], instances: Iterable[Instance]) -> str:
    """
    Of every entry of the ledger, with its moment and writer, and of the life of every instance.

    What differs between two equal worlds is left out: nonces, and the run's own uid and specification in entry 0.
    """
    trace = hashlib.sha256()
    for entry in entries:
        event = None if isinstance(entry.event, RunCreated) else entry.event
        trace.update(msgspec.json.encode((entry.number, entry.at, entry.writer, event)))
    for instance in instances:
        trace.update(msgspec.json.encode(msgspec.structs.replace(instance, run_uid="", token="")))
    return trace.hexdigest()
