"""
Ledgers and checkpoints through a line on which everything goes wrong, on a real S3 server.

    python tests/batteries/torture.py --appends 2000 --commits 200 --seed 1      # `make battery NAME=torture`

Several writers append to one ledger and upload checkpoints, while a tenth of all requests is reset, delayed, refused,
cut, corrupted, or done and then denied. At the end the store is read without the line: what a writer was told is there
once, and every committed checkpoint is the very image.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from unittest import mock

from spotrun.checkpoint.upload import upload
from spotrun.errors import StoreUnavailable
from spotrun.folder.ledger import Ledger
from spotrun.run import events as ev
from spotrun.run.events import Entry
from spotrun.run.fold import fold
from spotrun.run.state import RunState
from spotrun.store.opening import open_store
from spotrun.store.port import Store
from tests.support import fault_proxy as faults
from tests.support.checkpoint_entries import committed, restored
from tests.support.fault_proxy import Fault, FaultProxy, Seeded
from tests.support.histories import History
from tests.support.manual_clock import ManualClock
from tests.support.object_stores import RunningServer, SeaweedFS, running

WRITERS = 4
IMAGE_BYTES = 96 << 10
RETRY_FOR_S = 120.0
MIX: dict[Fault, int] = {
    faults.late(0.01): 10,
    faults.drip(0.02): 5,
    faults.reset_before: 15,
    faults.answer_lost: 20,
    faults.done_twice: 10,
    faults.cut_short: 10,
    faults.corrupted_answer: 10,
    faults.corrupted_request: 5,
    faults.refused(faults.S3_INTERNAL): 10,
    faults.refused(faults.S3_SLOW_DOWN): 10,
    faults.refused(faults.S3_CONFLICT): 5,
    faults.refused(faults.S3_TIMEOUT): 5,
    faults.refused_although_done(faults.S3_INTERNAL): 10,
}
"""Of a thousand requests."""


@dataclass
class Toll:
    """What the writers were told, against what is there."""

    appends: int
    commits: int
    requests: int
    faults: Counter[str]
    unknown: int
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    false_successes: list[str] = field(default_factory=list)
    wall_s: float = 0
    cpu_s: float = 0

    def __str__(self) -> str:
        return (
            f"{self.appends:,} appends and {self.commits:,} checkpoints acknowledged, {self.unknown} left unknown; "
            f"{self.requests:,} requests, {self.faults.total():,} accidents: {len(self.lost)} lost, "
            f"{len(self.doubled)} doubled, {len(self.false_successes)} false successes; "
            f"{self.wall_s:.0f} s, {self.cpu_s:.0f} s of CPU here"
        )


class _Writer:
    """One agent-like writer. It counts as its own only what it was told."""

    def __init__(self, number: int, store: Store, history: History, seed: int) -> None:
        self._store = store
        self._ledger = Ledger(store, history.uid, f"writer-{number}", ManualClock(history.now), RETRY_FOR_S)
        self._number = number
        self._rng = random.Random(f"{seed} {number}")
        self.told: list[Entry] = []
        self.images: dict[int, str] = {}
        self.unknown = 0

    def append(self) -> None:
        self._write(lambda state: ev.NoticeSeen(attempt=_attempt(state), kind="rebalance", deadline_at=None))

    def commit(self, step: int) -> None:
        image = self._rng.randbytes(IMAGE_BYTES)
        prefix = f"checkpoints/{self._number}-0-{step}"
        try:
            uploaded = upload(self._store, prefix, memoryview(image), {"step": step}, retry_for_s=RETRY_FOR_S)
        except StoreUnavailable:
            self.unknown += 1
            return

        def entry_of(state: RunState) -> ev.CheckpointCommitted:
            attempt = state.attempts[_attempt(state)]
            return committed(attempt.number, prefix, step, attempt.started_at, uploaded)

        entry = self._write(entry_of)
        if entry is not None:
            self.images[entry.number] = hashlib.sha256(image).hexdigest()

    def _write(self, decide: Callable[[RunState], ev.AnyEvent]) -> Entry | None:
        try:
            entry = self._ledger.append(decide)
        except StoreUnavailable:
            self.unknown += 1
            return None
        assert entry is not None
        self.told.append(entry)
        return entry


def _attempt(state: RunState) -> int:
    assert state.current_attempt is not None
    return state.current_attempt


def torture(server: RunningServer, *, appends: int, commits: int, seed: int, mix: dict[Fault, int] = MIX) -> Toll:
    """Must be alone in its process: it points the environment's S3 to the line, and back."""
    began, cpu = time.monotonic(), time.process_time()
    uri = server.new_prefix()
    history = History()
    history.running()
    with mock.patch.dict(os.environ, server.environment):
        direct = open_store(uri)
        history.put_into(direct)
    schedule = _Counted(Seeded(seed, mix))
    with FaultProxy(server.endpoint, schedule) as line:
        with mock.patch.dict(os.environ, {**server.environment, "AWS_ENDPOINT_URL": line.url}):
            writers = [_Writer(number, open_store(uri), history, seed) for number in range(WRITERS)]
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(lambda writer: _work(writer, appends // WRITERS, commits // WRITERS), writers))
        requests = line.count()
    toll = Toll(
        appends=sum(len(writer.told) for writer in writers),
        commits=sum(len(writer.images) for writer in writers),
        requests=requests,
        faults=schedule.hits,
        unknown=sum(writer.unknown for writer in writers),
    )
    _compare(toll, direct, history, writers)
    toll.wall_s, toll.cpu_s = time.monotonic() - began, time.process_time() - cpu
    return toll


class _Counted:
    """A schedule, and how often each of its faults has hit."""

    def __init__(self, schedule: Seeded) -> None:
        self._schedule = schedule
        self._lock = threading.Lock()
        self.hits: Counter[str] = Counter()

    def __call__(self, request: faults.Request) -> Fault:
        fault = self._schedule(request)
        if fault is not faults.none:
            with self._lock:
                self.hits[fault.__qualname__] += 1
        return fault


def _work(writer: _Writer, appends: int, commits: int) -> None:
    """Appends, with a checkpoint after every so many."""
    every = max(1, appends // commits) if commits else appends + 1
    for number in range(appends):
        writer.append()
        if number % every == every - 1 and number // every < commits:
            writer.commit(number)


def _compare(toll: Toll, direct: Store, history: History, writers: list[_Writer]) -> None:
    reader = Ledger(direct, history.uid, "reader", ManualClock(history.now))
    state = reader.refresh()
    there = {entry.number: entry for entry in reader.entries}
    assert state == fold(reader.entries), "the ledger is not what its entries say"
    assert not state.voids
    told = [entry for writer in writers for entry in writer.told]
    toll.lost += [f"entry {entry.number}" for entry in told if there.get(entry.number) != entry]
    nonces = Counter(entry.nonce for entry in reader.entries)
    toll.doubled += [nonce for nonce, count in nonces.items() if count > 1]
    unasked = len(there) - len(history.entries) - len(told)
    assert 0 <= unasked <= toll.unknown, f"{unasked} entries are there that nobody was told of"
    for writer in writers:
        for number, sha256 in writer.images.items():
            _check_image(toll, direct, state, number, sha256)


def _check_image(toll: Toll, direct: Store, state: RunState, number: int, sha256: str) -> None:
    commit = state.commit(number)
    assert commit is not None
    if hashlib.sha256(restored(direct, commit)).hexdigest() != sha256:
        toll.false_successes.append(f"checkpoint {number}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--appends", type=int, default=2000)
    options.add_argument("--commits", type=int, default=200)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    with running(SeaweedFS()) as server:
        toll = torture(server, appends=chosen.appends, commits=chosen.commits, seed=chosen.seed)
    print(toll)
    raise SystemExit(bool(toll.lost or toll.doubled or toll.false_successes))


if __name__ == "__main__":
    main()
