"""
Measures how long a ledger takes to become a state, and that state an account.

The ledger is made here: instances one after the other, each of which trains, commits every minute, retires what is too
old, completes epochs, and is taken away after a notice. Every second checkpoint borrows parts from the one before.

    python -m benchmarks.fold --entries 100000

Three lengths are measured, a quarter, a half and all of it: if the work is linear, entries a second stay the same.
Seconds are of CPU time, so that they do not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice

import msgspec

from benchmarks.arguments import at_least
from spotrun.account.storage_prices import storage_prices
from spotrun.account.summary import summarise
from spotrun.address import parse
from spotrun.instance import EndedBy, PriceSegment
from spotrun.offering import CapacityType, Offering
from spotrun.run import events as ev
from spotrun.run.billing import LOCAL_RULE
from spotrun.run.fold import fold

UID = "0123456789"
START = datetime(2026, 3, 1, tzinfo=UTC)
COMMITS_OF_AN_INSTANCE = 60
COMMITS_OF_AN_EPOCH = 4
STEPS_OF_A_COMMIT = 100
KEPT = 5
PRICE = Decimal("0.36")
SPOT = Offering(
    cloud="local",
    region="local",
    zone="local-a",
    instance_type="sim-v100",
    capacity_type=CapacityType.SPOT,
    price_usd_per_hour=PRICE,
    simulated=True,
)
DIGEST = "0" * 64


class Measured(msgspec.Struct, frozen=True):
    """One length of ledger. `voids` has to be 0: an entry without effect is folded for nothing."""

    entries: int
    fold_s: float
    entries_per_s: float
    summary_s: float
    commits: int
    launches: int
    voids: int


class _Training:
    """Yields the next events, without end. It knows its own numbers, so nothing is folded while the ledger is made."""

    def __init__(self) -> None:
        self._number = 0
        self._now = START
        self._step = self._epoch = 0
        self._kept: list[tuple[int, str]] = []

    def entries(self) -> Iterator[ev.Entry]:
        yield self._entry(self._created())
        while True:
            yield from self._instance()

    def _entry(self, event: ev.AnyEvent, after_s: float = 1) -> ev.Entry:
        self._now += timedelta(seconds=after_s)
        number, self._number = self._number, self._number + 1
        return ev.Entry(number=number, run=UID, nonce=f"n{number}", at=self._now, writer="benchmark", event=event)

    def _created(self) -> ev.RunCreated:
        return ev.RunCreated(
            uid=UID,
            name="fold",
            ledger_version=ev.LEDGER_VERSION,
            spec={},
            spec_sha256=DIGEST,
            workdir_sha256=DIGEST,
            clock_epoch=START,
            time_scale=1.0,
            price_cap_usd_per_hour=None,
            budget_usd=Decimal(10**6),
            storage=storage_prices(parse("s3://bucket/runs"), "us-east-1"),
            billing=LOCAL_RULE,
            simulated=True,
        )

    def _instance(self) -> Iterator[ev.Entry]:
        launch, price = self._number, (PriceSegment(since=self._now, usd_per_hour=PRICE),)
        yield self._entry(self._intent())
        began, name = self._now, f"i-{launch}"
        yield self._entry(ev.LaunchRecorded(launch=launch, instance_id=name, billed_from=began, prices=price))
        attempt = self._number
        yield self._entry(ev.AttemptStarted(launch=launch, instance_id=name, booted_at=self._now), 30)
        newest = self._kept[-1][0] if self._kept else None
        resumed = ev.ResumedFrom(attempt=attempt, incarnation=0, commit=newest, epoch=self._epoch, step=self._step)
        yield self._entry(resumed)
        yield self._entry(ev.TrainingStarted(attempt=attempt, incarnation=0, step=self._step + 1))
        for count in range(COMMITS_OF_AN_INSTANCE):
            yield from self._commit(attempt, ends_epoch=count % COMMITS_OF_AN_EPOCH == COMMITS_OF_AN_EPOCH - 1)
        deadline_at, final = self._now + timedelta(minutes=2), self._kept[-1][0]
        yield self._entry(ev.NoticeSeen(attempt=attempt, kind="termination", deadline_at=deadline_at))
        drained = ev.AttemptDrained(attempt=attempt, final_commit=final, stopped_at=self._now, reason="notice")
        yield self._entry(drained)
        yield self._entry(
            ev.InstanceGone(
                launch=launch,
                instance_id=name,
                billed_from=began,
                ended_at=self._now,
                ended_by=EndedBy.CLOUD,
                prices=price,
                evidence="the cloud's record",
            )
        )

    def _intent(self) -> ev.LaunchIntended:
        return ev.LaunchIntended(
            offering=SPOT,
            time_to_live_s=86_400,
            price_ceiling_usd_per_hour=PRICE,
            on_demand_usd_per_hour=Decimal("1.20"),
            not_after=self._now + timedelta(minutes=10),
            reason="replacement",
        )

    def _commit(self, attempt: int, *, ends_epoch: bool) -> Iterator[ev.Entry]:
        self._step += STEPS_OF_A_COMMIT
        number, prefix = self._number, f"checkpoints/{attempt}-0-{self._step}"
        borrows = (self._kept[-1][1],) if len(self._kept) % 2 else ()
        event = ev.CheckpointCommitted(
            attempt=attempt,
            incarnation=0,
            prefix=prefix,
            manifest_blake3=DIGEST,
            size_bytes=10**9,
            objects=30,
            epoch=self._epoch,
            batch=self._step,
            step=self._step,
            taken_at=self._now + timedelta(seconds=55),
            stall_s=0.2,
            durable_s=5.0,
            why="interval",
            borrows=borrows,
        )
        yield self._entry(event, 60)
        self._kept.append((number, prefix))
        if ends_epoch:
            done = ev.EpochCompleted(attempt=attempt, epoch=self._epoch, step=self._step, ended_at=self._now)
            yield self._entry(done)
            self._epoch += 1
        if len(self._kept) > KEPT:
            lender, borrower = self._kept.pop(0), self._kept.pop(0)
            for commit, _ in (borrower, lender):
                yield self._entry(ev.CheckpointRetired(attempt=attempt, commit=commit))


def ledger(entries: int) -> list[ev.Entry]:
    """Return the first `entries` of an endless training."""
    return list(islice(_Training().entries(), entries))


def measure(entries: Sequence[ev.Entry]) -> Measured:
    began_s = time.process_time()
    state = fold(entries)
    folded_s = time.process_time()
    summarise(state, entries[-1].at)
    ended_s = time.process_time()
    return Measured(
        entries=len(entries),
        fold_s=round(folded_s - began_s, 3),
        entries_per_s=round(len(entries) / (folded_s - began_s)),
        summary_s=round(ended_s - folded_s, 3),
        commits=len(state.commits),
        launches=len(state.launches),
        voids=len(state.voids),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--entries", type=at_least(1000), default=100_000, metavar="COUNT", help="the length of the longest ledger"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args()
    whole = ledger(chosen.entries)
    found = [measure(whole[: len(whole) // part]) for part in (4, 2, 1)]
    if chosen.json:
        json.dump(msgspec.to_builtins(found), sys.stdout, indent=2)
        print()
        return
    print(f"{'entries':>10} {'fold':>9} {'entries/s':>10} {'account':>9} {'commits':>9} {'launches':>9}")
    for each in found:
        print(
            f"{each.entries:>10,} {each.fold_s:>7.2f} s {each.entries_per_s:>10,.0f} {each.summary_s:>7.2f} s "
            f"{each.commits:>9,} {each.launches:>9,}"
        )


if __name__ == "__main__":
    main()
