"""The ledger as a simulated agent writes it: by the real Ledger, at once or not just now."""

from __future__ import annotations

from concurrent.futures import Future

from spotrun.agent.inbox import PowerOff
from spotrun.errors import LedgerDamaged, StoreUnavailable
from spotrun.folder.ledger import Decide, EntryRefused, Ledger
from spotrun.run.events import Entry
from spotrun.run.state import RunState


class NotNow(Exception):
    """The store does not answer. The caller acts again later, from the same point."""


class SimulatedRecorder:
    """
    In the place of an agent's Recorder. It appends while its caller waits; where the store fails, time has to pass
    first, so the caller gives up with NotNow and comes back. What an agent appends is decided on anew each time, so it
    stands there once.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def state(self) -> RunState:
        return self._ledger.state

    def read(self) -> RunState:
        """
        The newest state.

        Raises:
            NotNow: the store does not answer.
        """
        try:
            return self._ledger.refresh()
        except StoreUnavailable as error:
            raise NotNow from error

    def append(self, decide: Decide) -> Future[Entry | None]:
        """
        Raises:
            NotNow: the store does not answer.
            PowerOff: this agent may not write any more.
        """
        written: Future[Entry | None] = Future()
        try:
            written.set_result(self._ledger.append(decide))
        except StoreUnavailable as error:
            raise NotNow from error
        except (EntryRefused, LedgerDamaged) as error:
            raise PowerOff(error.message) from error
        return written
