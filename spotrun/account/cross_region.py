"""
The cost of traffic between regions, computed from the ledger alone.

Instances read checkpoints, setup caches and data from the store, and write checkpoints, setup caches and the script's
files to it. Both directions are counted. One transfer is not counted, because no entry of the ledger shows it: the
fetch of a checkpoint by a standby that never takes over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from decimal import Decimal

from spotrun.run import events as ev
from spotrun.run.billing import ZERO, to_nano
from spotrun.run.bounds import amount_of
from spotrun.run.state import Attempt, Commit, KnownSetUp, Launch, RunState, Trainer

BYTES_PER_GB = 10**9


def data_gb(created: ev.RunCreated) -> Decimal:
    """Return the gigabytes of data that an instance reads at its start, according to the job."""
    return amount_of(created.job("data").get("gb", 0)) or ZERO


def crossings(state: RunState, launches: Iterable[Launch]) -> Iterator[tuple[datetime, Decimal]]:
    """
    Yield the cost in dollars of each transfer between regions that these launches caused, with the time at which the
    ledger recorded the transfer. The transfers are not sorted by time.
    """
    storage = state.created.storage
    led, set_up = _led(state), _set_up(state)
    write_usd_per_gb: dict[int, Decimal] = {}
    for launch in launches:
        region = launch.intent.offering.region
        if not storage.charges(region):
            continue
        read = storage.read_usd_per_gb(region)
        for recorded in (member.recorded for member in launch.members):
            if recorded is not None:
                yield recorded.billed_from, to_nano(read * data_gb(state.created))
        write = storage.write_usd_per_gb(region)
        for one in set_up.get(launch.number, ()):
            yield one.at, usd(read if one.setup.how == "unpacked" else write, one.setup.packed_bytes)
        for attempt in led.get(launch.number, ()):
            write_usd_per_gb[attempt.number] = write
            yield from _resumed(state, attempt, read)
    for commit in state.commits if write_usd_per_gb else ():
        if (rate := write_usd_per_gb.get(commit.event.attempt)) is not None:
            yield commit.at, usd(rate, commit.event.stored_bytes)
    for outputs in state.all_outputs() if write_usd_per_gb else ():
        if (rate := write_usd_per_gb.get(outputs.event.attempt)) is not None:
            yield outputs.at, usd(rate, outputs.event.sent_bytes)


def _led(state: RunState) -> dict[int, list[Attempt]]:
    """
    Return the attempts of each launch, keyed by the launch's number. A gang's attempt is listed only
    under its lead's launch.

    The lead suffices to compute the cost of transfers. All members of a gang are in the lead's region, so the same
    prices apply, whichever members transfer the parts of a checkpoint.
    """
    found: dict[int, list[Attempt]] = {}
    for attempt in state.attempts.values():
        found.setdefault(attempt.launch, []).append(attempt)
    return found


def _set_up(state: RunState) -> dict[int, list[KnownSetUp]]:
    """
    Return the recorded executions of the job's `setup`, keyed by the number of the launch. Each member of a gang runs
    `setup` separately.
    """
    found: dict[int, list[KnownSetUp]] = {}
    for one in state.setups():
        found.setdefault(one.launch.number, []).append(one)
    return found


def _resumed(state: RunState, attempt: Attempt, read: Decimal) -> Iterator[tuple[datetime, Decimal]]:
    """
    Yield the time at which each of the attempt's trainers resumed, and the cost of reading its checkpoint at `read`
    dollars a GB.
    """
    for trainer in attempt.trainers:
        if trainer.commit is not None:
            commit = state.commit(trainer.commit)
            yield trainer.resumed_at, usd(read, 0 if commit is None else _read_bytes(commit, trainer))


def _read_bytes(commit: Commit, trainer: Trainer) -> int:
    """
    Return the bytes that a trainer reads to resume. For the first trainer of an attempt, this includes the files of the
    script. A later trainer finds most of these files in the work folder, so they are not counted again.
    """
    files = commit.event.files
    return commit.event.size_bytes + (files.size_bytes if files is not None and not trainer.incarnation else 0)


def usd(usd_per_gb: Decimal, size_bytes: int) -> Decimal:
    return to_nano(usd_per_gb * size_bytes / BYTES_PER_GB)


def spent_usd(state: RunState) -> Decimal:
    """
    Return the cost of the transfers of all launches that have ended. Transfers of a launch that has not ended are left
    out, because the launch's reservation already sets aside a part of the budget for them.
    """
    gone = (launch for launch in state.launches.values() if launch.gone is not None)
    return sum((amount for _, amount in crossings(state, gone)), ZERO)
