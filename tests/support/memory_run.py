"""A run whose store is an object of this process, for tests that make its runners and play its agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from spotrun.clock import Clock
from spotrun.folder.ledger import Ledger, key_of
from spotrun.run import entry_bytes
from spotrun.run import events as ev
from spotrun.run.state import RunState
from spotrun.runner.runner import Runner
from spotrun.spec.model import RunSpec
from tests.support.histories import History
from tests.support.manual_clock import ManualClock
from tests.support.memory_store import MemoryStore
from tests.support.played_agent import PLAIN, Agent, Script
from tests.support.world.faults import Watched

UID = "fedcba9876"


def nothing(_: str) -> None:
    """Let a call pass."""


class MemoryRun:
    """It is created now. A runner reaches its store by way of `answer`, which may raise."""

    def __init__(self, clock: ManualClock, **created: object) -> None:
        self.clock, self.store = clock, MemoryStore(clock)
        (first,) = History(**{"clock_epoch": clock.now(), **created}).entries
        self.uid = first.run
        self.store.put(key_of(0), entry_bytes.encode_entry(replace(first, at=clock.now())))
        self._watching = self.ledger()

    def ledger(self, writer: str = "test", store: Any = None, clock: Clock | None = None) -> Ledger:
        return Ledger(store or self.store, self.uid, writer, clock or self.clock, retry_for_s=0)

    def runner_in(
        self,
        cloud: Any,
        wanted: RunSpec,
        uri: str,
        *,
        before: Callable[[str], None] = nothing,
        after: Callable[[str], None] = nothing,
        clock: Clock | None = None,
        **ports: Any,
    ) -> Runner:
        """A new runner. It calls `before` and `after` with the name of each call to its store."""
        store = Watched(self.store, before, after)
        return Runner(self.ledger("runner", store, clock), store, cloud, clock or self.clock, wanted, uri, **ports)

    def agent(self, script: Script = PLAIN) -> Agent:
        """A played agent that takes over on the newest recorded instance."""
        return Agent(self.ledger(), self.store, self.clock, script)

    @property
    def state(self) -> RunState:
        return self._watching.refresh()

    @property
    def entries(self) -> list[ev.Entry]:
        self._watching.refresh()
        return self._watching.entries

    def kinds(self) -> list[str]:
        return [ev.kind(entry.event) for entry in self.entries]
