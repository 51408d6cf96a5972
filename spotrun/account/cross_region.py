"""
What has crossed regions, in dollars: checkpoints, packed set-ups and data that were read, and checkpoints and set-ups
that were written. Pure.

Bytes that a standby fetched ahead and never trained on are in no ledger, and not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal

from spotrun.run import events as ev
from spotrun.run.billing import ZERO, to_nano
from spotrun.run.state import Launch, RunState

BYTES_PER_GB = 10**9


def data_gb(created: ev.RunCreated) -> Decimal:
    """What an instance reads at its start beside a checkpoint, as the specification says."""
    return Decimal(str((created.spec.get("data") or {}).get("gb", 0)))


def crossings(state: RunState) -> Iterator[tuple[datetime, Decimal]]:
    """When each transfer between regions was known of, and what it cost; in no order."""
    for launch in state.launches.values():
        yield from of_launch(launch, state)


def of_launch(launch: Launch, state: RunState) -> Iterator[tuple[datetime, Decimal]]:
    """Those of one instance."""
    created, region = state.created, launch.intent.offering.region
    if not created.storage.crosses(region):
        return
    read, write = created.storage.read_usd_per_gb(region), created.storage.write_usd_per_gb(region)
    if launch.recorded is not None:
        yield launch.recorded.billed_from, to_nano(read * data_gb(created))
    if launch.attempt is None:
        return
    attempt = state.attempts[launch.attempt]
    if attempt.setup is not None:
        rate = read if attempt.setup.how == "unpacked" else write
        yield attempt.started_at, usd(rate, attempt.setup.packed_bytes)
    sizes = {commit.number: commit.event.size_bytes for commit in state.commits}
    for trainer in attempt.trainers:
        if trainer.commit is not None:
            yield trainer.resumed_at, usd(read, sizes.get(trainer.commit, 0))
    for commit in state.commits:
        if commit.event.attempt == launch.attempt:
            yield commit.at, usd(write, commit.event.stored_bytes)


def usd(usd_per_gb: Decimal, size_bytes: int) -> Decimal:
    return to_nano(usd_per_gb * size_bytes / BYTES_PER_GB)


def spent_usd(state: RunState) -> Decimal:
    """What the instances that are gone have cost so; that of the others lies within what they reserved."""
    gone = (launch for launch in state.launches.values() if launch.gone is not None)
    return sum((amount for launch in gone for _, amount in of_launch(launch, state)), ZERO)
