"""What all agents of one world share."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from spotrun.folder.ledger import Ledger
from spotrun.run.events import Entry
from spotrun.spec.model import RunSpec
from spotrun.store.port import Store
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.world.cloud import SimulatedCloud
from tests.support.world.rng import Rng
from tests.support.world.setup_cache import SimulatedSetupCache
from tests.support.world.timings import Starts, Timings, Training


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """
    `line` is how agents reach `store`: it may be a bad one. `starts` is None where boot and set-up are drawn by the
    timings. Moments are seconds since the world began.
    """

    clock: ManualClock
    cloud: SimulatedCloud
    store: MemoryStore
    line: Store
    spec: RunSpec
    training: Training
    timings: Timings
    starts: Starts | None
    rng: Rng
    setup_cache: SimulatedSetupCache
    first: tuple[Entry, bytes]
    began_at: datetime

    def ledger(self, writer: str) -> Ledger:
        """As an instance sees it."""
        return Ledger(self.line, self.first[0].run, writer, self.clock, retry_for_s=0, readers=1, first=self.first)

    @property
    def now_s(self) -> float:
        return self.clock.monotonic()

    def at(self, moment_s: float) -> datetime:
        return self.began_at + timedelta(seconds=moment_s)

    def moment_s(self, at: datetime) -> float:
        return (at - self.began_at).total_seconds()
